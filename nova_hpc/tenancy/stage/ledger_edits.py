# SPDX-License-Identifier: Apache-2.0
"""The edits of the stage in the ledger: entries of devices before, and those that differ after.

Pure: the step hands each to the ledger's writer, which has read the ledger below its lock.
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
from nova_hpc.topology.model import Node
from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice


def make_devices_due(
    ledger: Ledger, addresses: Iterable[str], server: str, wall_time: float
) -> dict[str, LedgerDevice]:
    """Make due what is not, since *server* has it.

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
    """Make due what has no entry: its last owner is unknown.

    :param storage: those that need a proof that their data were erased -> the present stay of one
        that tells no serial number; "": it tells one.
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
    """Write who is going to have the devices, before it gets them: as a server has its own."""
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
    """Nothing has the devices any more, and they have not passed."""
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
    """Take the entries away: the devices have no stage any more."""
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
) -> LedgerDevice:
    """The entry of a device after its stage.

    :param symptom: what the stage has found; None: nothing.
    :param clean: whether it was reset, too, after whatever had it.
    :param seconds: how long the stage took.
    :param proof: how its data were erased.
    :param stay: see :class:`DeviceStage`.
    """
    entry = device_stage.load_stage(device.stage)
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


# -- which devices are handled together ----------------------------------------------------


def group_by_holder(ledger: Ledger, addresses: Iterable[str]) -> dict[str, list[str]]:
    """Group devices by what has them, e.g. the UUID of a service VM -> the devices."""
    addresses_by_holder: dict[str, list[str]] = defaultdict(list)
    for address in addresses:
        entry = device_stage.load_stage(ledger.device(address).stage)
        if entry is not None:
            addresses_by_holder[entry.holder].append(address)
    return addresses_by_holder


def batch_ready_devices(
    addresses: Collection[str], staged: frozenset[str], node: Node
) -> list[list[str]]:
    """Devices that can only be given together; none while one of them is not ready.

    :param addresses: those that are ready.
    :param staged: all that have a stage.
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
