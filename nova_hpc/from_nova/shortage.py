# SPDX-License-Identifier: Apache-2.0
"""Asks Placement what it has of each thing that a server asks for.

For the line in the log where Placement has no candidate, and for the count of hosts
where its answer was cut off. Some ten queries; so it is asked only when such a line is
due. See :class:`nova_hpc.placement.shortage.Shortage`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib import parse

from nova import objects
from nova.scheduler import utils
from nova.scheduler.client import report

from nova_hpc.from_nova.providers import MOST, Kind
from nova_hpc.from_nova.server import Task
from nova_hpc.placement.shortage import Shortage

#: The first with several ``member_of`` in a query, and forbidden traits (1.22).
_MICROVERSION: Final = "1.24"


class NoAnswerError(RuntimeError):
    """Placement did not answer."""


def look(context: Any, spec: objects.RequestSpec, task: Task, host_manager: Any) -> Shortage:
    """What *spec* asks for, and what Placement has of it.

    :param task: of *spec*.
    :raises NoAnswerError: Placement did not answer.
    """
    # As the scheduler makes it, a moment before (manager.py:254-257 of release 34).
    asked = utils.resources_from_request_spec(
        context, spec, host_manager, enable_pinning_translate=True
    )
    group = asked.get_request_group(None)
    devices: collections.Counter[str] = collections.Counter()
    for kind, count in task.kinds.items():
        devices[kind.resource_class] += count
    free: dict[str, collections.Counter[str]] = {}
    for kind, count in task.kinds.items():
        free.setdefault(kind.resource_class, collections.Counter()).update(_free(kind, count))
    traits = [*group.required_traits, *spec.root_required]
    traits += [f"!{trait}" for trait in (*group.forbidden_traits, *spec.root_forbidden)]
    query = [("resources", _resources(group.resources))]
    if traits:
        query.append(("required", ",".join(sorted(traits))))
    query += [("member_of", f"in:{','.join(each)}") for each in group.aggregates]
    if group.in_tree:
        query.append(("in_tree", group.in_tree))
    return Shortage(
        devices=dict(devices),
        rest=dict(group.resources),
        free=free,
        roomy=frozenset(each["root_provider_uuid"] for each in _ask(query)),
    )


def lacking(host: str, rest: Mapping[str, int]) -> dict[str, int]:
    """Of *rest*, what a host (a root provider) has too little of.

    :raises NoAnswerError: Placement did not answer.
    """
    return {
        name: amount
        for name, amount in rest.items()
        if not _ask([("in_tree", host), ("resources", f"{name}:{amount}")])
    }


def name_of(host: str) -> str:
    """The name of a provider: of a root, that of the hypervisor.

    :raises NoAnswerError: Placement did not answer.
    """
    found = _ask([("uuid", host)])
    return str(found[0]["name"]) if found else host


def _free(kind: Kind, most: int) -> dict[str, int]:
    """Root provider -> free devices of *kind*, as many as one request can use."""
    amounts: dict[str, int] = {}
    roots: dict[str, str] = {}
    for amount in range(1, max(1, min(most, MOST)) + 1):
        query = [("resources", f"{kind.resource_class}:{amount}")]
        if kind.traits:
            query.append(("required", ",".join(sorted(kind.traits))))
        found = _ask(query)
        for each in found:
            amounts[each["uuid"]] = amount
            roots[each["uuid"]] = each["root_provider_uuid"]
        if not found:
            break
    totals: collections.Counter[str] = collections.Counter()
    for provider, amount in amounts.items():
        totals[roots[provider]] += amount
    return totals


def _resources(amounts: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{amount}" for name, amount in sorted(amounts.items()))


def _ask(query: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    url = "/resource_providers?" + parse.urlencode(list(query), safe=":,!")
    answer = report.report_client_singleton().get(url, version=_MICROVERSION)
    if not answer or answer.status_code != 200:
        raise NoAnswerError(f"Placement did not answer {url}")
    found: list[dict[str, Any]] = answer.json()["resource_providers"]
    return found
