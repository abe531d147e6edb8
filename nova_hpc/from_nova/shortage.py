# SPDX-License-Identifier: Apache-2.0
"""Asks Placement which hosts meet each single wish of a request.

For users and operators where Placement has no candidate, and for the count of hosts where
its answer was cut off. Some ten to twenty queries, each for a list of providers without their
inventories; a host that is found meets a wish *now*, as the query for candidates counts it.
See :class:`nova_hpc.placement.shortage.Shortage`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib import parse

from nova import objects
from nova.scheduler import utils
from nova.scheduler.client import report

from nova_hpc.from_nova.providers import MOST, Kind
from nova_hpc.from_nova.server import Task
from nova_hpc.placement.shortage import Shortage, Sign, Source, Wish

#: The first with several ``member_of`` in a query, and forbidden traits (1.22).
_MICROVERSION: Final = "1.24"

#: Nova gives it to a node whose service is disabled.
_DISABLED: Final = "COMPUTE_STATUS_DISABLED"
_THREADS: Final = "HW_CPU_HYPERTHREADING"
#: Of every PCI device that Nova reports.
_OWNER: Final = "OWNER_NOVA"
_SHARING: Final = "MISC_SHARES_VIA_AGGREGATE"


class NoAnswerError(RuntimeError):
    """Placement did not answer."""


def look(context: Any, spec: objects.RequestSpec, task: Task, host_manager: Any) -> Shortage:
    """What *spec* asks for, and which hosts have it.

    :param task: of *spec*.
    :raises NoAnswerError: Placement did not answer.
    """
    # As the scheduler makes it, a moment before (manager.py:254-257 of release 34).
    asked = utils.resources_from_request_spec(
        context, spec, host_manager, enable_pinning_translate=True
    )
    group = asked.get_request_group(None)
    mine = {unit.group for unit in task.units}
    wishes = [*_devices(task), *_amounts(group.resources)]
    wishes += _traits(spec, {*group.required_traits, *spec.root_required}, group.resources)
    wishes += _banned({*group.forbidden_traits, *spec.root_forbidden})
    wishes += _aggregates(context, spec, group)
    if group.in_tree:
        wishes.append(Wish(Sign.HOST, group.in_tree, frozenset({group.in_tree})))
    # Nova has no other way to its groups, in 32 to 34.
    for key, other in asked._rg_by_id.items():
        if key and key not in mine and other.resources:
            wishes.append(_group(other))
    return Shortage(tuple(wishes), isolated=asked.group_policy == "isolate")


def name_of(host: str) -> str:
    """The name of a provider: of a root, that of the hypervisor.

    :raises NoAnswerError: Placement did not answer.
    """
    found = _ask([("uuid", host)])
    return str(found[0]["name"]) if found else host


def _devices(task: Task) -> Iterator[Wish]:
    names: dict[Kind, list[str]] = {}
    for device in task.devices:
        names.setdefault(device.kind, []).append(device.want.name)
    for kind, count in task.kinds.items():
        free = _free(kind, count)
        yield Wish(
            Sign.DEVICES,
            "/".join(dict.fromkeys(names[kind])),
            aliases=tuple(dict.fromkeys(names[kind])),
            hosts=frozenset(host for host, amount in free.items() if amount >= count),
            amount=count,
            resource_class=" with ".join([kind.resource_class, *sorted(kind.traits - {_OWNER})]),
            free=free,
        )


def _amounts(resources: dict[str, int]) -> Iterator[Wish]:
    shared = _ask([("required", _SHARING)])
    for name, amount in sorted(resources.items()):
        query = [("resources", f"{name}:{amount}")]
        if shared and _ask([*query, ("required", _SHARING)]):
            continue  # of a pool that is no host's own: whose it is, the candidates say
        yield Wish(Sign.AMOUNT, name, _roots(_ask(query)), amount=amount)


def _traits(
    spec: objects.RequestSpec, traits: set[str], resources: Iterable[str]
) -> Iterator[Wish]:
    for trait in sorted(traits):
        having = _ask([("required", trait)])
        hosts = {each["uuid"] for each in having if each["uuid"] == each["root_provider_uuid"]}
        if having and len(hosts) < len(having):
            # Below the host, it counts on a provider of what is asked for beside the devices.
            for name in resources:
                query = [("required", trait), ("resources", f"{name}:1")]
                hosts |= _roots(_ask(query))
        yield Wish(Sign.TRAIT, trait, frozenset(hosts), source=_source(spec, trait))


def _source(spec: objects.RequestSpec, trait: str) -> Source:
    """Who wants a trait, by where it stands."""
    if f"trait:{trait}" in (spec.flavor.extra_specs or {}):
        return Source.FLAVOR
    image = spec.image if "image" in spec and spec.image else None
    properties = image.properties if image is not None and "properties" in image else None
    if properties is not None and trait in (properties.get("traits_required") or ()):
        return Source.IMAGE
    return Source.THREADS if trait == _THREADS else Source.NOVA


def _banned(traits: set[str]) -> Iterator[Wish]:
    for trait in sorted(traits):
        sign = Sign.CLOSED if trait == _DISABLED else Sign.BANNED
        source = Source.THREADS if trait == _THREADS else Source.NOVA
        hosts = _roots(_ask([("required", trait)]))
        yield Wish(sign, trait, hosts, inverted=True, source=source)


def _aggregates(
    context: Any, spec: objects.RequestSpec, group: objects.RequestGroup
) -> Iterator[Wish]:
    zone = spec.availability_zone if "availability_zone" in spec else None
    mine: set[str] = set()
    if zone:
        found = objects.AggregateList.get_by_metadata(
            context.elevated(), key="availability_zone", value=zone
        )
        mine = {each.uuid for each in found}
    for any_of in group.aggregates or ():
        hosts = _roots(_ask([("member_of", f"in:{','.join(any_of)}")]))
        is_zone = bool(mine) and set(any_of) <= mine
        sign, name = (Sign.ZONE, str(zone)) if is_zone else (Sign.RULE, ", ".join(any_of))
        yield Wish(sign, name, hosts)
    if group.forbidden_aggregates:
        none_of = sorted(group.forbidden_aggregates)
        hosts = _roots(_ask([("member_of", f"in:{','.join(none_of)}")]))
        yield Wish(Sign.RULE, f"but these: {', '.join(none_of)}", hosts, inverted=True)


def _group(group: objects.RequestGroup) -> Wish:
    """A group of a port, or of the flavor's own ``resources1``: of one provider."""
    query = [("resources", _resources(group.resources))]
    if group.required_traits:
        query.append(("required", ",".join(sorted(group.required_traits))))
    name = ", ".join(f"{amount} {name}" for name, amount in sorted(group.resources.items()))
    return Wish(Sign.GROUP, name, _roots(_ask(query)))


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


