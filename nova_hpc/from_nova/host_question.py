# SPDX-License-Identifier: Apache-2.0
"""Queries Placement for hosts, and finds their devices in its description of each host.

Nova requests each device of a flavor in a request group of its own, and Placement visits
every provider of the cloud once for each group. An answer for eight devices takes five times
as long as one for none. But each answer describes all providers of a host
(``provider_summaries``), also its devices. So the groups of the flavor's devices are left
out of the query, hosts without enough free devices are removed from the answer, and the
candidates of the others get the omitted devices. The result equals Placement's own answer,
with two differences. Each host has one candidate for each candidate of its other resources,
and not one for each choice of its devices. The named devices have no meaning, because
HpcTopologyFilter replaces them.

Example: a flavor requests 2 CPUs and two GPUs, in the groups ``a`` and ``b``. The query is
for the CPUs. For a host with GPUs ``g1`` (in use), ``g2`` and ``g3`` the candidate
``{host: VCPU 2}`` becomes ``{host: VCPU 2, g2: GPU 1, g3: GPU 1}`` with ``a`` on ``g2`` and ``b``
on ``g3``. A host with only ``g1`` and ``g2`` is removed from the answer.

Pure functions on plain data; nothing here imports Nova.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.from_nova.candidates import CandidateError, RequestedDevice
from nova_hpc.from_nova.placement_answer import Summaries

#: Trait of a provider that others use through an aggregate; it is in no host's tree.
_SHARING: Final = "MISC_SHARES_VIA_AGGREGATE"

#: Resource class -> providers of one host with free units of it, and how many.
_FreeDevices = Mapping[str, Sequence[tuple[str, int]]]


@attrs.frozen
class HostQuestion:
    """A query to Placement without its device groups, and the devices that were left out.

    The shorter query is faster. The devices are then added to the answer from its free providers.
    """

    #: Resource class -> its request groups, each for one unit.
    groups: Mapping[str, Sequence[str]]
    #: Resource class -> traits of suitable providers.
    traits: Mapping[str, frozenset[str]]
    #: Whether no two request groups may have the same provider (``group_policy=isolate``).
    isolated: bool

    @classmethod
    def of(cls, resources: Any, devices: Iterable[RequestedDevice]) -> HostQuestion | None:
        """Build the query for hosts that replaces Nova's; None if Nova's own query is needed.

        :param resources: Nova's ``ResourceRequest``.
        :param devices: all devices of the flavor's aliases.
        """
        asked: Mapping[str | None, Any] = resources._rg_by_id
        groups: dict[str, list[str]] = {}
        traits: dict[str, set[frozenset[str]]] = {}
        for device in devices:
            group = asked.get(device.group)
            if group is None or not _is_plain_group(group, device.resource_class):
                return None
            groups.setdefault(device.resource_class, []).append(device.group)
            traits.setdefault(device.resource_class, set()).add(frozenset(group.required_traits))
        left_out = {name for names in groups.values() for name in names}
        others = [group for name, group in asked.items() if name not in left_out]
        if (
            not groups
            # Two kinds of one class compete for devices, and only Placement assigns them.
            or any(len(kinds) > 1 for kinds in traits.values())
            or any(group.resources.keys() & groups.keys() for group in others)
            or left_out.intersection(*[set().union(*resources._same_subtree)])
            # Without an amount of the host itself the query would be empty.
            or None not in asked
            or not asked[None].resources
        ):
            return None
        return cls(
            {name: tuple(own_groups) for name, own_groups in groups.items()},
            {name: next(iter(kinds)) for name, kinds in traits.items()},
            resources.group_policy == "isolate",
        )

    def shorten(self, resources: Any) -> Any:
        """Return a copy of Nova's ``ResourceRequest`` without the request groups of devices."""
        left_out = {name for names in self.groups.values() for name in names}
        shortened = copy.copy(resources)
        shortened._rg_by_id = {
            name: group for name, group in resources._rg_by_id.items() if name not in left_out
        }
        return shortened

    def complete(
        self, candidates: Sequence[dict[str, Any]], summaries: Summaries
    ) -> tuple[list[dict[str, Any]], dict[str, Mapping[str, Any]]]:
        """Add the omitted devices to Placement's candidates.

        :param candidates: of Placement, for the shorter query; they are changed.
        :returns: without the hosts that have too few devices.
        :raises CandidateError: the answer is of a form that this release cannot read.
        """
        try:
            free = self._find_free_devices(summaries)
            completed: list[dict[str, Any]] = []
            hosts: set[str] = set()
            shared: set[str] = set()
            for candidate in candidates:
                host = _find_host_of(candidate, summaries, shared)
                if self._add_devices(candidate, free.get(host, {})):
                    hosts.add(host)
                    completed.append(_CopiedCandidate(candidate))
            left = {
                provider: summary
                for provider, summary in summaries.items()
                if summary["root_provider_uuid"] in hosts or provider in shared
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CandidateError(f"{type(error).__name__}: {error}") from error
        return completed, left

    def _find_free_devices(self, summaries: Summaries) -> Mapping[str, _FreeDevices]:
        """Return a host's root provider -> its free devices of classes that the query omits."""
        free: dict[str, dict[str, list[tuple[str, int]]]] = {}
        wanted = tuple(self.traits.items())
        for provider, summary in summaries.items():
            resources = summary["resources"]
            for name, traits in wanted:
                amounts = resources.get(name)
                if amounts is None:
                    continue
                count = amounts["capacity"] - amounts["used"]
                if count > 0 and traits.issubset(summary["traits"]):
                    if _SHARING in summary["traits"]:
                        raise CandidateError(f"{provider} shares {name} with other hosts")
                    of_host = free.setdefault(summary["root_provider_uuid"], {})
                    of_host.setdefault(name, []).append((provider, count))
        return free

    def _add_devices(self, candidate: dict[str, Any], free: _FreeDevices) -> bool:
        """Add devices of one host to a candidate; False if there are too few."""
        mappings = candidate["mappings"]
        taken: set[str] = set()
        if self.isolated:
            taken = {
                provider for group, providers in mappings.items() if group for provider in providers
            }
        chosen: list[tuple[str, str, str]] = []
        for name, groups in self.groups.items():
            units = self._list_units(free.get(name, ()), len(groups), taken)
            if len(units) < len(groups):
                return False
            chosen += [
                (name, group, provider) for group, provider in zip(groups, units, strict=True)
            ]
        allocations = candidate["allocations"]
        for name, group, provider in chosen:
            resources = allocations.setdefault(provider, {"resources": {}})["resources"]
            resources[name] = resources.get(name, 0) + 1
            mappings[group] = [provider]
        return True

    def _list_units(
        self, free: Sequence[tuple[str, int]], most: int, taken: set[str]
    ) -> Sequence[str]:
        """List the provider of each free device, *most* at the maximum.

        :param free: pairs of a provider and its number of free devices.
        :param taken: with isolated groups, the providers of other groups; it grows.
        """
        units: list[str] = []
        for provider, count in free:
            if len(units) == most:
                break
            if not self.isolated:
                units += [provider] * min(count, most - len(units))
            elif provider not in taken:
                taken.add(provider)
                units.append(provider)
        return units


class _CopiedCandidate(dict[str, Any]):
    """An allocation candidate with a cheap deep copy, because Nova copies every candidate."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _CopiedCandidate:
        new = _CopiedCandidate(self)
        new["allocations"] = {
            provider: {**allocation, "resources": dict(allocation["resources"])}
            for provider, allocation in self["allocations"].items()
        }
        new["mappings"] = {group: list(providers) for group, providers in self["mappings"].items()}
        return new


def _is_plain_group(group: Any, resource_class: str) -> bool:
    """Whether a group requests one device, by class and traits, and nothing else."""
    return (
        group.use_same_provider
        and dict(group.resources) == {resource_class: 1}
        and not group.forbidden_traits
        and not group.aggregates
        and not group.forbidden_aggregates
        and not group.in_tree
    )


def _find_host_of(candidate: Mapping[str, Any], summaries: Summaries, shared: set[str]) -> str:
    """Return the root provider of the only host that an allocation candidate uses.

    :param shared: providers outside of the host that a candidate uses; it grows.
    :raises ValueError: there is not exactly one.
    """
    hosts: collections.Counter[str] = collections.Counter()
    for provider in candidate["allocations"]:
        summary = summaries[provider]
        if _SHARING in summary["traits"]:
            shared.add(provider)
        else:
            hosts[summary["root_provider_uuid"]] += 1
    (host,) = hosts
    return host
