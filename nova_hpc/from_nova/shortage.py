# SPDX-License-Identifier: Apache-2.0
"""Queries Placement for the hosts that meet each single wish of a request.

For users and operators if Placement has no candidate, and for the count of hosts if its answer
was cut off. It takes some ten to twenty queries, each for a list of providers without their
inventories. A host in the answer meets a wish *now*, in the same way as in the query for
candidates. See :class:`nova_hpc.placement.shortage.Shortage`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib import parse

from nova import objects
from nova.scheduler import utils
from nova.scheduler.client import report

from nova_hpc.from_nova.providers import MOST, DeviceKind
from nova_hpc.from_nova.server import ServerTask
from nova_hpc.placement.shortage import HostWish, Shortage, WishSign, WishSource

#: The first microversion with several ``member_of`` in a query; forbidden traits came in 1.22.
_MICROVERSION: Final = "1.24"

#: Trait that Nova gives a node whose service is disabled.
_DISABLED: Final = "COMPUTE_STATUS_DISABLED"
_THREADS: Final = "HW_CPU_HYPERTHREADING"
#: Trait of every PCI device that Nova reports.
_OWNER: Final = "OWNER_NOVA"
_SHARING: Final = "MISC_SHARES_VIA_AGGREGATE"


class ShortageUnansweredError(RuntimeError):
    """Placement did not answer the queries about a missing candidate."""


def ask_for_shortage(
    context: Any, spec: objects.RequestSpec, task: ServerTask, host_manager: Any
) -> Shortage:
    """Query Placement for the hosts that meet each requirement of *spec*.

    :param task: the task of *spec*.
    :raises ShortageUnansweredError: Placement did not answer.
    """
    # The scheduler made the same query a moment before (manager.py:254-257 of release 34).
    asked = utils.resources_from_request_spec(
        context, spec, host_manager, enable_pinning_translate=True
    )
    group = asked.get_request_group(None)
    own_groups = {unit.group for unit in task.units}
    wishes = [*_list_device_wishes(task), *_list_amount_wishes(group.resources)]
    wishes += _list_trait_wishes(
        spec, {*group.required_traits, *spec.root_required}, group.resources
    )
    wishes += _list_banned_wishes({*group.forbidden_traits, *spec.root_forbidden})
    wishes += _list_aggregate_wishes(context, spec, group)
    if group.in_tree:
        wishes.append(HostWish(WishSign.HOST, group.in_tree, frozenset({group.in_tree})))
    # Nova has no other access to its groups, in 32 to 34.
    for key, request_group in asked._rg_by_id.items():
        if key and key not in own_groups and request_group.resources:
            wishes.append(_group_wish_of(request_group))
    return Shortage(tuple(wishes), isolated=asked.group_policy == "isolate")


def provider_name_of(host: str) -> str:
    """Query the name of the provider with UUID *host*: for a root provider the hypervisor's name.

    :returns: *host* if Placement has no such provider.
    :raises ShortageUnansweredError: Placement did not answer.
    """
    providers = _query_providers([("uuid", host)])
    return str(providers[0]["name"]) if providers else host


def _list_device_wishes(task: ServerTask) -> Iterator[HostWish]:
    """Yield one wish for each kind of device: the hosts with as many free as the server needs."""
    names: dict[DeviceKind, list[str]] = {}
    for device in task.devices:
        names.setdefault(device.kind, []).append(device.want.name)
    for kind, count in task.kinds.items():
        free = _count_free_devices(kind, count)
        yield HostWish(
            WishSign.DEVICES,
            "/".join(dict.fromkeys(names[kind])),
            aliases=tuple(dict.fromkeys(names[kind])),
            hosts=frozenset(host for host, amount in free.items() if amount >= count),
            amount=count,
            resource_class=" with ".join([kind.resource_class, *sorted(kind.traits - {_OWNER})]),
            free=free,
        )


def _list_amount_wishes(resources: dict[str, int]) -> Iterator[HostWish]:
    """Yield one wish for each amount of CPUs, memory and disk that the host itself provides."""
    shared = _query_providers([("required", _SHARING)])
    for name, amount in sorted(resources.items()):
        query = [("resources", f"{name}:{amount}")]
        if shared and _query_providers([*query, ("required", _SHARING)]):
            continue  # from a shared pool: only the candidates show which hosts use it
        yield HostWish(
            WishSign.AMOUNT, name, _root_providers_of(_query_providers(query)), amount=amount
        )


def _list_trait_wishes(
    spec: objects.RequestSpec, traits: set[str], resources: Iterable[str]
) -> Iterator[HostWish]:
    """Yield one wish for each required trait, of the host or of a provider below it."""
    for trait in sorted(traits):
        having = _query_providers([("required", trait)])
        hosts = {
            provider["uuid"]
            for provider in having
            if provider["uuid"] == provider["root_provider_uuid"]
        }
        if having and len(hosts) < len(having):
            # Below the host, it counts on a provider of resources other than devices.
            for name in resources:
                query = [("required", trait), ("resources", f"{name}:1")]
                hosts |= _root_providers_of(_query_providers(query))
        yield HostWish(
            WishSign.TRAIT, trait, frozenset(hosts), source=_source_of_trait(spec, trait)
        )


def _source_of_trait(spec: objects.RequestSpec, trait: str) -> WishSource:
    """Find the place where a required trait is set: flavor, image, CPU threads or Nova."""
    if f"trait:{trait}" in (spec.flavor.extra_specs or {}):
        return WishSource.FLAVOR
    image = spec.image if "image" in spec and spec.image else None
    properties = image.properties if image is not None and "properties" in image else None
    if properties is not None and trait in (properties.get("traits_required") or ()):
        return WishSource.IMAGE
    return WishSource.THREADS if trait == _THREADS else WishSource.NOVA


def _list_banned_wishes(traits: set[str]) -> Iterator[HostWish]:
    """Yield one wish for each forbidden trait; its hosts are those that have the trait."""
    for trait in sorted(traits):
        sign = WishSign.CLOSED if trait == _DISABLED else WishSign.BANNED
        source = WishSource.THREADS if trait == _THREADS else WishSource.NOVA
        hosts = _root_providers_of(_query_providers([("required", trait)]))
        yield HostWish(sign, trait, hosts, inverted=True, source=source)


def _list_aggregate_wishes(
    context: Any, spec: objects.RequestSpec, group: objects.RequestGroup
) -> Iterator[HostWish]:
    zone = spec.availability_zone if "availability_zone" in spec else None
    zone_aggregates: set[str] = set()
    if zone:
        aggregates = objects.AggregateList.get_by_metadata(
            context.elevated(), key="availability_zone", value=zone
        )
        zone_aggregates = {aggregate.uuid for aggregate in aggregates}
    for any_of in group.aggregates or ():
        hosts = _root_providers_of(_query_providers([("member_of", f"in:{','.join(any_of)}")]))
        is_zone = bool(zone_aggregates) and set(any_of) <= zone_aggregates
        sign, name = (WishSign.ZONE, str(zone)) if is_zone else (WishSign.RULE, ", ".join(any_of))
        yield HostWish(sign, name, hosts)
    if group.forbidden_aggregates:
        none_of = sorted(group.forbidden_aggregates)
        hosts = _root_providers_of(_query_providers([("member_of", f"in:{','.join(none_of)}")]))
        yield HostWish(WishSign.RULE, f"but these: {', '.join(none_of)}", hosts, inverted=True)


def _group_wish_of(group: objects.RequestGroup) -> HostWish:
    """Build the wish of a request group that one provider must meet: a port's or ``resources1``."""
    query = [("resources", _format_resource_amounts(group.resources))]
    if group.required_traits:
        query.append(("required", ",".join(sorted(group.required_traits))))
    name = ", ".join(f"{amount} {name}" for name, amount in sorted(group.resources.items()))
    return HostWish(WishSign.GROUP, name, _root_providers_of(_query_providers(query)))