def _resources(amounts: dict[str, int]) -> str:
    return ",".join(f"{name}:{amount}" for name, amount in sorted(amounts.items()))


def _roots(found: Iterable[dict[str, Any]]) -> frozenset[str]:
    return frozenset(each["root_provider_uuid"] for each in found)


def _ask(query: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    listed = list(query)
    url = "/resource_providers?" + parse.urlencode(listed, safe=":,!")
    client = report.report_client_singleton()
    answer = client.get(url, version=_MICROVERSION)
    if answer and answer.status_code == 200:
        found: list[dict[str, Any]] = answer.json()["resource_providers"]
        return found
    if answer is not None and answer.status_code == 400 and _names_unknown(client, listed):
        # No node has ever reported it, and Placement takes that for a bad question.
        return []
    raise NoAnswerError(f"Placement did not answer {url}")


def _names_unknown(client: Any, query: Iterable[tuple[str, str]]) -> bool:
    """Whether a query names a resource class or a trait that Placement has never heard of."""
    paths = []
    for key, value in query:
        if key == "resources":
            paths += [f"/resource_classes/{part.partition(':')[0]}" for part in value.split(",")]
        elif key == "required":
            paths += [f"/traits/{part.lstrip('!')}" for part in value.split(",")]
    return any(client.get(path, version=_MICROVERSION).status_code == 404 for path in paths)
