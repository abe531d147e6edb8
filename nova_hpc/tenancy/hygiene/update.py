# SPDX-License-Identifier: Apache-2.0
"""The periodic check of a node's devices: it completes the work that the last one has left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from nova_hpc.tenancy import comparison, health_states
from nova_hpc.tenancy.health_states import CAPPED
from nova_hpc.tenancy.hygiene import baseline, cleaning, hardware_moves, symptoms
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.cleaner import RoleCleaners
from nova_hpc.tenancy.hygiene.device_action import HygieneAction, HygieneFacts, decide_action
from nova_hpc.tenancy.hygiene.disagreement import find_disagreements
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.hygiene.snapshots import (
    add_first_baseline,
    baseline_of,
    is_unused_by_host,
    restart_error_count,
)
from nova_hpc.tenancy.hygiene.symptoms import DeviceJudgement
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import DeviceCandidate, WithheldDevices
from nova_hpc.topology.files import FileTree
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice

_FUNCTIONS_IN_USE: Final = "one of its virtual functions is in use"
_MENDED: Final = (
    "PCI device {} had bus mastering on although no server has it: switched off, and reset"
)
#: Actions that the update decides again, and applies, under the device's lock.
_LOCKED: Final = frozenset({HygieneAction.UNMARK, HygieneAction.WAIT, HygieneAction.CLEAN})


def update_devices(
    records: HygieneRecords,
    cleaners: RoleCleaners,
    offered: Mapping[str, DeviceCandidate],
    owners: DeviceOwners,
    ill: Mapping[str, Symptom],
    roles: Mapping[str, str | None],
) -> WithheldDevices:
    """Check all devices of a node, and complete the work that the last check has left or missed.

    The phases: compare the ledger with Nova's records, and move entries with their hardware.
    Find devices that are in use without a server in Nova. Gather the facts of each device. Clean
    the devices that need it. Judge the free ones. Record proofs for the clean ones.

    :param offered: address -> device, from a fresh reading.
    :param owners: finds the users of devices.
    :param ill: devices that cannot be given in this reading: their
        snapshots must not become baselines.
    :param roles: roles of all devices that the node offers.
    :raises LedgerError: the ledger cannot be read or written.
    """
    records.ledger.expect_room()
    # Read before cleaning: a claim in between changes the row.
    rows = owners.rows()
    # A claim is recorded in Nova first, and then as a mark in the ledger. So a mark that
    # is read before Nova's records, and whose device is missing in them, belongs to a
    # server that has ended.
    ledger, compared = records.compared(owners)
    used = owners.records()
    ledger = _mark_places(records, ledger, used, offered)
    facts, notes = _gather(records, ledger, used, offered, ill, owners)
    facts, mended = _clean(records, cleaners, facts, offered, owners)
    facts = _refresh(records, facts, records.known(), frozenset())
    judged = _judge(records, facts, offered, owners, roles)
    free = [address for address in offered if not facts[address].taken]
    records.ledger.change(lambda ledger: comparison.add_row_proofs(ledger, free, rows))
    reasons = {**{address: seen.reason for address, seen in facts.items()}, **judged.reasons}
    findings = {
        address: Symptom(HealthSign.UNREADY, reason)
        for address, reason in reasons.items()
        if reason is not None and address not in ill  # its fault is reported elsewhere
    }
    notes += (*mended, *judged.notes)
    return WithheldDevices(findings, (*compared, *notes), (*compared, *judged.alarms))


def _mark_places(
    records: HygieneRecords, ledger: Ledger, used: frozenset[str], offered: Collection[str]
) -> Ledger:
    """Mark devices that servers have by Nova's records, and clear marks of former places.

    A mark is the ledger's record of the server that has, or had, the device.

    :returns: the ledger after the change.
    """

    def edit(ledger: Ledger) -> dict[str, LedgerDevice]:
        marked = {
            address: attrs.evolve(device, server=SOMEBODY)
            for address in used.intersection(offered)
            # A cleaned replacement stays without a mark: the server has not got it yet.
            if (device := ledger.device(address)).server is None and not device.replaced
        }
        return marked | {
            address: attrs.evolve(device, replaced=False)
            for address, device in ledger.devices.items()
            if device.replaced and address not in used
        }

    return records.change(edit) if edit(ledger) else ledger


def _gather(
    records: HygieneRecords,
    ledger: Ledger,
    used: frozenset[str],
    offered: Mapping[str, DeviceCandidate],
    ill: Mapping[str, Symptom],
    owners: DeviceOwners,
) -> tuple[dict[str, HygieneFacts], tuple[str, ...]]:
    """Gather the facts of each device, after its ledger entry has moved with its hardware.

    :param ledger: read before Nova's records.
    :param used: devices that servers have by Nova's records.
    :returns: the facts by address, and notes for the log.
    """
    well = {address: candidate for address, candidate in offered.items() if address not in ill}
    looks = records.look(
        candidate
        for address, candidate in offered.items()
        # Include devices with only a suspicion: a suspicion may not withhold all devices.
        if address not in used and (address in well or ill[address].sign in CAPPED)
    )
    ledger, notes = hardware_moves.follow_hardware(records, ledger, well, looks, used)
    held, reasons = find_disagreements(records, ledger, offered, used, owners)
    reasons |= {address: holding.text for address, holding in held.items()}
    busy = used | reasons.keys()
    shared = {
        address
        for address, device in offered.items()
        if not busy.isdisjoint(device.function.virtual_functions)
    }
    # A marked device is cleaned whatever its proof says, but its reset would reset them, too.
    reasons = dict.fromkeys(shared & ledger.marked.keys(), _FUNCTIONS_IN_USE) | reasons
    facts = {
        address: HygieneFacts(
            # Treat a device with any other user like the device of a server.
            taken=address in held,
            reason=reasons.get(address),
            fault=ill.get(address),
            look=(look := looks.get(address)),
            masters=look is not None
            and bool(look.master)
            and is_unused_by_host(offered[address].function),
            shared=address in shared,
        )
        for address in sorted({*offered, *ill, *ledger.marked})
    }
    return _refresh(records, facts, ledger, used), notes


def _refresh(
    records: HygieneRecords,
    facts: Mapping[str, HygieneFacts],
    ledger: Ledger,
    used: Collection[str],
) -> dict[str, HygieneFacts]:
    """Return the facts with a later reading of the ledger, and of Nova's records."""
    moment, rules = records.moment(), records.rules
    return {
        address: attrs.evolve(
            seen,
            entry=(entry := ledger.device(address)),
            early=entry.state is DeviceState.SUSPECT
            and not health_states.is_trial_due(entry.trial, moment, rules),
            taken=seen.taken or address in used,
        )
        for address, seen in facts.items()
    }


