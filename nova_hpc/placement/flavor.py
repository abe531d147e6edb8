# SPDX-License-Identifier: Apache-2.0
"""The ``hpc:`` keys of flavors: their words, and the rules between them.

Nova's own extra specs decide about a server's resources. The ``hpc:`` keys only decide
about their arrangement. Nova validates extra specs one key at a time, and only for new
clients, so :func:`check_flavor` is called again at each use of a flavor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement import grouping
from nova_hpc.placement.group_isolation import GROUP_POLICY, ISOLATE
from nova_hpc.placement.grouping import FlavorError as FlavorError
from nova_hpc.placement.model import DeviceGroup, Nvlink, Ports, Request, Want, WantedCell
from nova_hpc.placement.solver.demand import MAX_NAMES
from nova_hpc_common import group_keys
from nova_hpc_common.level import AffinityPolicy, Level

PREFIX: Final = "hpc:"
AFFINITY: Final = "hpc:affinity"
AFFINITY_POLICY: Final = "hpc:affinity_policy"
GROUP: Final = grouping.GROUP
NVLINK: Final = "hpc:nvlink"
GUEST_TOPOLOGY: Final = "hpc:guest_topology"
FABRIC: Final = group_keys.FABRIC
FABRIC_POLICY: Final = group_keys.FABRIC_POLICY
SHARED_MEMORY: Final = group_keys.SHARED_MEMORY
SHARED_MEMORY_POLICY: Final = group_keys.SHARED_MEMORY_POLICY
MOVABLE: Final = "hpc:movable"
PREEMPTIBLE: Final = "hpc:preemptible"
YES: Final = "yes"

#: Nova's own key, and the policy that Nova follows without it.
NUMA_POLICY: Final = "hw:pci_numa_affinity_policy"
LEGACY: Final = "legacy"
#: Nova's key for devices of Cyborg (nova/accelerator/cyborg.py).
DEVICE_PROFILE: Final = "accel:device_profile"

#: The legal words of each key that takes one word.
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    AFFINITY: tuple(level.word for level in Level),
    AFFINITY_POLICY: tuple(policy.value for policy in AffinityPolicy),
    NVLINK: tuple(need.value for need in Nvlink),
    GUEST_TOPOLOGY: ("mirror", "numa", "flat"),
    FABRIC: ("sub_domain", "nvlink_domain", "leaf", "block", "spine"),
    FABRIC_POLICY: tuple(policy.value for policy in AffinityPolicy),
    SHARED_MEMORY_POLICY: tuple(policy.value for policy in AffinityPolicy),
    MOVABLE: (YES, "no"),
    PREEMPTIBLE: (YES, "no"),
}

#: The shared memory is at most the server's memory divided by this number.
SHARED_FRACTION: Final = 4

#: Cells of one size are interchangeable; every further size multiplies the
#: mappings to compare.
MAX_SIZES: Final = 8

FABRIC_KEYS: Final = (FABRIC, FABRIC_POLICY)
SHARED_MEMORY_KEYS: Final = (SHARED_MEMORY, SHARED_MEMORY_POLICY)
#: Keys that a server without devices can have.
_DEVICELESS: Final = (*FABRIC_KEYS, *SHARED_MEMORY_KEYS, MOVABLE, PREEMPTIBLE)
KEYS: Final = (AFFINITY, AFFINITY_POLICY, GROUP, NVLINK, GUEST_TOPOLOGY, *_DEVICELESS)


@attrs.frozen
class Fabric:
    """The ``hpc:fabric`` keys of a flavor: how near the members of a server group have to be."""

    #: A word of WORDS[FABRIC].
    level: str
    policy: AffinityPolicy = AffinityPolicy.REQUIRED


@attrs.frozen
class SharedMemoryWish:
    """The ``hpc:shared_memory`` keys of a flavor: memory shared by a server group on one host."""

    #: MiB that the server itself contributes.
    mib: int
    policy: AffinityPolicy = AffinityPolicy.PREFERRED


def has_hpc_keys(extra_specs: Mapping[str, str]) -> bool:
    """Whether the flavor has keys for the arrangement of devices.

    ``hpc:fabric``, ``hpc:shared_memory``, ``hpc:movable`` and ``hpc:preemptible`` do not count: a
    server without devices can have them.
    """
    return any(key.startswith(PREFIX) and key not in _DEVICELESS for key in extra_specs)


def has_fabric_keys(extra_specs: Mapping[str, str]) -> bool:
    """Whether the flavor has a key for the nearness of the members of a server group."""
    return any(key in extra_specs for key in FABRIC_KEYS)


def read_fabric(extra_specs: Mapping[str, str]) -> Fabric | None:
    """Read the flavor's requirement for the members of a server group; None if it has none.

    :raises FlavorError: for the user: the key, its value, and the remedy.
    """
    for key in FABRIC_KEYS:
        if key in extra_specs:
            check_value(key, extra_specs[key])
    if FABRIC in extra_specs:
        policy = AffinityPolicy(extra_specs.get(FABRIC_POLICY, AffinityPolicy.REQUIRED.value))
        return Fabric(extra_specs[FABRIC], policy)
    if FABRIC_POLICY in extra_specs:
        raise FlavorError(
            f"{FABRIC_POLICY} is set without {FABRIC}; add it, one of {', '.join(WORDS[FABRIC])}"
        )
    return None


def has_shared_memory_keys(extra_specs: Mapping[str, str]) -> bool:
    """Whether the flavor has a key for memory that members of a server group share."""
    return any(key in extra_specs for key in SHARED_MEMORY_KEYS)


def read_shared_memory(
    extra_specs: Mapping[str, str], memory_mib: int | None = None
) -> SharedMemoryWish | None:
    """Read the flavor's request for memory that a server group shares; None if it has none.

    :param memory_mib: the flavor's memory, if the two are to be compared.
    :raises FlavorError: for the user: the key, its value, and the remedy.
    """
    for key in SHARED_MEMORY_KEYS:
        if key in extra_specs:
            check_value(key, extra_specs[key])
    if SHARED_MEMORY in extra_specs:
        mib = int(extra_specs[SHARED_MEMORY])
        if memory_mib is not None and mib * SHARED_FRACTION > memory_mib:
            raise FlavorError(
                f"{SHARED_MEMORY} is {mib} MiB, more than a quarter of the flavor's memory of "
                f"{memory_mib} MiB; set it to {memory_mib // SHARED_FRACTION // 2 * 2} or less"
            )
        word = extra_specs.get(SHARED_MEMORY_POLICY, AffinityPolicy.PREFERRED.value)
        return SharedMemoryWish(mib, AffinityPolicy(word))
    if SHARED_MEMORY_POLICY in extra_specs:
        raise FlavorError(
            f"{SHARED_MEMORY_POLICY} is set without {SHARED_MEMORY}; add it, the MiB that each "
            "server brings, or remove it"
        )
    return None


def check_value(key: str, value: str) -> None:
    """Check the name and the value of one ``hpc:`` key, without the other keys.

    :raises FlavorError: an unknown ``hpc:`` key, or an invalid value.
    """
    if key not in KEYS:
        raise FlavorError(
            f"{grouping.quote_value(key)} is no known key; the hpc: keys are {', '.join(KEYS)}"
        )
    if not isinstance(value, str):
        raise FlavorError(f"{key} must be a string, not {type(value).__name__}")
    if key == GROUP:
        grouping.parse_group_terms(value)
        return
    if key == SHARED_MEMORY:
        _check_shared_mib(value)
        return
    if value not in WORDS[key]:
        raise FlavorError(
            f"{key} is {grouping.quote_value(value)}; it must be one of {', '.join(WORDS[key])}"
        )


def _check_shared_mib(value: str) -> None:
    if group_keys.parse_shared_mib(value) is None:
        raise FlavorError(
            f"{SHARED_MEMORY} is {grouping.quote_value(value)}; it must be an even number of MiB "
            f"from {group_keys.SHARED_LEAST} to {group_keys.SHARED_MOST}"
        )


def check_flavor(
    extra_specs: Mapping[str, str],
    wants: Sequence[Want],
    cells: Sequence[WantedCell],
    roles: Mapping[str, str] | None = None,
    numa_policy: str | None = None,
) -> None:
    """Check all ``hpc:`` keys of a flavor, and the rules between them.

    The parameters and errors are the same as for :func:`build_request`.
    """
    build_request(extra_specs, wants, cells, roles, numa_policy)


def build_request(
    extra_specs: Mapping[str, str],
    wants: Sequence[Want],
    cells: Sequence[WantedCell],
    roles: Mapping[str, str] | None = None,
    numa_policy: str | None = None,
    ports: Sequence[Ports] = (),
    port_roles: Collection[str] = (),
) -> Request:
    """Turn a flavor into a request of the placement engine.

    :param extra_specs: of the flavor; only the ``hpc:`` keys,
        ``hw:pci_numa_affinity_policy`` and ``group_policy`` are read
    :param wants: the devices that Nova read from ``pci_passthrough:alias``
    :param cells: the guest's NUMA cells, () if it has none
    :param roles: Want.key -> role of its devices; a term of ``hpc:group``
        names an alias first, otherwise a role; devices of another role are refused
    :param numa_policy: the policy that Nova will follow, if the caller
        has it (an image or an alias can set it, too); otherwise it is read
        from *extra_specs*
    :param ports: Neutron's direct ports of the server, named by the role of their
        network
    :param port_roles: the roles that networks can have, for ``hpc:group``
    :raises FlavorError: for the user: the key, its value, and the remedy
    """
    for key in sorted(extra_specs):
        if key.startswith(PREFIX):
            check_value(key, extra_specs[key])
    if AFFINITY not in extra_specs:
        present = ", ".join(sorted(key for key in extra_specs if key.startswith(PREFIX)))
        raise FlavorError(
            f"{AFFINITY} is missing ({present or 'no hpc: key'} is set); "
            f"add it, one of {', '.join(WORDS[AFFINITY])}"
        )
    if extra_specs.get(DEVICE_PROFILE):
        # Cyborg binds its devices after the choice of the host, and Nova publishes no place.
        raise FlavorError(
            f"{DEVICE_PROFILE}={grouping.quote_value(extra_specs[DEVICE_PROFILE])} requests "
            "Cyborg devices, and Nova gets their places only after Cyborg has bound them, so "
            f"{AFFINITY} cannot place them; request all devices with pci_passthrough:alias, or "
            "remove the hpc: keys"
        )
    level = Level.from_word(extra_specs[AFFINITY])
    policy = AffinityPolicy(extra_specs.get(AFFINITY_POLICY, AffinityPolicy.REQUIRED.value))
    if not wants and not ports:
        raise FlavorError(
            f"{AFFINITY}={level.word} places devices, but the flavor requests none; add "
            "pci_passthrough:alias, boot the server with direct ports, or remove the hpc: keys"
        )
    grouping.check_wants(wants)
    sizes = {(cell.dedicated_cpus, cell.memory_kib, cell.page_kib) for cell in cells}
    if len(sizes) > MAX_SIZES:
        raise FlavorError(
            f"the guest has NUMA cells of {len(sizes)} different sizes (hw:numa_cpus, "
            f"hw:numa_mem); with {AFFINITY} at most {MAX_SIZES} are supported"
        )
    effective = numa_policy or extra_specs.get(NUMA_POLICY) or LEGACY
    _check_numa_policy(level, policy, effective, bool(cells))
    words = grouping.GroupWords.of(extra_specs.get(GROUP), wants, roles or {}, port_roles)
    if wants:
        groups = grouping.build_groups(
            words.devices,
            wants,
            len(cells),
            roles or {},
            # Groups that span cells cannot be near both of them.
            strict=policy is AffinityPolicy.REQUIRED and level <= Level.NUMA,
            affinity=f"{AFFINITY}={level.word}",
        )
    elif words.devices:
        raise FlavorError(
            f"{GROUP} names {grouping.quote_value(next(iter(words.devices)))}, and the flavor "
            "requests no device"
        )
    else:
        groups = (DeviceGroup({}),) * (words.least(ports) if words.ports else max(len(cells), 1))
    dealt = words.deal(ports, len(groups))
    names = {want.name for want in wants}, {port_kind.name for port_kind in dealt}
    if len(names[0]) + len(names[1]) > MAX_NAMES:
        raise FlavorError(
            f"the flavor has {len(names[0])} aliases and its ports {len(names[1])} roles; "
            f"together at most {MAX_NAMES} are supported"
        )
    if names[0] & names[1]:
        # The alias has the word, so the sentences about the ports need another one.
        dealt = tuple(
            attrs.evolve(port_kind, name=f"direct {port_kind.name}") for port_kind in dealt
        )
    return Request(
        wants=tuple(wants),
        groups=groups,
        level=level,
        policy=policy,
        cells=tuple(cells),
        on_cells=bool(cells) and effective == "required",
        nvlink=Nvlink(extra_specs.get(NVLINK, Nvlink.NONE.value)),
        # Nova ignores a word that it does not recognise, with a warning.
        apart=extra_specs.get(GROUP_POLICY) == ISOLATE,
        roles=roles or {},
        ports=dealt,
        numa_policy=effective,
        mirror=extra_specs.get(GUEST_TOPOLOGY) == WORDS[GUEST_TOPOLOGY][0],
    )


def numa_policies(level: Level, policy: AffinityPolicy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return Nova's NUMA policies for a level: those that allow it, and those that contradict it.

    Nova drops devices off the guest's cells under ``legacy`` and ``required`` and those off its
    sockets under ``socket``; without cells it drops none, so then only open contradictions are
    refused.
    """
    if policy is AffinityPolicy.PREFERRED or level is Level.HOST:
        return ("preferred",), ("required",)
    if level is Level.SOCKET:
        return ("socket", "preferred"), ("required",)
    return ("required", "preferred"), ("socket",)


def is_numa_policy_compatible(
    level: Level, policy: AffinityPolicy, effective: str, has_cells: bool
) -> bool:
    """Whether Nova's NUMA policy *effective* leaves devices that can reach *level*.

    :param effective: the value of ``hw:pci_numa_affinity_policy`` that Nova follows.
    :param has_cells: whether the guest has NUMA cells.
    """
    good, bad = numa_policies(level, policy)
    return effective not in bad and (not has_cells or effective in good)


def _check_numa_policy(
    level: Level, policy: AffinityPolicy, effective: str, has_cells: bool
) -> None:
    """Refuse a contradiction between ``hpc:affinity`` and Nova's own NUMA policy."""
    if is_numa_policy_compatible(level, policy, effective, has_cells):
        return
    wish = f"{AFFINITY}={level.word}"
    if policy is AffinityPolicy.PREFERRED:
        wish += f" with {AFFINITY_POLICY}=preferred"
    default = " (Nova's default)" if effective == LEGACY else ""
    raise FlavorError(
        f"{wish} needs {NUMA_POLICY} to be {' or '.join(numa_policies(level, policy)[0])}, "
        f"it is {grouping.quote_value(effective)}{default}"
    )
