# SPDX-License-Identifier: Apache-2.0
"""The records of Nova's databases, Placement and Keystone, for ``nova-hpc doctor``.

The entry point ``nova_records`` of ``nova_hpc.readers``. Allocations are read before the records of
servers. So an allocation that is made in between is missing, instead of being there without its
server.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import nova.conf
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception, objects, utils
from nova.objects import fields
from nova.scheduler.client import report

from nova_hpc.fabric.aggregates import read_aggregate_place
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.from_nova import leftovers, node_stats
from nova_hpc.from_nova.leftovers import LeftoverConsumer
from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc_tools.readers import snapshot, snapshot_hosts
from nova_hpc_tools.snapshot import SnapshotError, make_printable_text
from nova_hpc_tools.snapshot.cloud_records import (
    CloudRecords,
    CyborgProvider,
    Leftover,
    PciProvider,
    RecordedDevice,
    RecordedHost,
    ServiceAlias,
)

CONF = nova.conf.CONF

#: The first version that returns the roots of providers.
_MICROVERSION: Final = "1.14"
#: Providers with the trait of Cyborg's own providers (cyborg/conductor/manager.py), and the first
#: first that filters by traits.
_OF_CYBORG: Final = "/resource_providers?required=OWNER_CYBORG"
_WITH_TRAITS: Final = "1.18"
_NETWORK: Final = "physical_network"
_GONE: Final = (fields.PciDeviceStatus.REMOVED, fields.PciDeviceStatus.DELETED)
_USED: Final = (fields.PciDeviceStatus.CLAIMED, fields.PciDeviceStatus.ALLOCATED)


class _RecordsUnansweredError(Exception):
    """Placement did not answer. The text is a sentence without its full stop."""


#: Goes through a sequence, and shows the progress.
Track = Callable[[Sequence[Any]], Iterable[Any]]


def make_records_reader(arguments: Sequence[str] = ()) -> Callable[[Track], CloudRecords]:
    """Make a function that reads the records of the cloud each time it is called.

    The function gets an argument that shows progress: two requests to Placement per device take
    long.

    :param arguments: as for :func:`nova_hpc_tools.readers.snapshot.read_snapshot`.
    :raises nova_hpc_tools.snapshot.SnapshotError: also when it is called: Nova's databases
        cannot be read; the text names the cure. The records name other parts that are unreadable.
    """
    snapshot.configure_nova(arguments)

    def read(track: Track) -> CloudRecords:
        with snapshot.explain_read_errors():
            return collect_records(track)

    return read


def collect_records(track: Track = iter) -> CloudRecords:
    """Read the records of the cloud once, with the Nova configuration that is loaded already."""
    context = nova_context.get_admin_context()
    problems: list[str] = []
    placement = _read_placement(problems, track)
    cells = _read_nova_cells(context, problems)
    hosts = tuple(host for cell in cells for host in cell.hosts)
    return CloudRecords(
        hosts=tuple(sorted(hosts, key=lambda host: (host.host, host.node))),
        providers=tuple(placement.providers),
        cyborg=tuple(placement.cyborg),
        leftovers=tuple(_find_leftovers(context, placement, cells)),
        aliases=tuple(_named_aliases(problems)),
        roles=_roles_in_placement(),
        problems=tuple(problems),
        complete=not problems,
    )


# --- Placement ---------------------------------------------------------------------------


@attrs.frozen
class _PlacementRecords:
    """The records that were read from Placement: PCI providers and their allocations."""

    providers: list[PciProvider]
    #: Provider -> consumer -> its resources there.
    allocations: Mapping[str, Mapping[str, Any]]
    cyborg: list[CyborgProvider] = attrs.field(factory=list)


def _read_placement(problems: list[str], track: Track) -> _PlacementRecords:
    """Read the providers of PCI devices with inventories and allocations, and Cyborg's providers.

    An error ends the reading with a sentence in *problems*. The records read before it stay.
    """
    providers: list[PciProvider] = []
    allocations: dict[str, Mapping[str, Any]] = {}
    cyborg: list[CyborgProvider] = []
    try:
        everything = _get_from_placement("/resource_providers")["resource_providers"]
        names = {provider["uuid"]: str(provider["name"]) for provider in everything}
        devices = [
            PciProvider(str(provider["uuid"]), make_printable_text(node), address)
            for provider in everything
            for node in [names.get(provider.get("root_provider_uuid"), "")]
            if (address := _address_of_provider(str(provider["name"]), node)) is not None
        ]
        for device in track(devices):
            place = f"/resource_providers/{device.uuid}"
            inventories = _get_from_placement(f"{place}/inventories")["inventories"]
            allocations[device.uuid] = _get_from_placement(f"{place}/allocations")["allocations"]
            for resource_class, inventory in sorted(inventories.items())[:1]:
                total, reserved = int(inventory["total"]), int(inventory["reserved"])
                device = attrs.evolve(
                    device, resource_class=resource_class, total=total, reserved=reserved
                )
            providers.append(device)
        cyborg += [
            CyborgProvider(
                make_printable_text(names.get(provider.get("root_provider_uuid"), "")),
                make_printable_text(str(provider["name"])),
            )
            for provider in _get_from_placement(_OF_CYBORG, _WITH_TRAITS)["resource_providers"]
        ]
    except _RecordsUnansweredError as error:
        problems.append(f"{error}.")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problems.append(f"Placement's answer cannot be read: {error!r}.")
    return _PlacementRecords(providers, allocations, cyborg)


def _address_of_provider(name: str, node: str) -> str | None:
    """Return the PCI address in the name of a provider that nova-compute has made; None for others.

    :param node: name of the node.
    """
    start, _, rest = name.rpartition("_")
    if not node or start != node:
        return None
    try:
        return normalise_address(rest)
    except AddressError:
        return None


def _get_from_placement(url: str, version: str = _MICROVERSION) -> Mapping[str, Any]:
    try:
        answer = report.report_client_singleton().get(url, version=version)
    except (keystone.ClientException, exception.NovaException) as error:
        raise _RecordsUnansweredError(
            f"Placement does not answer ({_first_line_of(error)})"
        ) from error
    if answer is None or answer.status_code != 200:
        code = "nothing" if answer is None else answer.status_code
        raise _RecordsUnansweredError(f"Placement answers {code} to {url}")
    try:
        body: Mapping[str, Any] = answer.json()
    except ValueError as error:
        raise _RecordsUnansweredError(f"Placement's answer to {url} is no JSON") from error
    return body


def _roles_in_placement() -> frozenset[str] | None:
    """Return the roles of Nova's user in Placement; None if its credentials do not contain them."""
    try:
        adapter = utils.get_ksa_adapter("placement")
        access = adapter.session.auth.get_access(adapter.session)
        return frozenset(map(str, access.role_names))
    except Exception:
        # After any error, Placement's own answer shows whether it takes these credentials.
        return None


