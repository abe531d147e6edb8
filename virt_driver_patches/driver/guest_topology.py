# SPDX-License-Identifier: Apache-2.0
"""Which PCIe tree a server gets: the flavor's word, the record, the plan.

The record (``hpc_guest_abi``) is made when a server starts for the first time
here. It fixes the rules for as long as the server lives; the word of the
flavor is part of it, and changes with a resize only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
import nova.conf
from nova import objects
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Claim
from nova_hpc.from_nova.fabric_position import Whereabouts
from nova_hpc.from_nova.server import guest_cells
from nova_hpc.guest_tree import Abi, AbiError, Device, Mode, Plan, PlanError, needs, windows
from nova_hpc.guest_tree import plan as make_plan
from nova_hpc.placement import flavor as flavors
from nova_hpc.topology.level import Location
from nova_hpc.topology.model import Function, Node
from nova_hpc.wire import guest_abi
from virt_driver_patches.domain import address_space, fwcfg, pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomain
from virt_driver_patches.driver import device_checks as before_start
from virt_driver_patches.driver import peer_reading
from virt_driver_patches.driver.reading import Reading, Source
from virt_driver_patches.errors import ClaimRefused

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


def mode_of(extra_specs: Mapping[str, str]) -> Mode:
    """The word of the flavor; nonsense is refused elsewhere and reads as flat here."""
    word = extra_specs.get(flavors.GUEST_TOPOLOGY, Mode.FLAT.value)
    return Mode(word) if word in flavors.WORDS[flavors.GUEST_TOPOLOGY] else Mode.FLAT


def stored(instance: objects.Instance) -> Abi | None:
    """The record of the server's hardware; None: there is none, so it is as Nova makes it.

    :raises ClaimRefused: this release must not start a server with it.
    """
    try:
        return guest_abi.loads(instance.system_metadata.get(guest_abi.KEY))
    except AbiError as error:
        LOG.error("%s", error, instance=instance)
        raise ClaimRefused(str(error)) from error


def wanted(instance: objects.Instance, extra_specs: Mapping[str, str], clique: bool) -> Abi | None:
    """The record that a server has from its next start on.

    :param extra_specs: of the flavor that it gets.
    :param clique: whether a server without a record shows cliques.
    :returns: None for a flavor without ``hpc:`` keys.
    :raises ClaimRefused: its present record is not to be read.
    """
    if not flavors.has_hpc_keys(extra_specs):
        return None
    before = stored(instance)
    mode = mode_of(extra_specs)
    if before is None:
        return Abi(mode=mode, clique=clique)
    return Abi(mode=mode, clique=before.clique, version=before.version)


def record(instance: objects.Instance, found: Abi | None) -> None:
    """Keep *found* with the server; Nova saves it together with its state."""
    if found is not None:
        instance.system_metadata[guest_abi.KEY] = found.dumps()
    else:
        instance.system_metadata.pop(guest_abi.KEY, None)


@attrs.frozen
class Limits:
    """What guests of this node can have at most."""

    #: Width of the physical addresses of their processors; None: not known, or as many
    #: as are needed.
    bits: int | None
    #: Whether libvirt is of this version or newer.
    libvirt: Callable[[tuple[int, int, int]], bool]


def check(
    instance: objects.Instance,
    claim: Claim,
    reading: Reading,
    found: Abi | None,
    limits: Limits,
) -> None:
    """Refuse what cannot be shown as asked, before anything is made for the guest.

    :raises ClaimRefused: for the server's user.
    """
    if found is None or not claim.addresses:
        return
    machine = libvirt_utils.get_machine_type(instance.image_meta)
    if not address_space.is_x86(machine):
        _check_window(machine, _devices(reading.node, claim.addresses))
    elif pcie_tree.makes_room(found):
        _check_room(instance, _devices(reading.node, claim.addresses), limits)
    if found.mode is Mode.FLAT:
        return
    try:
        pcie_tree.check_machine(machine, found.mode.value)
    except pcie_tree.MachineError as error:
        raise ClaimRefused(str(error)) from error
    plan = _plan(instance, claim, reading.node, found, claim.addresses)
    if found.clique and plan.cliques and not limits.libvirt(needs.OVERRIDE):
        raise ClaimRefused(
            "The GPUs of the server show their GPUDirect cliques, which needs libvirt "
            f"{needs.dotted(needs.OVERRIDE)} or newer on the node: switch off "
            "[hpc]gpudirect_clique there for new servers, or use a flavor with "
            "hpc:guest_topology=flat."
        )


def _check_window(machine: str | None, devices: Iterable[Device]) -> None:
    """Refuse devices for whose memory a guest of another architecture has no room."""
    needed = windows.pack(each.span for each in devices)
    if needed.size > windows.ARM_WINDOW:
        raise ClaimRefused(
            f"The memory of the server's devices takes {needed.size >> 30} GiB of address space, "
            f"and a guest of the machine type {machine} has {windows.ARM_WINDOW >> 30} GiB: use a "
            "flavor with fewer or smaller devices."
        )


def _check_room(instance: objects.Instance, devices: Iterable[Device], limits: Limits) -> None:
    """Refuse devices whose memory the guest's processors could not reach.

    QEMU or libvirt would refuse the guest, and their words name no cure.
    """
    room = windows.window(windows.pack(each.span for each in devices))
    if room <= windows.DEFAULT_WINDOW:
        return
    needed = windows.bits(instance.flavor.memory_mb << 20, room)
    if needed > windows.DEFAULT_BITS and not limits.libvirt(needs.MAXPHYSADDR):
        raise ClaimRefused(
            f"The memory of the server's devices takes {room >> 30} GiB of address space, which "
            f"needs libvirt {needs.dotted(needs.MAXPHYSADDR)} or newer on the node: "
            "use a flavor with fewer or smaller devices."
        )
    if limits.bits is not None and needed > limits.bits:
        raise ClaimRefused(
            f"The memory of the server's devices takes {room >> 30} GiB of address space, which "
            f"needs processors with {needed} bits of physical addresses, and these have "
            f"{limits.bits}: use a flavor with fewer or smaller devices."
        )


def check_restart(instance: objects.Instance, source: Source, limits: Limits) -> None:
    """Refuse the restart of a server whose hardware cannot be made again.

    :raises ClaimRefused: for the server's user.
    """
    found = stored(instance)
    if found is not None and found.mode is not Mode.FLAT:
        check(instance, Claim.of(instance), source.read(), found, limits)


def arrange(domain: GuestDomain, instance: objects.Instance, source: Source) -> None:
    """Give the domain that Nova has written the tree that the server's record says.

    :raises ClaimRefused: that cannot be done.
    """
    found = stored(instance)
    addresses = [address for address, _ in domain.passed_through()]
    if found is None or not addresses:
        return
    node = source.lately().node
    if found.mode is Mode.FLAT:
        pcie_tree.make_room(domain, _devices(node, addresses), found)
        return
    plan = _plan(instance, Claim.of(instance), node, found, addresses)
    try:
        pcie_tree.arrange(domain, plan, found)
    except pcie_tree.MachineError as error:
        raise ClaimRefused(str(error)) from error


def tell(
    domain: GuestDomain, instance: objects.Instance, source: Source, where: Whereabouts
) -> None:
    """Tell the guest where its devices sit, in the finished domain, and *where* it is.

    A server without a record was started by Nova alone and is told nothing. What
    cannot be told is logged: it is no reason for a server not to start.
    """
    try:
        found = stored(instance)
        if found is None or not (domain.passed_through() or where.domains):
            return
        reading = source.lately()
        claim = Claim.of(instance)
        places = before_start.places_here(claim, reading)
        roles = {address: tags.role for address, tags in places.items() if tags.role}
        cells = guest_cells(instance.numa_topology)
        groups = before_start.groups_of(claim, reading) if claim.ports else {}
        node = peer_reading.node(CONF, reading, [each for each, _ in domain.paths()])
        fwcfg.tell(
            domain,
            node,
            found.mode.value,
            cells,
            roles,
            groups=groups,
            fabric=where.domains,
            rails=where.rails_of(reading.node, claim.addresses),
            wish=peer_reading.wish(CONF),
        )
    except Exception:
        LOG.exception("The guest is not told where its devices sit", instance=instance)


def _plan(
    instance: objects.Instance, claim: Claim, node: Node, found: Abi, addresses: Iterable[str]
) -> Plan:
    cells = {cell.host_node: cell.id for cell in claim.server.cells if cell.host_node is not None}
    try:
        return make_plan(_devices(node, addresses), cells, found)
    except PlanError as error:
        LOG.warning("The guest's PCIe tree is refused: %s", error.operator, instance=instance)
        raise ClaimRefused(str(error)) from error


def _devices(node: Node, addresses: Iterable[str]) -> list[Device]:
    return [_device(address, node.function(address)) for address in addresses]


def _device(address: str, function: Function | None) -> Device:
    if function is None:
        return Device(address=address, location=Location())
    return Device(
        address=address,
        location=function.location,
        span=windows.of_bars(function.bars),
        clique=needs.has_clique(function),
    )
