# SPDX-License-Identifier: Apache-2.0
"""The PCIe tree of a server's guest: the flavor's mode, the record, the plan.

The record (``hpc_guest_abi``) is made when a server first starts with ``hpc:``
keys. It fixes the rules for the server's whole life. It includes the flavor's mode,
which changes only with a resize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import nova.conf
from nova import objects
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from nova_hpc.from_nova.claim import ServerClaim
from nova_hpc.from_nova.fabric_position import FabricPosition
from nova_hpc.from_nova.port_partitions import read_port_partitions
from nova_hpc.from_nova.server import read_guest_cells
from nova_hpc.guest_tree import (
    Abi,
    AbiError,
    PlanError,
    TopologyMode,
    TreeDevice,
    TreePlan,
    needs,
    windows,
)
from nova_hpc.guest_tree import plan_guest_pci_tree as make_plan
from nova_hpc.placement import flavor as flavors
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.wire import guest_abi
from nova_hpc_common.level import Location
from virt_driver_patches.domain import address_space, fwcfg, pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomainXml
from virt_driver_patches.driver import device_checks, peer_reading
from virt_driver_patches.driver.reading import NodeReading, ReadingSource
from virt_driver_patches.errors import ClaimRefused

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


def mode_of(extra_specs: Mapping[str, str]) -> TopologyMode:
    """Return the flavor's mode. Other code refuses an invalid value; here it counts as flat."""
    word = extra_specs.get(flavors.GUEST_TOPOLOGY, TopologyMode.FLAT.value)
    return (
        TopologyMode(word) if word in flavors.WORDS[flavors.GUEST_TOPOLOGY] else TopologyMode.FLAT
    )


def load_stored_abi(instance: objects.Instance) -> Abi | None:
    """Return the record of the server's hardware; None if it has none: Nova's own hardware.

    :raises ClaimRefused: this release must not start a server with this record.
    """
    try:
        return guest_abi.read_guest_abi(instance.system_metadata.get(guest_abi.KEY))
    except AbiError as error:
        LOG.error("%s", error, instance=instance)
        raise ClaimRefused(str(error)) from error


def next_abi_of(
    instance: objects.Instance, extra_specs: Mapping[str, str], clique: bool
) -> Abi | None:
    """Return the record that a server has from its next start on.

    :param extra_specs: those of its new flavor.
    :param clique: whether a server without a record shows cliques.
    :returns: None for a flavor without ``hpc:`` keys.
    :raises ClaimRefused: its present record cannot be read.
    """
    if not flavors.has_hpc_keys(extra_specs):
        return None
    before = load_stored_abi(instance)
    mode = mode_of(extra_specs)
    if before is None:
        return Abi(mode=mode, clique=clique)
    return Abi(mode=mode, clique=before.clique, version=before.version)


def record_guest_abi(instance: objects.Instance, abi: Abi | None) -> None:
    """Store *abi* with the server; Nova saves it together with the server's state."""
    if abi is not None:
        instance.system_metadata[guest_abi.KEY] = abi.dumps()
    else:
        instance.system_metadata.pop(guest_abi.KEY, None)


@attrs.frozen
class GuestLimits:
    """Limits that this node's processors and libvirt set for its guests."""

    #: Width of their processors' physical addresses, in bits; None if it is unknown, or
    #: as large as needed.
    bits: int | None
    #: Whether libvirt is of this version or newer.
    libvirt: Callable[[tuple[int, int, int]], bool]


def check_guest_topology(
    instance: objects.Instance,
    claim: ServerClaim,
    reading: NodeReading,
    abi: Abi | None,
    limits: GuestLimits,
) -> None:
    """Refuse devices that the guest cannot show as requested, before Nova builds anything.

    :raises ClaimRefused: with a text for the server's user.
    """
    if abi is None or not claim.addresses:
        return
    machine = libvirt_utils.get_machine_type(instance.image_meta)
    if not address_space.is_x86(machine):
        _check_window(machine, _tree_devices_of(reading.node, claim.addresses))
    elif pcie_tree.makes_room(abi):
        memory = instance.flavor.memory_mb << 20
        if abi.segment is not None:
            memory += abi.segment.file_bytes
        _check_room(memory, _tree_devices_of(reading.node, claim.addresses), limits)
    if abi.mode is TopologyMode.FLAT:
        return
    try:
        pcie_tree.check_machine(machine, abi.mode.value)
    except pcie_tree.MachineError as error:
        raise ClaimRefused(str(error)) from error
    plan = _plan_guest_tree(instance, claim, reading.node, abi, claim.addresses)
    if abi.clique and plan.cliques and not limits.libvirt(needs.OVERRIDE):
        raise ClaimRefused(
            "The GPUs of the server show their GPUDirect cliques, which needs libvirt "
            f"{needs.format_dotted_version(needs.OVERRIDE)} or newer on the node: switch off "
            "[hpc]gpudirect_clique there for new servers, or use a flavor with "
            "hpc:guest_topology=flat."
        )


def _check_window(machine: str | None, devices: Iterable[TreeDevice]) -> None:
    """Refuse devices whose memory does not fit into a guest of another architecture."""
    needed = windows.pack_spans(device.span for device in devices)
    if needed.size > windows.ARM_WINDOW:
        raise ClaimRefused(
            f"The memory of the server's devices takes {needed.size >> 30} GiB of address space, "
            f"and a guest of the machine type {machine} has {windows.ARM_WINDOW >> 30} GiB: use a "
            "flavor with fewer or smaller devices."
        )


