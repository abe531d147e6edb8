# SPDX-License-Identifier: Apache-2.0
"""The metrics of one node: the results of ``device list`` and ``inventory`` as numbers.

nova-compute is not called, so its restart changes nothing. The ledger is complete at all times. As
long as nova-compute has not compared it with Nova's records, free devices are unknown, and their
metrics are left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.placement.model import DevicePool, FreeHost
from nova_hpc.tenancy.sign import HealthSign
from nova_hpc.tenancy.watch.record import load_record
from nova_hpc.tenancy.watch.rules import NODE_WORDS
from nova_hpc.topology import peer
from nova_hpc.wire.ledger import DeviceState, Ledger
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.device.command import ManagedNode
from nova_hpc_tools.metrics import catalogue, gpu_uuids
from nova_hpc_tools.metrics.samples import OTHER, MetricSample, label_roles, list_count_samples
from nova_hpc_tools.snapshot.largest_sets import measure_largest_sets

#: The words of ``nova-hpc device list``; a state of a role that no device is in is a true 0.
STATES: Final = ("cleaning", "free", "in use", "quarantined", "suspect", "withheld")
_FREE: Final = "free"
_PATHS: Final = (peer.PeerPath.SWITCH, peer.PeerPath.ROOT, peer.PeerPath.UNKNOWN)
_SIGNS: Final = frozenset(sign.value for sign in HealthSign)


@attrs.frozen
class UuidWish:
    """The sources from which the UUIDs of GPUs may be read: NVIDIA's driver, and a file."""

    #: NVIDIA's driver on the host.
    of_kernel: bool = False
    #: A file of the operator; None without one.
    file: Path | None = None


@attrs.frozen
class _ListedDevice:
    """A device with its state, as in ``nova-hpc device list``."""

    address: str
    role: str
    state: str
    server: str


def read_node_samples(config: Sequence[str], wish: UuidWish) -> tuple[MetricSample, ...]:
    """Read the metrics of this node, with the configuration of its nova-compute.

    :param config: ``--config-file=FILE`` and ``--config-dir=DIR`` as for nova-compute.
    :raises Exception: one of ``nova_hpc_tools.device.command.ERRORS``, and CommandError.
    """
    place = ManagedNode.read(config)
    return tuple(_iterate_node_samples(place, wish, time.time()))


def _iterate_node_samples(
    place: ManagedNode, wish: UuidWish, moment: float
) -> Iterator[MetricSample]:
    ledger = place.ledger
    usable = ledger.compared and not ledger.lost
    yield MetricSample(catalogue.LEDGER_USABLE, usable)
    if usable:
        devices = _list_node_devices(place)
        labels = label_roles(Counter(device.role for device in devices))
        yield from _count_device_states(devices, labels)
        yield from _count_ledger_facts(ledger)
        yield from _measure_node_sets(place, devices, labels)
        yield from _list_gpu_samples(place, devices, wish)
    pairs = Counter(pair.path for pair in peer.find_peer_pairs(place.node))
    for path in _PATHS:
        yield MetricSample(catalogue.NODE_PEERS, pairs[path], (path.value,))
    if usable and ledger.partitions is not None:
        yield MetricSample(catalogue.NODE_NVLINK, len(ledger.partitions))
    announced = ledger.maintenance
    if not ledger.lost:
        within = announced is not None and announced.start <= moment < announced.end
        yield MetricSample(catalogue.NODE_MAINTENANCE, within)
    yield MetricSample(catalogue.NODE_PROBLEMS, len(place.node.problems) + len(ledger.problems))


def _list_node_devices(place: ManagedNode) -> list[_ListedDevice]:
    ill = place.ill()
    return [
        _ListedDevice(
            address,
            place.role(address) or "",
            place.condition(address, ill)[0],
            place.ledger.device(address).server or "",
        )
        for address in place.addresses()
    ]


