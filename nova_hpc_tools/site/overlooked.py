# SPDX-License-Identifier: Apache-2.0
"""Hardware of a node that no server can use, and that no service reports. Pure.

Examples are devices with an unknown NUMA node, devices near GPUs without a role, and NVSwitches
without a manager. Nothing fails, but servers do not get the hardware.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_hpc.topology import classes
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.nvlink import SWITCH_ROLE
from nova_hpc.topology.roles import Roles
from nova_hpc_common.level import Level, common_level
from nova_hpc_tools.site import nvlink_sets, pci_classes
from nova_hpc_tools.site.cures import (
    DECLARATION,
    RESTART_COMPUTE,
    WRITE,
    CommandRun,
    CuredCommand,
    CuredService,
    DoctorCure,
    ServiceRestart,
    place_option,
)
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few

#: ``[hpc]nvlink_backend`` if nova-compute does not activate partitions.
NOBODY: Final = "none"
#: Prefix of a class -> name for a role of such devices.
_KINDS: Final[Mapping[str, str]] = {
    "02": "nic",
    "0c06": "nic",
    "12": "accel",
    "0b40": "accel",
}


def find_overlooked_devices(
    node: Node, roles: Roles, offered: Iterable[PciFunction], own_roles: bool
) -> list[DoctorFinding]:
    """Find devices of the node without a NUMA node or a role, which no service reports.

    :param offered: the functions that servers can get.
    :param own_roles: a file of the operator has ``[hpc]device_role``.
    """
    functions = tuple(offered)
    return [
        *_check_numa_nodes(node, functions),
        *_check_roleless_devices(node, roles, functions, own_roles),
    ]


def _check_numa_nodes(node: Node, offered: Iterable[PciFunction]) -> Iterator[DoctorFinding]:
    """Find devices without a NUMA node; a host with only one NUMA node has no such fault."""
    numbers = [numa.id for numa in node.numa_nodes if numa.cpus]
    lost = [
        function.address
        for function in offered
        if function.numa_node is None and function.unknown is None
    ]
    if len(numbers) > 1 and lost:
        yield DoctorFinding(
            "numa-unknown",
            f"{join_first_few(lost)}: the firmware names no NUMA node, and the host has "
            f"{len(numbers)}.",
            DoctorCure.of(
                "Switch NUMA on in the firmware, or update it (ACPI: _PXM of the host bridges). "
                f"Until then echo N > /sys/bus/pci/devices/{lost[0]}/numa_node of each, at boot "
                "before nova-compute, with N of the socket that the slot is wired to; then ",
                WRITE,
                ", and ",
                RESTART_COMPUTE,
                ".",
            ),
        )


def list_offered_gpus(
    node: Node, roles: Roles, offered: Iterable[PciFunction]
) -> list[PciFunction]:
    """Return the GPUs among the devices that servers can be given."""
    return [gpu for gpu in offered if roles.role_of(gpu, node) == nvlink_sets.GPU_ROLE]


# --- without a role -----------------------------------------------------------------------


def _check_roleless_devices(
    node: Node, roles: Roles, offered: Iterable[PciFunction], own_roles: bool
) -> Iterator[DoctorFinding]:
    gpus = list_offered_gpus(node, roles, offered)
    seen: set[tuple[str, ...]] = set()
    for function in node.functions:
        kind = _kind_word_of(function)
        if (
            kind is None
            or function.is_bridge
            or function.physical_function
            or function.unknown is not None
        ):
            continue
        meant = _part_for_servers(node, function)
        if roles.role_of(meant, node) or not awaits_servers(function, gpus):
            continue
        entry = _role_entry_of(meant, kind)
        line = json.dumps(entry)
        if tuple(entry.values()) in seen:
            continue  # one line is for all of a product
        seen.add(tuple(entry.values()))
        places = join_first_few(
            sibling.address
            for sibling in node.functions
            if (sibling.vendor_id, sibling.product_id) == (function.vendor_id, function.product_id)
            and sibling.physical_function is None
            and awaits_servers(sibling, gpus)
        )
        vfs = len(function.virtual_functions)
        how = (
            f"with {vfs} virtual functions" if vfs else f"bound to {function.driver or 'no driver'}"
        )
        name = pci_classes.class_name_of(function.class_code)
        told = f"device_role = {line} to [hpc] of the file that has the others"
        cure = (
            DoctorCure.of(
                "Add ", place_option("hpc", "device_role", line, called=told), ", then ", WRITE
            )
            if own_roles
            else CommandRun(CuredCommand.CONFIGURE_NODE, f"--add-device-role '{line}'")
        )
        yield DoctorFinding(
            "role-none",
            f"{places} ({name} {function.vendor_id}:{function.product_id}, {how}), "
            f"beside an offered "
            "GPU, has no role.",
            DoctorCure.of("If it is for servers: ", cure, ", and ", RESTART_COMPUTE, "."),
        )


def _kind_word_of(function: PciFunction) -> str | None:
    code = function.class_code or ""
    return next((word for prefix, word in _KINDS.items() if code.startswith(prefix)), None)


def _part_for_servers(node: Node, function: PciFunction) -> PciFunction:
    """Return the part of a device that servers would get: its first virtual function, or itself."""
    for address in function.virtual_functions:
        virtual_function = node.function(address)
        if virtual_function is not None:
            return virtual_function
    return function


def awaits_servers(function: PciFunction, gpus: Iterable[PciFunction]) -> bool:
    """Whether a function near GPUs is ready for servers, or an adapter is at a GPU's switch.

    A function is ready if it is on a VFIO driver or has virtual functions. A disk on the host's
    driver, and an adapter on it farther from the GPUs, are for the host.
    """
    ready = bool(function.virtual_functions) or function.on_vfio
    near = Level.NUMA if ready else Level.SWITCH
    if not ready and not classes.is_adapter(function.class_code):
        return False
    return any(common_level([function.location, gpu.location]) <= near for gpu in gpus)


def _role_entry_of(function: PciFunction, kind: str) -> dict[str, str]:
    vf = "vf" if function.physical_function else ""
    return {
        "role": f"{kind}{vf}-{function.vendor_id}",
        "vendor_id": function.vendor_id or "",
        "product_id": function.product_id or "",
        "dev_type": function.dev_type,
    }


# --- NVSwitches ---------------------------------------------------------------------------


def find_idle_nvswitches(
    node: Node, roles: Roles, offered: Iterable[PciFunction], backend: str, hooks: Iterable[str]
) -> Iterator[DoctorFinding]:
    """Find NVSwitches without a manager, and partitions that two programs may start.

    :param backend: ``[hpc]nvlink_backend``.
    :param hooks: files of libvirt's hooks that start partitions.
    """
    scripts = tuple(hooks)
    given = {function.address for function in offered}
    nvswitches = [
        function for function in node.functions if roles.role_of(function, node) == SWITCH_ROLE
    ]
    for script in scripts if nvswitches or backend != NOBODY else ():
        services = (CuredService.LIBVIRT, CuredService.COMPUTE)
        told = ("set ", place_option("hpc", "nvlink_backend", "fabric-manager"), ", ")
        yield DoctorFinding(
            "nvswitch-hook",
            f"{script} starts NVLink partitions, and nova-compute "
            f"{'does, too' if backend != NOBODY else 'has no record of them'}.",
            DoctorCure.of(
                f"Take the partitions out of {script}, ",
                *(told if backend == NOBODY else ()),
                "and ",
                ServiceRestart(services, reads_settings=backend == NOBODY),
                ".",
            ),
        )
    idle = [nvswitch for nvswitch in nvswitches if nvswitch.address not in given]
    if not idle or scripts:
        return
    places = join_first_few(nvswitch.address for nvswitch in idle)
    unbound = [nvswitch.address for nvswitch in idle if nvswitch.driver is None]
    gpus = any(roles.role_of(function, node) == nvlink_sets.GPU_ROLE for function in node.functions)
    if not gpus:
        yield DoctorFinding(
            "nvswitch-idle",
            f"{places}: NVSwitches, and no GPU that they could link.",
            DoctorCure.of(
                "See whether the GPUs of the board are there: lspci -nn | grep 10de; and whether ",
                place_option("hpc", "device_role"),
                " gives them the role gpu.",
            ),
        )
    elif backend == NOBODY:
        drivers = " and ".join(sorted({nvswitch.driver or "no driver" for nvswitch in idle}))
        yield DoctorFinding(
            "nvswitch-idle",
            f"{places}: NVSwitches on {drivers}, and [hpc]nvlink_backend is {NOBODY}: no Fabric "
            "Manager runs them.",
            DoctorCure.of(
                "Run NVIDIA Fabric Manager with FABRIC_MODE=1 on the node or in a service machine, "
                "and set ",
                place_option("hpc", "nvlink_backend", "fabric-manager"),
                "; or, where a server gets all GPUs of the board, write offer_switches: true into ",
                DECLARATION,
                ", then ",
                WRITE,
                ".",
            ),
        )
    elif unbound:
        yield DoctorFinding(
            "nvswitch-idle",
            f"{join_first_few(unbound)}: NVSwitches on no driver, so [hpc]nvlink_backend "
            f"= {backend} has "
            "nothing to run.",
            f"Bind them to NVIDIA's driver where the manager runs on the node: modprobe nvidia; or "
            f"to vfio-pci for its service machine: driverctl set-override {unbound[0]} vfio-pci",
        )