def _check_room(memory: int, devices: Iterable[TreeDevice], limits: GuestLimits) -> None:
    """Refuse devices whose memory the guest's processors could not address.

    Otherwise QEMU or libvirt would refuse the guest, with messages that name no cure.

    :param memory: the most that the guest can have, in bytes.
    """
    room = windows.window_size_of(windows.pack_spans(device.span for device in devices))
    if room <= windows.DEFAULT_WINDOW:
        return
    needed = windows.address_bits_of(memory, room)
    if needed > windows.DEFAULT_BITS and not limits.libvirt(needs.MAXPHYSADDR):
        raise ClaimRefused(
            f"The memory of the server's devices takes {room >> 30} GiB of address space, which "
            f"needs libvirt {needs.format_dotted_version(needs.MAXPHYSADDR)} or newer on the node: "
            "use a flavor with fewer or smaller devices."
        )
    if limits.bits is not None and needed > limits.bits:
        raise ClaimRefused(
            f"The memory of the server's devices takes {room >> 30} GiB of address space, which "
            f"needs processors with {needed} bits of physical addresses, and these have "
            f"{limits.bits}: use a flavor with fewer or smaller devices."
        )


def check_restart(instance: objects.Instance, source: ReadingSource, limits: GuestLimits) -> None:
    """Refuse the restart of a server whose hardware cannot be built again.

    :raises ClaimRefused: with a text for the server's user.
    """
    abi = load_stored_abi(instance)
    if abi is not None and abi.mode is not TopologyMode.FLAT:
        check_guest_topology(instance, ServerClaim.of(instance), source.read(), abi, limits)


def arrange_recorded_tree(
    domain: GuestDomainXml, instance: objects.Instance, source: ReadingSource
) -> None:
    """Build the tree of the server's record in the domain that Nova has written.

    :raises ClaimRefused: this is not possible.
    """
    abi = load_stored_abi(instance)
    addresses = [address for address, _ in domain.passed_through()]
    if abi is None or not addresses:
        return
    node = source.lately().node
    if abi.mode is TopologyMode.FLAT:
        pcie_tree.make_room(domain, _tree_devices_of(node, addresses), abi)
        return
    plan = _plan_guest_tree(instance, ServerClaim.of(instance), node, abi, addresses)
    try:
        pcie_tree.arrange_pcie_tree(domain, plan, abi)
    except pcie_tree.MachineError as error:
        raise ClaimRefused(str(error)) from error


def tell_guest_topology(
    domain: GuestDomainXml,
    instance: objects.Instance,
    source: ReadingSource,
    where: FabricPosition,
    shared: Mapping[str, Any] | None = None,
    network_info: Iterable[Mapping[str, Any]] | None = None,
) -> None:
    """Add the devices' places to the finished domain, and the node's place in the fabric.

    A server without a record was started by Nova alone and gets no document.
    Errors are only logged: a missing document must not stop the server.

    :param where: the node's place in the fabric.
    :param shared: description of the memory that the guest shares; None if the flavor
        requests none.
    :param network_info: Nova's view of the server's ports.
    """
    try:
        abi = load_stored_abi(instance)
        if abi is None or not (domain.passed_through() or where.domains or shared):
            return
        reading = source.lately()
        claim = ServerClaim.of(instance)
        places = device_checks.claimed_places_of(claim, reading)
        roles = {address: tags.role for address, tags in places.items() if tags.role}
        cells = read_guest_cells(instance.numa_topology)
        groups = device_checks.claimed_groups_of(claim, reading) if claim.ports else {}
        node = peer_reading.add_peer_registers(
            CONF, reading, [address for address, _ in domain.paths()]
        )
        fwcfg.tell_guest_devices(
            domain,
            node,
            abi.mode.value,
            cells,
            roles,
            groups=groups,
            fabric=where.domains,
            rails=where.rails_of(reading.node, claim.addresses),
            wish=peer_reading.configured_wish_of(CONF),
            shared=shared,
            partitions=read_port_partitions(network_info or ()),
        )
    except Exception:
        LOG.exception("The guest is not told where its devices sit", instance=instance)


def tell_guest_segment(
    domain: GuestDomainXml, instance: objects.Instance, shared: Mapping[str, Any]
) -> None:
    """Describe the shared memory to a guest without ``hpc:`` devices, or why it has none.

    Errors are only logged.
    """
    try:
        cells = read_guest_cells(instance.numa_topology)
        mode = TopologyMode.FLAT.value
        # The document omits devices that Nova gives without this project.
        fwcfg.tell_guest_devices(domain, Node(""), mode, cells, {}, shared=shared)
    except Exception:
        LOG.exception("The guest is not told what memory it shares", instance=instance)


def _plan_guest_tree(
    instance: objects.Instance, claim: ServerClaim, node: Node, abi: Abi, addresses: Iterable[str]
) -> TreePlan:
    cells = {cell.host_node: cell.id for cell in claim.server.cells if cell.host_node is not None}
    try:
        return make_plan(_tree_devices_of(node, addresses), cells, abi)
    except PlanError as error:
        LOG.warning("The guest's PCIe tree is refused: %s", error.operator, instance=instance)
        raise ClaimRefused(str(error)) from error


def _tree_devices_of(node: Node, addresses: Iterable[str]) -> list[TreeDevice]:
    return [_tree_device_of(address, node.function(address)) for address in addresses]


def _tree_device_of(address: str, function: PciFunction | None) -> TreeDevice:
    if function is None:
        return TreeDevice(address=address, location=Location())
    return TreeDevice(
        address=address,
        location=function.location,
        span=windows.span_of_bars(function.bars),
        clique=needs.has_clique(function),
    )
