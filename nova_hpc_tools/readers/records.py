# SPDX-License-Identifier: Apache-2.0
"""What Nova's databases, Placement and Keystone have of a cloud, for ``nova-hpc doctor``.

The entry point ``nova_records`` of ``nova_hpc.readers``. Allocations are read before the
records of servers: one that is made meanwhile is not seen, instead of being seen without
its server.
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

from nova_hpc.fabric.aggregates import read_place
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.from_nova import leftovers, node_stats
from nova_hpc.from_nova.leftovers import Suspect
from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import SnapshotError, printable
from nova_hpc_tools.snapshot.cloud_records import Alias, Device, Host, Leftover, Provider, Records

CONF = nova.conf.CONF

#: The first that tells the roots of providers.
_MICROVERSION: Final = "1.14"
_NETWORK: Final = "physical_network"
_GONE: Final = (fields.PciDeviceStatus.REMOVED, fields.PciDeviceStatus.DELETED)
_USED: Final = (fields.PciDeviceStatus.CLAIMED, fields.PciDeviceStatus.ALLOCATED)


class _NoAnswerError(Exception):
    """Placement did not answer; the text is a sentence without its full stop."""


#: Goes through a sequence, and shows how far it is.
Track = Callable[[Sequence[Any]], Iterable[Any]]


def reader(arguments: Sequence[str] = ()) -> Callable[[Track], Records]:
    """What reads them, as often as it is called.

    It takes what shows how far it is: two requests to Placement for each device take long.

    :param arguments: as those of :func:`nova_hpc_tools.readers.snapshot.read`.
    :raises nova_hpc_tools.snapshot.SnapshotError: also when it is called: Nova's databases
        cannot be read; the text names the cure. What else cannot be read is named in the records.
    """
    snapshot.configure(arguments)

    def read(track: Track) -> Records:
        with snapshot.explained():
            return take(track)

    return read


def take(track: Track = iter) -> Records:
    """Read them once, with the configuration that is in force."""
    context = nova_context.get_admin_context()
    problems: list[str] = []
    placement = _placement(problems, track)
    cells = _cells(context, problems)
    hosts = tuple(host for cell in cells for host in cell.hosts)
    return Records(
        hosts=tuple(sorted(hosts, key=lambda each: (each.host, each.node))),
        providers=tuple(placement.providers),
        leftovers=tuple(_leftovers(context, placement, cells)),
        aliases=tuple(_named_aliases(problems)),
        roles=_roles(),
        problems=tuple(problems),
        complete=not problems,
    )


# --- Placement ---------------------------------------------------------------------------


@attrs.frozen
class _Placement:
    """What was read of it."""

    providers: list[Provider]
    #: Provider -> consumer -> its resources there.
    allocations: Mapping[str, Mapping[str, Any]]


def _placement(problems: list[str], track: Track) -> _Placement:
    found: list[Provider] = []
    allocations: dict[str, Mapping[str, Any]] = {}
    try:
        everything = _get("/resource_providers")["resource_providers"]
        names = {each["uuid"]: str(each["name"]) for each in everything}
        devices = [
            Provider(str(each["uuid"]), printable(node), address)
            for each in everything
            for node in [names.get(each.get("root_provider_uuid"), "")]
            if (address := _address_of(str(each["name"]), node)) is not None
        ]
        for device in track(devices):
            place = f"/resource_providers/{device.uuid}"
            inventories = _get(f"{place}/inventories")["inventories"]
            allocations[device.uuid] = _get(f"{place}/allocations")["allocations"]
            for resource_class, one in sorted(inventories.items())[:1]:
                total, reserved = int(one["total"]), int(one["reserved"])
                device = attrs.evolve(
                    device, resource_class=resource_class, total=total, reserved=reserved
                )
            found.append(device)
    except _NoAnswerError as error:
        problems.append(f"{error}.")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problems.append(f"Placement's answer cannot be read: {error!r}.")
    return _Placement(found, allocations)


def _address_of(name: str, node: str) -> str | None:
    """The PCI address of a provider that nova-compute has made for a device of *node*."""
    start, _, rest = name.rpartition("_")
    if not node or start != node:
        return None
    try:
        return normalise_address(rest)
    except AddressError:
        return None


def _get(url: str) -> Mapping[str, Any]:
    try:
        answer = report.report_client_singleton().get(url, version=_MICROVERSION)
    except (keystone.ClientException, exception.NovaException) as error:
        raise _NoAnswerError(f"Placement does not answer ({_line(error)})") from error
    if answer is None or answer.status_code != 200:
        code = "nothing" if answer is None else answer.status_code
        raise _NoAnswerError(f"Placement answers {code} to {url}")
    try:
        body: Mapping[str, Any] = answer.json()
    except ValueError as error:
        raise _NoAnswerError(f"Placement's answer to {url} is no JSON") from error
    return body


def _roles() -> frozenset[str] | None:
    """Roles of Nova's user in Placement; None: its credentials tell none."""
    try:
        adapter = utils.get_ksa_adapter("placement")
        access = adapter.session.auth.get_access(adapter.session)
        return frozenset(map(str, access.role_names))
    except Exception:
        # Whatever it is: Placement itself says whether it takes these credentials.
        return None


