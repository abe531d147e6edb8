# SPDX-License-Identifier: Apache-2.0
"""The metrics of a cloud: the results of ``capacity`` and ``device list --all-nodes`` as numbers.

Pure except :func:`read_cloud_samples`. A cloud that could only be read in part gives no metrics:
with missing hosts every count would be wrong.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricMap
from nova_hpc.placement.model import Unmet
from nova_hpc.wire.ledger import DeviceState
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.capacity import Capacity, measure_capacity
from nova_hpc_tools.cloud.capacity_command import read_synced_map
from nova_hpc_tools.cloud.cluster_capacity import count_clusters_by_level
from nova_hpc_tools.metrics import catalogue
from nova_hpc_tools.metrics.samples import OTHER, MetricSample, label_roles, list_count_samples
from nova_hpc_tools.snapshot import Snapshot, SnapshotError, SnapshotNode, cloud_readers
from nova_hpc_tools.snapshot.largest_sets import measure_largest_sets
from nova_hpc_tools.snapshot.node_health import NodeHealth

_IN: Final = "in"
_OUT: Final = "out"
_FREE: Final = "free"
_USED: Final = "in use"
_WITHHELD: Final = "withheld"
_STATES: Final = (DeviceState.SUSPECT.value, DeviceState.QUARANTINED.value, _WITHHELD)
#: Hosts are counted for sets of these sizes.
_SIZES: Final = (1, 2, 4, 8, 16)


@attrs.frozen
class FlavorWish:
    """The flavors, and the cluster sizes, that metrics are requested about."""

    flavors: tuple[str, ...] = ()
    members: tuple[int, ...] = ()


def read_cloud_samples(
    file: Path | None, config: Sequence[str], wish: FlavorWish
) -> tuple[MetricSample, ...]:
    """Read the metrics of the cloud, or of the snapshot in a file.

    :raises SnapshotError: it cannot be read, or not the whole of it; the text names the cure.
    """
    cloud = cloud_readers.obtain_snapshot(file, config)
    if not cloud.complete:
        problems = "; ".join(cloud.problems)
        raise SnapshotError(f"the cloud was not read whole, so numbers would be wrong: {problems}")
    health = None if file is not None else cloud_readers.read_health(config)
    return tuple(list_cloud_samples(cloud, health, wish))


def list_cloud_samples(
    cloud: Snapshot, health: Iterable[NodeHealth] | None, wish: FlavorWish
) -> Iterator[MetricSample]:
    """Yield the metrics of a cloud's snapshot.

    :param health: None if the withheld devices of nodes are unknown.
    """
    taken = _parse_time(cloud.taken)
    if taken is not None:
        yield MetricSample(catalogue.CLOUD_TAKEN, taken)
    yield MetricSample(catalogue.CLOUD_PROBLEMS, len(cloud.problems))
    services: Counter[tuple[str, ...]] = Counter({(_IN,): 0, (_OUT,): 0})
    services.update((_service_of(node),) for node in cloud.hosts)
    yield from list_count_samples(catalogue.CLOUD_HOSTS, services)
    yield MetricSample(catalogue.CLOUD_UNUSABLE, sum(len(node.unusable) for node in cloud.hosts))
    labels = label_roles(_count_role_devices(cloud.hosts))
    yield from _count_cloud_devices(cloud.hosts, labels)
    if health is not None:
        yield from _count_health(health)
    yield from _measure_cloud_sets(cloud.hosts, labels)
    fabric = read_synced_map(cloud)[0]
    for name in dict.fromkeys(wish.flavors):
        yield from _list_flavor_samples(cloud, fabric, name, wish.members, labels)


def _parse_time(text: str) -> float | None:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    # Without a zone it would be the time of this machine's wall.
    return None if moment.tzinfo is None else moment.timestamp()


def _service_of(node: SnapshotNode) -> str:
    return _IN if node.out is None else _OUT


def _count_role_devices(hosts: Iterable[SnapshotNode]) -> Counter[str]:
    return Counter(
        {
            role: sum(
                device.free + len(device.used)
                for node in hosts
                for device in node.devices
                if (device.role or "") == role
            )
            for role in {device.role or "" for node in hosts for device in node.devices}
        }
    )


def _count_cloud_devices(
    hosts: Iterable[SnapshotNode], labels: Mapping[str, str]
) -> tuple[MetricSample, ...]:
    counts: Counter[tuple[str, ...]] = Counter(
        {
            (label, state, service): 0
            for label in labels.values()
            for state in (_FREE, _USED)
            for service in (_IN, _OUT)
        }
    )
    for node in hosts:
        for device in node.devices:
            label, service = labels[device.role or ""], _service_of(node)
            counts[label, _FREE, service] += device.free
            counts[label, _USED, service] += len(device.used)
    return list_count_samples(catalogue.CLOUD_DEVICES, counts)


def _count_health(health: Iterable[NodeHealth]) -> Iterator[MetricSample]:
    states: Counter[tuple[str, ...]] = Counter({(state,): 0 for state in _STATES})
    ailing = left_out = 0
    for node in health:
        for address in node.withheld:
            state = node.states.get(address, (_WITHHELD, 0.0))[0]
            states[(state if state in _STATES else OTHER,)] += 1
        ailing += len(node.in_use)
        left_out += node.left_out
    yield from list_count_samples(catalogue.CLOUD_WITHHELD, states)
    yield MetricSample(catalogue.CLOUD_AILING, ailing)
    yield MetricSample(catalogue.CLOUD_UNLISTED, left_out)


# --- sets ----------------------------------------------------------------------------------


def _measure_cloud_sets(
    hosts: Iterable[SnapshotNode], labels: Mapping[str, str]
) -> Iterator[MetricSample]:
    largest: dict[tuple[str, ...], int] = {}
    hosts_with: Counter[tuple[str, ...]] = Counter()
    for node in hosts:
        amounts = _count_role_devices([node])
        for role, amount in amounts.items():
            if not role or labels[role] != role:
                continue
            sizes = [size for size in _SIZES if size <= amount]
            try:
                measured = measure_largest_sets(snapshot.engine_host(node, ()), role)
            except ValueError:
                continue  # a host that contradicts itself gets no server, either
            for level, most in measured.items():
                in_service = most if node.out is None else 0
                key = (role, level.word)
                largest[key] = max(largest.get(key, 0), in_service)
                for size in sizes:
                    hosts_with[(*key, str(size))] += size <= in_service
    yield from list_count_samples(catalogue.CLOUD_LARGEST, largest)
    yield from list_count_samples(catalogue.CLOUD_SETS, hosts_with)


# --- flavors -------------------------------------------------------------------------------


def _list_flavor_samples(
    cloud: Snapshot,
    fabric: FabricMap,
    name: str,
    members: Sequence[int],
    labels: Mapping[str, str],
) -> Iterator[MetricSample]:
    try:
        capacity = measure_capacity(cloud, name)
    except SnapshotError:
        # It may come and go; the other metrics of the cloud stay.
        yield MetricSample(catalogue.FLAVOR_UP, 0, (name,))
        return
    yield MetricSample(catalogue.FLAVOR_UP, 1, (name,))
    yield MetricSample(catalogue.FLAVOR_FIT, capacity.total, (name,))
    yield from list_count_samples(
        catalogue.FLAVOR_STRANDED,
        {
            (name, labels[role]): number
            for role, number in _count_stranded_devices(cloud, capacity).items()
        },
    )
    reasons: Counter[tuple[str, ...]] = Counter(
        {(name, reason): 0 for reason in (_OUT, *(unmet.name.lower() for unmet in Unmet))}
    )
    for room in capacity.rooms:
        if not room.fit:
            reason = _OUT if room.unmet is None else room.unmet.name.lower()
            reasons[name, reason] += 1
    yield from list_count_samples(catalogue.FLAVOR_REFUSALS, reasons)
    for at_level in count_clusters_by_level(fabric, capacity.by_host, 1):
        yield MetricSample(catalogue.FLAVOR_LARGEST, at_level.largest, (name, at_level.level))
    for number in dict.fromkeys(members):
        for at_level in count_clusters_by_level(fabric, capacity.by_host, number):
            yield MetricSample(
                catalogue.FLAVOR_CLUSTERS, at_level.clusters, (name, str(number), at_level.level)
            )


def _count_stranded_devices(cloud: Snapshot, capacity: Capacity) -> dict[str, int]:
    """Return role -> free devices of the flavor's kinds left when its servers fill the cloud."""
    request = capacity.request
    if request is None:
        return {}
    wanted: Counter[str] = Counter()
    for want in request.wants:
        if want.key in request.roles:
            wanted[request.roles[want.key]] += want.count
    free = Counter(
        {
            role: sum(
                device.free
                for node in cloud.hosts
                if node.out is None
                for device in node.devices
                # Devices of ports are for no flavor.
                if device.role == role and device.ports is None
            )
            for role in wanted
        }
    )
    return {role: free[role] - capacity.total * count for role, count in wanted.items()}