def _count_free_devices(kind: DeviceKind, most: int) -> dict[str, int]:
    """Return root provider -> free devices of *kind*, at most *most*."""
    amounts: dict[str, int] = {}
    roots: dict[str, str] = {}
    for amount in range(1, max(1, min(most, MOST)) + 1):
        query = [("resources", f"{kind.resource_class}:{amount}")]
        if kind.traits:
            query.append(("required", ",".join(sorted(kind.traits))))
        providers = _query_providers(query)
        for entry in providers:
            amounts[entry["uuid"]] = amount
            roots[entry["uuid"]] = entry["root_provider_uuid"]
        if not providers:
            break
    totals: collections.Counter[str] = collections.Counter()
    for provider, amount in amounts.items():
        totals[roots[provider]] += amount
    return totals


def _format_resource_amounts(amounts: dict[str, int]) -> str:
    return ",".join(f"{name}:{amount}" for name, amount in sorted(amounts.items()))


def _root_providers_of(providers: Iterable[dict[str, Any]]) -> frozenset[str]:
    return frozenset(provider["root_provider_uuid"] for provider in providers)


def _query_providers(query: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    listed = list(query)
    url = "/resource_providers?" + parse.urlencode(listed, safe=":,!")
    client = report.report_client_singleton()
    answer = client.get(url, version=_MICROVERSION)
    if answer and answer.status_code == 200:
        providers: list[dict[str, Any]] = answer.json()["resource_providers"]
        return providers
    if answer is not None and answer.status_code == 400 and _names_unknown(client, listed):
        # No node has ever reported it, and Placement answers like to an invalid query.
        return []
    raise ShortageUnansweredError(f"Placement did not answer {url}")


def _names_unknown(client: Any, query: Iterable[tuple[str, str]]) -> bool:
    """Whether a query contains a resource class or a trait that Placement does not list."""
    paths = []
    for key, value in query:
        if key == "resources":
            paths += [f"/resource_classes/{part.partition(':')[0]}" for part in value.split(",")]
        elif key == "required":
            paths += [f"/traits/{part.lstrip('!')}" for part in value.split(",")]
    return any(client.get(path, version=_MICROVERSION).status_code == 404 for path in paths)
