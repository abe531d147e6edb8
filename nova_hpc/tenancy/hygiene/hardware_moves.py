# SPDX-License-Identifier: Apache-2.0
"""Finds hardware that is at another place than before, and moves its entries in the ledger.

Firmware and people move hardware while a node is down. So each periodic update searches for
it, and so does the restart of a server with its devices: after a boot of the host, servers
start before the first update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from nova_hpc.tenancy import identity
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.hygiene.snapshots import baseline_of, distrust_damaged_baselines
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.step import DeviceCandidate, DeviceTenant, NodeView, RefusedError
from nova_hpc.topology.files import FileTree
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice


def follow_hardware(
    records: HygieneRecords,
    ledger: Ledger,
    offered: Mapping[str, DeviceCandidate],
    looks: Mapping[str, DeviceSnapshot],
    used: Collection[str],
) -> tuple[Ledger, tuple[str, ...]]:
    """Move entries to the addresses of their hardware.

    :param offered: address -> device, from a fresh reading.
    :param looks: snapshots of devices that no server has.
    :param used: devices that servers have.
    :raises LedgerError: the ledger cannot be written.
    """
    seen, unsure = _see(records, ledger, offered, looks, used)
    moved = identity.move_entries_with_hardware(ledger, seen, unsure)
    if moved.ledger == ledger:
        return ledger, ()
    _write(records, seen, unsure)
    return records.known(), moved.notes


def find_replaced(
    records: HygieneRecords, tenant: DeviceTenant, view: NodeView
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Find the devices of a restarting server whose present hardware is new to it.

    The devices that its guest has now were there when the guest was started.

    :returns: their addresses, and notes for the log.
    :raises LedgerError: the ledger cannot be read.
    :raises RefusedError: there are some, and the ledger cannot be written.
    """
    ledger, notes = _follow_before_restart(records, records.known(), tenant, view)
    replaced = {address for address in tenant.devices if ledger.device(address).replaced}
    if replaced:
        own = tenant.owners.domains().of(tenant.server)
        replaced -= own.live.all if own is not None else frozenset()
    return frozenset(replaced), notes


def _follow_before_restart(
    records: HygieneRecords, ledger: Ledger, tenant: DeviceTenant, view: NodeView
) -> tuple[Ledger, tuple[str, ...]]:
    """Find moved hardware before a restart.

    All devices of the node are read only if the identity of one of the server's is in doubt.
    """
    had = view.candidates(tenant.devices)
    if not _doubtful(records, ledger, had, records.look(had.values())):
        return ledger, ()
    held = _mark_held_places(ledger, tenant.devices)
    offered = {**view.candidates(view.roles), **had}
    looks = records.look(offered.values())
    seen, unsure = _see(records, held, offered, looks, ())
    moved = identity.move_entries_with_hardware(held, seen, unsure)
    if moved.ledger == held:
        return ledger, ()
    try:
        _write(records, seen, unsure, tenant.devices)
    except LedgerError as error:
        if any(moved.ledger.device(address).replaced for address in tenant.devices):
            raise RefusedError.without_records(error) from error
        return ledger, (f"It is not recorded where PCI devices are now: {error}",)
    return records.known(), moved.notes


def _write(
    records: HygieneRecords,
    seen: Mapping[str, str],
    unsure: Collection[str],
    held: Collection[str] = (),
) -> None:
    def edit(ledger: Ledger) -> Ledger:
        ledger = _mark_held_places(distrust_damaged_baselines(ledger), held)
        return identity.move_entries_with_hardware(ledger, seen, unsure).ledger

    records.ledger.change(edit)


def _see(
    records: HygieneRecords,
    ledger: Ledger,
    offered: Mapping[str, DeviceCandidate],
    looks: Mapping[str, DeviceSnapshot],
    used: Collection[str],
) -> tuple[Mapping[str, str], Collection[str]]:
    """Return the identities that devices report, and the devices that were not read."""
    doubtful = _doubtful(records, ledger, offered, looks)
    if not doubtful:
        return {}, offered.keys()
    running = records.look(offered[address] for address in doubtful if address in used)
    seen = _identify(records, offered, {**looks, **running}, doubtful)
    unsure = offered.keys() - seen.keys()
    if identity.move_entries_with_hardware(ledger, seen, unsure).ledger == ledger:
        return seen, unsure
    # Read again, because one reading may be wrong, and much depends on it.
    again = records.look(offered[address] for address in seen)
    sure = _identify(records, offered, again, doubtful)
    seen = {
        address: hardware for address, hardware in seen.items() if sure.get(address) == hardware
    }
    return seen, offered.keys() - seen.keys()


def _doubtful(
    records: HygieneRecords,
    ledger: Ledger,
    offered: Mapping[str, DeviceCandidate],
    looks: Mapping[str, DeviceSnapshot],
) -> list[str]:
    boot = baseline.boot_of(FileTree(records.root))
    return [
        address
        for address, candidate in offered.items()
        if _is_identity_doubtful(ledger.device(address), candidate, looks.get(address), boot)
    ]


def _identify(
    records: HygieneRecords,
    offered: Mapping[str, DeviceCandidate],
    looks: Mapping[str, DeviceSnapshot],
    doubtful: Collection[str],
) -> dict[str, str]:
    """Return identities of doubtful devices, and of those whose snapshot contains them."""
    wanted = [
        candidate
        for address, candidate in offered.items()
        if address in looks
        and (address in doubtful or _shows_own_serial(candidate, looks[address]))
    ]
    return records.identify(wanted, looks)


def _mark_held_places(ledger: Ledger, addresses: Collection[str]) -> Ledger:
    """Return the ledger with a mark on these places, also if none is recorded yet."""
    return ledger.put(
        {
            address: attrs.evolve(device, server=SOMEBODY)
            for address in addresses
            if (device := ledger.device(address)).server is None and not device.replaced
        }
    )


def word_replaced_devices(total: int, refused: Mapping[str, str], cure: str) -> RefusedError:
    """Return the refusal of a restart with hardware that replaced the server's own.

    :param total: number of the server's devices.
    :param refused: address -> fault.
    :param cure: action of an operator, with ``{address}``.
    """
    return RefusedError(
        f"The hardware of {len(refused)} of the server's {total} PCI devices was replaced and is "
        "not clean yet. Start the server again later, or ask the operator of the cloud.",
        [
            f"PCI device {address} is other hardware than the server had, and not clean: "
            f"{reason}; {cure.format(address=address)}"
            for address, reason in refused.items()
        ],
    )


def _shows_own_serial(candidate: DeviceCandidate, look: DeviceSnapshot) -> bool:
    """Whether a snapshot contains the device's own serial number; False for a virtual function."""
    return look.serial is not None and candidate.function.physical_function is None


def _is_identity_doubtful(
    device: LedgerDevice, candidate: DeviceCandidate, look: DeviceSnapshot | None, boot: str | None
) -> bool:
    """Whether to read a device's identity again.

    Its configuration space is read anyway. Reading the vital product data is
    slow, and boards change only while the machine is down or the device is absent.
    """
    if look is not None and _shows_own_serial(candidate, look):
        return device.hardware != baseline.serial_of(candidate.function, look)
    recorded = baseline_of(device)
    return (
        recorded is None
        or recorded.boot != boot
        or device.hardware is None
        or device.state is not DeviceState.OFFERED
    )
