# SPDX-License-Identifier: Apache-2.0
"""Makes the allocation candidate that names the chosen devices.

Placement's limit cuts its candidates off without regard to topology, so one of
them serves only as a template. Everything that is not a device of the flavor
(CPUs, memory, disk, bandwidth of ports) is kept, and the devices are
replaced. Placement checks the result when the scheduler claims it.

Pure functions on plain data; nothing here imports Nova.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

#: An allocation request of Placement, with ``allocations`` and ``mappings``.
Candidate = Mapping[str, Any]


class CandidateError(ValueError):
    """An allocation candidate of Placement has a form that this release cannot read."""


@attrs.frozen
class RequestedDevice:
    """One device that the flavor requests from Placement: one request group."""

    group: str  # the suffix of the request group, a key of ``mappings``
    resource_class: str


def find_template(
    candidates: Sequence[Candidate], units: Iterable[RequestedDevice]
) -> Candidate | None:
    """Find the first allocation candidate that has a provider for each device of *units*.

    :returns: None if there is no such candidate.
    """
    groups = {unit.group for unit in units}
    for candidate in candidates:
        mappings = candidate.get("mappings")
        if not isinstance(mappings, Mapping) or "allocations" not in candidate:
            continue
        if all(len(mappings.get(group) or ()) == 1 for group in groups):
            return candidate
    return None


def synthesise_candidate(
    template: Candidate, units: Sequence[RequestedDevice], providers: Mapping[str, str]
) -> dict[str, Any]:
    """Make a new allocation candidate that takes the devices of *units* from other providers.

    :param template: is not changed, nor is anything inside it.
    :param units: every device of the flavor.
    :param providers: request group -> UUID of the provider for its device.
        Several groups may name the same provider (functions of one adapter);
        their amounts add up.
    :raises CandidateError: an allocation is missing for an entry of the template's mappings.
    """
    # Only the changed parts are copied deeply, which are much less than the whole.
    candidate = dict(template)
    candidate["allocations"] = {
        provider: {**allocation, "resources": dict(allocation["resources"])}
        for provider, allocation in template["allocations"].items()
    }
    candidate["mappings"] = {
        group: list(provider_uuids) for group, provider_uuids in template["mappings"].items()
    }
    allocations: dict[str, Any] = candidate["allocations"]
    mappings: dict[str, list[str]] = candidate["mappings"]
    for unit in units:
        _remove_one_unit(allocations, mappings[unit.group][0], unit.resource_class)
    for unit in units:
        provider = providers[unit.group]
        resources = allocations.setdefault(provider, {"resources": {}})["resources"]
        resources[unit.resource_class] = resources.get(unit.resource_class, 0) + 1
        mappings[unit.group] = [provider]
    return candidate


def find_shared_providers(
    candidate: Candidate, units: Iterable[RequestedDevice], more: Iterable[str] = ()
) -> frozenset[str]:
    """Find providers that serve a device of *units* and another request group at the same time.

    :param more: request groups that count as those of *units*.
    :returns: UUIDs of the providers.

    ``group_policy=isolate`` forbids such providers. The group without a name does not count as a
    request group here: it may be spread, and has the host's own resources.
    """
    own_groups = {unit.group for unit in units}.union(more)
    taken: dict[str, set[str]] = {}
    for group, providers in candidate["mappings"].items():
        for provider in providers if group else ():
            taken.setdefault(provider, set()).add(group)
    return frozenset(
        provider for provider, groups in taken.items() if len(groups) > 1 and groups & own_groups
    )


def _remove_one_unit(allocations: dict[str, Any], provider: str, resource_class: str) -> None:
    """Remove one unit of *resource_class*; the provider too, once it is empty."""
    try:
        resources = allocations[provider]["resources"]
        amount = resources[resource_class]
    except (KeyError, TypeError):
        raise CandidateError(
            f"the allocation candidate maps {resource_class} to provider {provider} "
            "but allocates none there"
        ) from None
    if amount > 1:
        resources[resource_class] = amount - 1
        return
    del resources[resource_class]
    if not resources:
        del allocations[provider]