def _count_device_states(
    devices: Sequence[_ListedDevice], labels: Mapping[str, str]
) -> tuple[MetricSample, ...]:
    counts: Counter[tuple[str, ...]] = Counter(
        {(role, state): 0 for role in labels.values() for state in STATES}
    )
    counts.update((labels[device.role], device.state) for device in devices)
    return list_count_samples(catalogue.NODE_DEVICES, counts)


def _count_ledger_facts(ledger: Ledger) -> Iterator[MetricSample]:
    everything = [*ledger.devices.values(), *ledger.absent.values()]
    here = ledger.devices.values()
    suspect = [device for device in here if device.state is DeviceState.SUSPECT]
    troubled = [device for device in here if device.state is not DeviceState.OFFERED]
    signs: Counter[tuple[str, ...]] = Counter({(sign.value,): 0 for sign in HealthSign})
    for device in troubled:
        word = device.trial.sign if device.trial is not None else ""
        if not word and device.state is DeviceState.QUARANTINED:
            word = HealthSign.QUARANTINE.value  # an operator did it
        signs[(word if word in _SIGNS else OTHER,)] += 1
    yield from list_count_samples(catalogue.NODE_SIGNS, signs)
    tries = sum(device.trial.tries for device in suspect if device.trial is not None)
    yield MetricSample(catalogue.NODE_TRIES, tries)
    for result, number in (
        ("clean", sum(device.cleaned for device in everything)),
        ("failed", sum(device.failed for device in everything)),
    ):
        yield MetricSample(catalogue.NODE_CLEANINGS, number, (result,))
    yield MetricSample(catalogue.NODE_ABSENT, len(ledger.absent))
    yield MetricSample(catalogue.NODE_DIFFERING, sum(bool(device.differs) for device in here))
    faults: Counter[tuple[str, ...]] = Counter({(word.value,): 0 for word in NODE_WORDS})
    for watched in filter(None, (load_record(device.watch) for device in here)):
        faults.update((word.value,) for word in watched.faults)
    yield from list_count_samples(catalogue.NODE_FAULTS, faults)


def _measure_node_sets(
    place: ManagedNode, devices: Sequence[_ListedDevice], labels: Mapping[str, str]
) -> Iterator[MetricSample]:
    free = {device.address for device in devices if device.state == _FREE}
    offers = place.spec().offers
    pools = [
        DevicePool(
            id=offer.functions[0],
            name=offer.provider,
            location=offer.tags.location,
            free=sum(address in free for address in offer.functions),
            serves=frozenset(),
            unit=offer.tags.group,
            role=offer.tags.role,
        )
        for offer in offers
    ]
    host = FreeHost(name="", pools=tuple(pools))
    yield from list_count_samples(
        catalogue.NODE_LARGEST,
        {
            (labels[role], level.word): size
            for role in sorted({pool.role for pool in pools if pool.role is not None})
            if labels.get(role) == role
            for level, size in measure_largest_sets(host, role).items()
        },
    )


def _list_gpu_samples(
    place: ManagedNode, devices: Sequence[_ListedDevice], wish: UuidWish
) -> Iterator[MetricSample]:
    uuids: dict[str, str] = {}
    if wish.file is not None:
        of_hardware = gpu_uuids.read_uuid_file(wish.file)
        for device in devices:
            hardware = place.ledger.device(device.address).hardware
            if hardware is not None and hardware in of_hardware:
                uuids[device.address] = of_hardware[hardware]
    if wish.of_kernel:
        root = Path(place.options.hpc.sysfs_root)
        # The driver's present UUIDs are newer than any file.
        uuids |= gpu_uuids.read_kernel_uuids(root, [device.address for device in devices])
    places = Counter(uuids.values())
    for uuid, number in places.items():
        if number > 1:
            raise CommandError(f"two devices of this node have the UUID {uuid}: mend the file")
    for device in devices:
        if device.address in uuids:
            yield MetricSample(
                catalogue.NODE_GPU,
                1,
                (uuids[device.address], device.address, device.role, device.state, device.server),
            )