# --- Nova --------------------------------------------------------------------------------


@attrs.frozen
class _CellRecords:
    """The records that were read from one cell of Nova: hosts, and devices by host."""

    mapping: Any
    hosts: list[RecordedHost]
    #: Node -> Nova's records of its devices.
    devices: Mapping[str, list[Any]]


def _read_nova_cells(context: Any, problems: list[str]) -> list[_CellRecords]:
    metadata: dict[str, list[Mapping[str, str]]] = collections.defaultdict(list)
    for aggregate in objects.AggregateList.get_all(context):
        for host in aggregate.hosts:
            metadata[host].append(aggregate.metadata)
    nova_context.load_cells()
    cells = []
    for cell in nova_context.CELLS:
        if cell.is_cell0():
            continue
        try:
            with nova_context.target_cell(context, cell) as in_cell:
                cells.append(_read_nova_cell(in_cell, cell, metadata))
        except Exception as error:
            # A database of a cell that does not answer hides no other cell.
            problems.append(
                f"Cell {cell.identity} cannot be read ({_first_line_of(error)}), so its "
                f"nodes are missing."
            )
    return cells


def _read_nova_cell(context: Any, cell: Any, metadata: Mapping[str, Any]) -> _CellRecords:
    hosts, devices = [], {}
    for compute in objects.ComputeNodeList.get_all(context):
        records = [
            record
            for record in objects.PciDeviceList.get_by_compute_node(context, compute.id)
            if record.status not in _GONE
        ]
        hosts.append(_read_host_record(compute, records, metadata.get(compute.host, ())))
        devices[compute.hypervisor_hostname] = records
    return _CellRecords(cell, hosts, devices)


