# SPDX-License-Identifier: Apache-2.0
"""What of a node serves nobody, and no service says so. Pure.

Devices whose NUMA node is not known, devices beside GPUs that have no role, NVSwitches that
nobody runs: nothing fails, and servers do not get what the hardware has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_hpc.tenancy.nvlink import nvlink_sets
from nova_hpc.topology import classes
from nova_hpc.topology.level import Level, common_level
from nova_hpc.topology.model import Function, Node
from nova_hpc.topology.roles import Roles
from nova_hpc_tools.adopt.findings import Finding, some

#: ``[hpc]nvlink_backend`` where nobody activates partitions.
NOBODY: Final = "none"
_WRITE: Final = "nova-hpc configure --write /etc/nova/nova.conf.d --part compute --part common"
#: Class -> what a role of such devices is called, and that it is an adapter.
_KINDS: Final[Mapping[str, str]] = {
    "02": "nic",
    "0c06": "nic",
    "0108": "nvme",
    "12": "accel",
    "0b40": "accel",
}


def look(node: Node, roles: Roles, offered: Iterable[Function], own_roles: bool) -> list[Finding]:
    """What nobody says of the node's devices.

    :param offered: what servers can be given.
    :param own_roles: a file of the operator's own has ``[hpc]device_role``.
    """
    functions = tuple(offered)
    return [*_nowhere(node, functions), *_without_role(node, roles, functions, own_roles)]


def _nowhere(node: Node, offered: Iterable[Function]) -> Iterator[Finding]:
    """Where there is one NUMA node, nobody has to say which."""
    numbers = [numa.id for numa in node.numa_nodes if numa.cpus]
    lost = [each.address for each in offered if each.numa_node is None and each.unknown is None]
    if len(numbers) > 1 and lost:
        yield Finding(
            "numa-unknown",
            f"{some(lost)}: the firmware names no NUMA node, and the host has {len(numbers)}.",
            "Switch NUMA on in the firmware, or update it (ACPI: _PXM of the host bridges). Until "
            f"then echo N > /sys/bus/pci/devices/{lost[0]}/numa_node of each, at boot before "
            "nova-compute, with N of the socket that the slot is wired to; then "
            f"{_WRITE}, and restart nova-compute.",
        )


# --- without a role -----------------------------------------------------------------------


def _without_role(
    node: Node, roles: Roles, offered: Iterable[Function], own_roles: bool
) -> Iterator[Finding]:
    gpus = [each for each in offered if roles.role_of(each, node) == nvlink_sets.GPU_ROLE]
    seen: set[tuple[str, ...]] = set()
    for each in node.functions:
        kind = _kind(each)
        if kind is None or each.is_bridge or each.physical_function or each.unknown is not None:
            continue
        meant = _given(node, each)
        if roles.role_of(meant, node) or not _waits(node, each, gpus):
            continue
        entry = _entry(meant, kind)
        line = json.dumps(entry)
        if tuple(entry.values()) in seen:
            continue  # one line is for all of a product
        seen.add(tuple(entry.values()))
        places = some(
            other.address
            for other in node.functions
            if (other.vendor_id, other.product_id) == (each.vendor_id, each.product_id)
            and other.physical_function is None
            and _waits(node, other, gpus)
        )
        vfs = len(each.virtual_functions)
        how = f"with {vfs} virtual functions" if vfs else f"bound to {each.driver or 'no driver'}"
        name = classes.name_of(each.class_code)
        cure = (
            f"Add device_role = {line} to [hpc] of the file that has the others, then {_WRITE}"
            if own_roles
            else f"{_WRITE} --add-device-role '{line}'"
        )
        yield Finding(
            "role-none",
            f"{places} ({name} {each.vendor_id}:{each.product_id}, {how}), beside an offered "
            "GPU, has no role.",
            f"If it is for servers: {cure}, and restart nova-compute.",
        )


def _kind(function: Function) -> str | None:
    code = function.class_code or ""
    return next((word for prefix, word in _KINDS.items() if code.startswith(prefix)), None)


def _given(node: Node, function: Function) -> Function:
    """What servers would be given of it: its virtual functions, where it has some."""
    for address in function.virtual_functions:
        found = node.function(address)
        if found is not None:
            return found
    return function


def _waits(node: Node, function: Function, gpus: Iterable[Function]) -> bool:
    """Whether somebody has made it ready for servers; of adapters also: it is at a GPU's switch.

    A disk or an adapter on the host's driver farther away is the host's.
    """
    ready = bool(function.virtual_functions) or function.on_vfio
    near = Level.NUMA if ready else Level.SWITCH
    if not ready and not classes.is_adapter(function.class_code):
        return False
    return any(common_level([function.location, gpu.location]) <= near for gpu in gpus)


def _entry(function: Function, kind: str) -> dict[str, str]:
    vf = "vf" if function.physical_function else ""
    return {
        "role": f"{kind}{vf}-{function.vendor_id}",
        "vendor_id": function.vendor_id or "",
        "product_id": function.product_id or "",
        "dev_type": function.dev_type,
    }


# --- NVSwitches ---------------------------------------------------------------------------


def switches(
    node: Node, roles: Roles, offered: Iterable[Function], backend: str, hooks: Iterable[str]
) -> Iterator[Finding]:
    """NVSwitches that nobody runs, and partitions that two may start.

    :param backend: ``[hpc]nvlink_backend``.
    :param hooks: files of libvirt's hooks that start partitions.
    """
    scripts = tuple(hooks)
    given = {each.address for each in offered}
    found = [
        each for each in node.functions if roles.role_of(each, node) == nvlink_sets.SWITCH_ROLE
    ]
    for script in scripts if found or backend != NOBODY else ():
        restart = "and restart libvirtd and nova-compute."
        also = "" if backend != NOBODY else "set [hpc]nvlink_backend = fabric-manager, "
        yield Finding(
            "nvswitch-hook",
            f"{script} starts NVLink partitions, and nova-compute "
            f"{'does, too' if backend != NOBODY else 'knows nothing of them'}.",
            f"Take the partitions out of {script}, {also}{restart}",
        )
    idle = [each for each in found if each.address not in given]
    if not idle or scripts:
        return
    places = some(each.address for each in idle)
    unbound = [each.address for each in idle if each.driver is None]
    gpus = any(roles.role_of(each, node) == nvlink_sets.GPU_ROLE for each in node.functions)
    if not gpus:
        yield Finding(
            "nvswitch-idle",
            f"{places}: NVSwitches, and no GPU that they could link.",
            "See whether the GPUs of the board are there: lspci -nn | grep 10de; and whether "
            "[hpc]device_role gives them the role gpu.",
        )
    elif backend == NOBODY:
        drivers = " and ".join(sorted({each.driver or "no driver" for each in idle}))
        yield Finding(
            "nvswitch-idle",
            f"{places}: NVSwitches on {drivers}, and [hpc]nvlink_backend is {NOBODY}: nobody runs "
            "them.",
            "Run NVIDIA Fabric Manager with FABRIC_MODE=1 on the node or in a service machine, and "
            "set [hpc]nvlink_backend = fabric-manager; or, where a server gets all GPUs of the "
            f"board, {_WRITE} --offer-switches.",
        )
    elif unbound:
        yield Finding(
            "nvswitch-idle",
            f"{some(unbound)}: NVSwitches on no driver, so [hpc]nvlink_backend = {backend} has "
            "nothing to run.",
            f"Bind them to NVIDIA's driver where the manager runs on the node: modprobe nvidia; or "
            f"to vfio-pci for its service machine: driverctl set-override {unbound[0]} vfio-pci",
        )