# --- Nova --------------------------------------------------------------------------------


@attrs.frozen
class _Cell:
    """What was read of one cell."""

    mapping: Any
    hosts: list[Host]
    #: Node -> Nova's records of its devices.
    devices: Mapping[str, list[Any]]


def _cells(context: Any, problems: list[str]) -> list[_Cell]:
    metadata: dict[str, list[Mapping[str, str]]] = collections.defaultdict(list)
    for aggregate in objects.AggregateList.get_all(context):
        for host in aggregate.hosts:
            metadata[host].append(aggregate.metadata)
    nova_context.load_cells()
    found = []
    for cell in nova_context.CELLS:
        if cell.is_cell0():
            continue
        try:
            with nova_context.target_cell(context, cell) as in_cell:
                found.append(_cell(in_cell, cell, metadata))
        except Exception as error:
            # A database of a cell that does not answer hides no other cell.
            problems.append(
                f"Cell {cell.identity} cannot be read ({_line(error)}), so its nodes are missing."
            )
    return found


def _cell(context: Any, cell: Any, metadata: Mapping[str, Any]) -> _Cell:
    hosts, devices = [], {}
    for compute in objects.ComputeNodeList.get_all(context):
        records = [
            each
            for each in objects.PciDeviceList.get_by_compute_node(context, compute.id)
            if each.status not in _GONE
        ]
        hosts.append(_host(compute, records, metadata.get(compute.host, ())))
        devices[compute.hypervisor_hostname] = records
    return _Cell(cell, hosts, devices)


def _host(compute: Any, records: Sequence[Any], metadata: Iterable[Mapping[str, str]]) -> Host:
    reading = read_place(compute.host, metadata)
    word = node_stats.word_of(compute)
    ports = [each for each in records if not each.extra_info.get("rp_uuid")]
    return Host(
        host=printable(compute.host),
        node=printable(compute.hypervisor_hostname),
        devices=tuple(_devices(records)),
        networks=frozenset(_networks(compute)),
        idle=not any(each.status in _USED for each in ports),
        ours=word.document is not None or word.unread is not None,
        stock=word.stock,
        leaf=reading.place.leaf,
        placed=any(reading.place.domain(level) for level in FabricLevel),
        contradictions=tuple(map(printable, reading.problems)),
        unread=word.unread,
    )


def _devices(records: Iterable[Any]) -> Iterator[Device]:
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for each in records:
        provider = each.extra_info.get("rp_uuid")
        if provider:
            child = each.dev_type in (fields.PciDeviceType.SRIOV_VF, fields.PciDeviceType.VDPA)
            counts[(each.parent_addr if child else None) or each.address, provider] += 1
    for (address, provider), count in sorted(counts.items()):
        yield Device(address, provider, count)


def _networks(compute: Any) -> Iterator[str]:
    for pool in compute.pci_device_pools or ():
        name = (pool.tags or {}).get(_NETWORK)
        if name:
            yield printable(name)


def _named_aliases(problems: list[str]) -> Iterator[Alias]:
    if not CONF.filter_scheduler.pci_in_placement:
        return
    try:
        found, _ = snapshot.read_aliases()
    except SnapshotError as error:
        problems.append(f"{error}.")
        return
    for each in found:
        if each.resource_class is not None:
            yield Alias(each.name, each.resource_class)


# --- allocations -------------------------------------------------------------------------


def _leftovers(context: Any, placement: _Placement, cells: Iterable[_Cell]) -> Iterator[Leftover]:
    by_node: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for each in placement.providers:
        by_node[each.node][each.uuid] = each.address
    for cell in cells:
        for host in cell.hosts:
            for suspect in leftovers.suspects(
                _by_consumer(placement, by_node.get(host.node, {})),
                by_node.get(host.node, {}),
                cell.devices[host.node],
            ):
                cure = _cure(context, suspect, host.host, cell)
                if cure is not None:
                    yield Leftover(suspect.consumer, host.node, suspect.addresses, cure)


def _by_consumer(placement: _Placement, providers: Iterable[str]) -> Mapping[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for provider in providers:
        for consumer, resources in placement.allocations.get(provider, {}).items():
            of_consumer = found.setdefault(consumer, {"allocations": {}})
            of_consumer["allocations"][provider] = resources
    return found


def _cure(context: Any, suspect: Suspect, host: str, cell: _Cell) -> str | None:
    """What helps; None: the consumer has a right to it, or nobody knows."""
    try:
        mapping = objects.InstanceMapping.get_by_instance_uuid(context, suspect.consumer)
    except exception.InstanceMappingNotFound:
        mapping = None  # a migration, or a server that was archived
    if mapping is not None and mapping.cell_mapping is None:
        return None  # it is being scheduled
    where = cell.mapping if mapping is None else mapping.cell_mapping
    if where.is_cell0():
        return leftovers.delete(suspect)  # no host was found for it, and none ever is
    try:
        with nova_context.target_cell(context, where) as in_cell:
            found = leftovers.cure(in_cell, suspect, host)
    except Exception:
        return None
    return None if found is None else found.text


def _line(error: BaseException) -> str:
    return printable((str(error).strip() or type(error).__name__).splitlines()[0][:200])