def _read_host_record(
    compute: Any, records: Sequence[Any], metadata: Iterable[Mapping[str, str]]
) -> RecordedHost:
    reading = read_aggregate_place(compute.host, metadata)
    word = node_stats.node_word_of_record(compute)
    ports = [record for record in records if not record.extra_info.get("rp_uuid")]
    return RecordedHost(
        host=make_printable_text(compute.host),
        node=make_printable_text(compute.hypervisor_hostname),
        devices=tuple(_group_device_records(records)),
        networks=frozenset(_networks_of_node(compute)),
        idle=not any(record.status in _USED for record in ports),
        ours=word.document is not None or word.unread is not None,
        stock=word.stock,
        leaf=reading.place.leaf,
        placed=any(reading.place.domain(level) for level in FabricLevel),
        contradictions=tuple(map(make_printable_text, reading.problems)),
        unread=word.unread,
        lacks_dedicated_cpus=_lacks_dedicated_cpus(compute),
    )


def _lacks_dedicated_cpus(compute: Any) -> bool:
    text = compute.numa_topology
    topology = objects.NUMATopology.obj_from_db_obj(text) if text else None
    return snapshot_hosts.has_no_dedicated_cpus(topology)


def _group_device_records(records: Iterable[Any]) -> Iterator[RecordedDevice]:
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for record in records:
        provider = record.extra_info.get("rp_uuid")
        if provider:
            child = record.dev_type in (fields.PciDeviceType.SRIOV_VF, fields.PciDeviceType.VDPA)
            counts[(record.parent_addr if child else None) or record.address, provider] += 1
    for (address, provider), count in sorted(counts.items()):
        yield RecordedDevice(address, provider, count)


def _networks_of_node(compute: Any) -> Iterator[str]:
    for pool in compute.pci_device_pools or ():
        name = (pool.tags or {}).get(_NETWORK)
        if name:
            yield make_printable_text(name)


def _named_aliases(problems: list[str]) -> Iterator[ServiceAlias]:
    if not CONF.filter_scheduler.pci_in_placement:
        return
    try:
        aliases, _ = snapshot.read_pci_aliases()
    except SnapshotError as error:
        problems.append(f"{error}.")
        return
    for alias in aliases:
        if alias.resource_class is not None:
            yield ServiceAlias(alias.name, alias.resource_class)


# --- allocations -------------------------------------------------------------------------


def _find_leftovers(
    context: Any, placement: _PlacementRecords, cells: Iterable[_CellRecords]
) -> Iterator[Leftover]:
    by_node: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for provider in placement.providers:
        by_node[provider.node][provider.uuid] = provider.address
    for cell in cells:
        for host in cell.hosts:
            for leftover in leftovers.find_leftover_consumers(
                _group_by_consumer(placement, by_node.get(host.node, {})),
                by_node.get(host.node, {}),
                cell.devices[host.node],
            ):
                cure = _find_cure_text(context, leftover, host.host, cell)
                if cure is not None:
                    yield Leftover(leftover.consumer, host.node, leftover.addresses, cure)


def _group_by_consumer(placement: _PlacementRecords, providers: Iterable[str]) -> Mapping[str, Any]:
    by_consumer: dict[str, dict[str, Any]] = {}
    for provider in providers:
        for consumer, resources in placement.allocations.get(provider, {}).items():
            of_consumer = by_consumer.setdefault(consumer, {"allocations": {}})
            of_consumer["allocations"][provider] = resources
    return by_consumer


def _find_cure_text(
    context: Any, leftover: LeftoverConsumer, host: str, cell: _CellRecords
) -> str | None:
    """Find the cure for a leftover allocation, as text.

    None if the consumer has a right to it, or if that is unknown.
    """
    try:
        mapping = objects.InstanceMapping.get_by_instance_uuid(context, leftover.consumer)
    except exception.InstanceMappingNotFound:
        mapping = None  # a migration, or a server that was archived
    if mapping is not None and mapping.cell_mapping is None:
        return None  # it is being scheduled
    where = cell.mapping if mapping is None else mapping.cell_mapping
    if where.is_cell0():
        return leftovers.delete_command_of(leftover)  # no host was found for it, and none ever is
    try:
        with nova_context.target_cell(context, where) as in_cell:
            cure = leftovers.find_cure(in_cell, leftover, host)
    except Exception:
        return None
    return None if cure is None else cure.text


def _first_line_of(error: BaseException) -> str:
    return make_printable_text((str(error).strip() or type(error).__name__).splitlines()[0][:200])
