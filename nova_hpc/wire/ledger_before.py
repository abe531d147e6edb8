# SPDX-License-Identifier: Apache-2.0
"""The files that were the ledger's before it: one of each step, four in all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, read_nvlink_tenancies, step_part_of
from nova_hpc.wire.version import WireError


def fold_old_file(ledger: Ledger, name: str, text: str) -> Ledger:
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


def _normalise_entries(ledger: Ledger, entries: Mapping[str, Any]) -> tuple[Ledger, dict[str, Any]]:
    """Entries by normalised address; the others go to those that nobody can read."""
    by_address, unread, problems = {}, {}, []
    for key, value in entries.items():
        try:
            by_address[normalise_address(key)] = value
        except AddressError as error:
            unread[key] = value
            problems.append(str(error))
    return attrs.evolve(
        ledger,
        unread={**ledger.unread, **unread},
        problems=(*ledger.problems, *problems),
    ), by_address


def _fold_quarantine(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, reasons = _normalise_entries(ledger, body)
    return ledger.put(
        {
            address: attrs.evolve(
                ledger.device(address), state=DeviceState.QUARANTINED, reason=str(reason)
            )
            for address, reason in reasons.items()
        }
    )


def _entries_of_version(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if not body:
        return {}
    entries = body.get(key)
    if type(body.get("v")) is not int or body["v"] != 1 or not isinstance(entries, dict):
        raise WireError("it is not of version 1")
    return entries


def _fold_hygiene(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, entries = _normalise_entries(ledger, _entries_of_version(body, "devices"))
    changes = {}
    for address, value in entries.items():
        device = ledger.device(address)
        if not isinstance(value, dict):
            changes[address] = attrs.evolve(device, server=SOMEBODY)
            continue
        server, baseline = value.get("server"), value.get("baseline", device.baseline)
        if not (server is None or isinstance(server, str)):
            server = SOMEBODY
        changes[address] = attrs.evolve(
            device,
            server=server or None,
            unreported=value.get("owed") is True,
            baseline=step_part_of(baseline),
        )
    return ledger.put(changes)


def _fold_adapters(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, entries = _normalise_entries(ledger, _entries_of_version(body, "functions"))
    return ledger.put(
        {
            address: attrs.evolve(ledger.device(address), adapter=step_part_of(value) or {"": ""})
            for address, value in entries.items()
        }
    )


def _fold_nvlink(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    partitions, gpus = read_nvlink_tenancies({"partitions": {}, "known": [], **body}, "known")
    return attrs.evolve(ledger, partitions=partitions, gpus=ledger.gpus | gpus)


_FOLDS: Final[Mapping[str, Callable[[Ledger, Mapping[str, Any]], Ledger]]] = {
    "quarantine": _fold_quarantine,
    "hygiene": _fold_hygiene,
    "adapters": _fold_adapters,
    "nvlink": _fold_nvlink,
}
