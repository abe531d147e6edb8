# SPDX-License-Identifier: Apache-2.0
"""The files that were the ledger's before it: one of each step, four in all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc.wire.ledger import SOMEBODY, Ledger, State, nvlink, part
from nova_hpc.wire.version import WireError


def fold(ledger: Ledger, name: str, text: str) -> Ledger:
    """Add what a file of the release before says.

    Such a file is there once, before it is put away, or because that release
    was in use again: what it says is newer. A device that either has in
    quarantine stays there.

    :param name: one of :data:`nova_hpc.wire.ledger.BEFORE`.
    :raises nova_hpc.wire.version.WireError: it cannot be read.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"it is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise WireError("it is no JSON object")
    return _FOLDS[name](ledger, body)


def _addressed(ledger: Ledger, entries: Mapping[str, Any]) -> tuple[Ledger, dict[str, Any]]:
    """Entries by normalised address; the others go to those that nobody can read."""
    found, unread, problems = {}, {}, []
    for key, value in entries.items():
        try:
            found[normalise_address(key)] = value
        except AddressError as error:
            unread[key] = value
            problems.append(str(error))
    return attrs.evolve(
        ledger,
        unread={**ledger.unread, **unread},
        problems=(*ledger.problems, *problems),
    ), found


def _fold_quarantine(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, found = _addressed(ledger, body)
    return ledger.put(
        {
            each: attrs.evolve(ledger.device(each), state=State.QUARANTINED, reason=str(reason))
            for each, reason in found.items()
        }
    )


def _entries(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if not body:
        return {}
    entries = body.get(key)
    if type(body.get("v")) is not int or body["v"] != 1 or not isinstance(entries, dict):
        raise WireError("it is not of version 1")
    return entries


def _fold_hygiene(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, found = _addressed(ledger, _entries(body, "devices"))
    changes = {}
    for each, value in found.items():
        now = ledger.device(each)
        if not isinstance(value, dict):
            changes[each] = attrs.evolve(now, server=SOMEBODY)
            continue
        server, known = value.get("server"), value.get("baseline", now.baseline)
        if not (server is None or isinstance(server, str)):
            server = SOMEBODY
        changes[each] = attrs.evolve(
            now,
            server=server or None,
            unreported=value.get("owed") is True,
            baseline=part(known),
        )
    return ledger.put(changes)


def _fold_adapters(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, found = _addressed(ledger, _entries(body, "functions"))
    return ledger.put(
        {
            each: attrs.evolve(ledger.device(each), adapter=part(value) or {"": ""})
            for each, value in found.items()
        }
    )


def _fold_nvlink(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    partitions, gpus = nvlink({"partitions": {}, "known": [], **body}, "known")
    return attrs.evolve(ledger, partitions=partitions, gpus=ledger.gpus | gpus)


_FOLDS: Final[Mapping[str, Callable[[Ledger, Mapping[str, Any]], Ledger]]] = {
    "quarantine": _fold_quarantine,
    "hygiene": _fold_hygiene,
    "adapters": _fold_adapters,
    "nvlink": _fold_nvlink,
}