def _clean(
    records: HygieneRecords,
    cleaners: RoleCleaners,
    facts: Mapping[str, HygieneFacts],
    offered: Mapping[str, DeviceCandidate],
    owners: DeviceOwners,
) -> tuple[dict[str, HygieneFacts], list[str]]:
    """Apply the actions that need the device's lock, and decide them again under it.

    :returns: the facts after it, and notes for the log.
    """
    pending = [address for address in facts if decide_action(facts[address]) in _LOCKED]
    if not pending:
        return dict(facts), []
    with records.free_locks(pending) as (locked, reasons):
        current = {address: facts[address] for address in locked}
        current = _refresh(records, current, records.known(), owners.records())
        actions: dict[HygieneAction, list[str]] = defaultdict(list)
        for address, seen in current.items():
            actions[decide_action(seen)].append(address)
        reasons |= {
            address: current[address].entry.reason for address in actions[HygieneAction.WAIT]
        }
        if unmarked := actions[HygieneAction.UNMARK]:
            records.change(
                lambda ledger: {
                    address: attrs.evolve(ledger.device(address), server=None)
                    for address in unmarked
                }
            )
        cleaned = actions[HygieneAction.CLEAN]
        roles = {
            address: offered[address].role if address in offered else None for address in cleaned
        }
        reasons |= cleaning.clean_devices(records, cleaners, roles)[1]
        cleaned = [address for address in cleaned if address not in reasons]
        looks = records.look(
            offered[address] for address in cleaned if current[address].look is not None
        )
    mended = [
        _MENDED.format(address)
        for address in cleaned
        if current[address].masters and current[address].entry.server is None
    ]
    return {
        address: attrs.evolve(
            seen,
            reason=reasons.get(address, seen.reason),
            look=looks.get(address, seen.look),
            masters=seen.masters and address not in cleaned,
        )
        for address, seen in {**facts, **current}.items()
    }, mended


def _judge(
    records: HygieneRecords,
    facts: Mapping[str, HygieneFacts],
    offered: Mapping[str, DeviceCandidate],
    owners: DeviceOwners,
    roles: Mapping[str, str | None],
) -> DeviceJudgement:
    """Judge the free devices, and write the result.

    :returns: the result without the reasons of devices that were claimed or changed since they
        were judged: the next check judges them.
    """
    free = {
        address: seen
        for address, seen in facts.items()
        if decide_action(seen) is HygieneAction.JUDGE
    }
    faults = {address: seen.fault for address, seen in free.items() if seen.fault is not None}
    looks = {
        address: seen.look
        for address, seen in free.items()
        if seen.fault is None and seen.look is not None
    }
    ledger = _remember(records, facts, looks, offered)
    judged = symptoms.judge_free_devices(
        ledger, looks, offered, faults, roles, records.moment(), records.rules
    )
    if not judged.entries:
        return judged
    gone = owners.records()
    written = records.change(
        lambda current: {
            address: entry
            for address, entry in judged.entries.items()
            if address not in gone and current.device(address) == ledger.device(address)
        }
    )
    reasons = {
        address: reason
        for address, reason in judged.reasons.items()
        if address not in judged.entries or written.device(address) == judged.entries[address]
    }
    return attrs.evolve(judged, reasons=reasons)


def _remember(
    records: HygieneRecords,
    facts: Mapping[str, HygieneFacts],
    looks: Mapping[str, DeviceSnapshot],
    offered: Mapping[str, DeviceCandidate],
) -> Ledger:
    """Record devices without a record, and the counters of a new boot."""
    ledger = records.known()
    boot = baseline.boot_of(FileTree(records.root))
    running = records.look(
        candidate
        for address, candidate in offered.items()
        if facts[address].taken
        and (recorded := baseline_of(ledger.device(address))) is not None
        and recorded.boot != boot
    )
    hardware = records.new_hardware(ledger, looks, offered)
    moment = records.moment()

    def edit(current: Ledger) -> dict[str, LedgerDevice]:
        changed = {}
        for address, look in {**looks, **running}.items():
            device = current.device(address)
            recorded = baseline_of(device)
            if recorded is None and device.server is None:
                if not baseline.find_inherent_faults(
                    look, is_unused_by_host(offered[address].function)
                ):
                    device = add_first_baseline(device, look, hardware.get(address))
                    changed[address] = attrs.evolve(device, counted=moment.up)
            elif recorded is not None:
                if recorded.boot != look.boot:
                    device = restart_error_count(device, look, moment)
                changed[address] = attrs.evolve(
                    device, hardware=device.hardware or hardware.get(address)
                )
        return changed

    return records.change(edit)
