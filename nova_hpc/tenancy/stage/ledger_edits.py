# SPDX-License-Identifier: Apache-2.0
"""The stage's edits of the ledger: from present entries to the changed ones.

Pure. The step passes each function to the ledger's writer, which calls it under its lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import attrs

from nova_hpc.tenancy import health_states
from nova_hpc.tenancy.health_states import HealthRules, Moment
from nova_hpc.tenancy.sign import Symptom
from nova_hpc.tenancy.stage import device_stage
from nova_hpc.tenancy.stage.device_stage import DeviceStage
from nova_hpc.tenancy.watch import owner_report
from nova_hpc.topology.model import Node
from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice


def make_devices_due(
    ledger: Ledger, addresses: Iterable[str], server: str, wall_time: float
) -> dict[str, LedgerDevice]:
    """Make stages due that are not yet, because *server* has the devices.

    :param wall_time: Unix time in seconds, here and below.
    """
    edited = {}
    for address in addresses:
        entry = device_stage.load_stage(ledger.device(address).stage)
        if entry is None or not entry.pending:
            stage = device_stage.make_stage_due(entry, server, wall_time)
            edited[address] = _put_stage(ledger, address, stage)
    return edited


def make_new_devices_due(
    ledger: Ledger,
    addresses: Iterable[str],
    wall_time: float,
    storage: Mapping[str, str] | None = None,
) -> dict[str, LedgerDevice]:
    """Make devices without an entry due: their last owner is unknown.

    :param storage: devices that need a proof of erased data -> present stay of a device
        without a serial number; "" for a device with one.
    """
    storage = storage or {}
    stage = device_stage.make_stage_due(None, SOMEBODY, wall_time)
    due = {}
    for address in addresses:
        body = ledger.device(address).stage
        entry = device_stage.load_stage(body)
        unproven = (
            address in storage
            and entry is not None
            and not entry.pending
            and device_stage.lacks_proof(entry, storage[address])
        )
        if body is None or unproven:
            due[address] = _put_stage(ledger, address, stage)
    return due


def begin_device_stages(
    ledger: Ledger, addresses: Iterable[str], holder: str, wall_time: float
) -> dict[str, LedgerDevice]:
    """Record the devices' new holder before it gets them, like a server's own devices."""
    return {
        address: attrs.evolve(
            _put_stage(
                ledger,
                address,
                device_stage.begin_stage(
                    device_stage.load_stage(ledger.device(address).stage), holder, wall_time
                ),
            ),
            server=holder,
        )
        for address in addresses
    }


def make_devices_due_again(
    ledger: Ledger, addresses: Iterable[str], wall_time: float
) -> dict[str, LedgerDevice]:
    """Make devices due that have not passed, and that no stage has any more."""
    return {
        address: _put_stage(
            ledger,
            address,
            device_stage.make_due_again(
                device_stage.load_stage(ledger.device(address).stage), wall_time
            ),
        )
        for address in addresses
    }


def forget_device_stages(ledger: Ledger, addresses: Iterable[str]) -> dict[str, LedgerDevice]:
    """Delete the entries of devices that no longer have a stage."""
    return {address: attrs.evolve(ledger.device(address), stage=None) for address in addresses}


def settle_device_stage(
    device: LedgerDevice,
    symptom: Symptom | None,
    clean: bool,
    seconds: float,
    moment: Moment,
    rules: HealthRules,
    proof: str = "",
    stay: str = "",
    decided: bool = True,
) -> LedgerDevice:
    """Return the entry of a device after its stage.

    :param symptom: the stage's finding; None if there is none.
    :param clean: whether the device was also reset after the stage.
    :param seconds: duration of the stage.
    :param proof: the way in which its data were erased.
    :param stay: see :class:`DeviceStage`.
    :param decided: whether the stage came to a verdict, so that a report of the device is done.
    """
    entry = device_stage.load_stage(device.stage)
    if entry is not None and decided:
        device = owner_report.put_judged(device, entry.server, moment.wall)
    last = entry.server if entry is not None and entry.server else device.last_server
    if clean and symptom is None:
        entry_after = device_stage.pass_stage(entry, seconds, moment.wall, proof, stay)
        advanced = health_states.advance_device_state(device, (), moment, rules)
        return attrs.evolve(advanced, stage=entry_after.dumps(), last_server=last, unreported=True)
    entry_after = device_stage.make_due_again(entry, moment.wall)
    if symptom is not None:
        device = health_states.advance_device_state(device, (symptom,), moment, rules)
        device = attrs.evolve(device, failed=device.failed + 1)
    return attrs.evolve(device, stage=entry_after.dumps(), last_server=last, unreported=False)


def _put_stage(ledger: Ledger, address: str, stage: DeviceStage) -> LedgerDevice:
    return attrs.evolve(ledger.device(address), stage=stage.dumps())


# -- devices that are handled together -----------------------------------------------------


def group_by_holder(ledger: Ledger, addresses: Iterable[str]) -> dict[str, list[str]]:
    """Group devices by the holder of their stage, e.g. the UUID of a service VM -> the devices."""
    addresses_by_holder: dict[str, list[str]] = defaultdict(list)
    for address in addresses:
        entry = device_stage.load_stage(ledger.device(address).stage)
        if entry is not None:
            addresses_by_holder[entry.holder].append(address)
    return addresses_by_holder


def batch_ready_devices(
    addresses: Collection[str], staged: frozenset[str], node: Node
) -> list[list[str]]:
    """Group devices that can only be given together; skip a group with a device that is not ready.

    :param addresses: the ready devices.
    :param staged: all devices with a stage.
    :returns: one list of PCI addresses for each IOMMU group.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for address in addresses:
        function = node.function(address)
        group = None if function is None else function.iommu_group
        groups[address if group is None else f"group {group}"].append(address)
    ready = []
    for mates in groups.values():
        function = node.function(mates[0])
        others = staged & set(node.group_members(function)) if function else frozenset()
        if others <= set(mates):
            ready.append(mates)
    return ready
