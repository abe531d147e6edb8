# SPDX-License-Identifier: Apache-2.0
"""The objects that Nova has built from records of compute nodes, kept until a record changes.

For each request Nova's scheduler reads the records of all hosts that Placement names, and
builds a host state from each. It parses texts, makes objects from them, and makes pools of
devices from the objects. Nearly all records are unchanged since the request before. So the
result for a record is kept with the record's version, and the next request reads only the
versions from the cell's database.

Exact by construction: every write through Nova sets a record's ``updated_at``
(``compute_node_update``), and a version also contains the columns that a claim changes.
Databases keep whole seconds, so a record is kept only if it was :data:`_SETTLED` seconds old
when it was read: no write in the same second can be missed. The clocks of the schedulers and
conductors must agree to some seconds, as for Nova's own services.

Values that other code might change in place are copied for each request: lists, dictionaries,
and the pools of devices. The NUMA topology is shared; Nova makes a new one when it consumes a
server (``numa_usage_from_instance_numa``), which a test checks.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
from nova import context as nova_context
from nova import objects
from nova.db.main import api as main_db
from nova.db.main import models
from nova.pci import stats as pci_stats
from nova.scheduler import host_manager
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import timeutils

from nova_hpc import conf as hpc_conf

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register_all_options(CONF)

#: A record's version: columns that are fields of Nova's object by the same name. A claim
#: changes the columns with used amounts, in any second.
_VERSION: Final = (
    *("uuid", "updated_at", "id", "host", "hypervisor_hostname"),
    *("vcpus_used", "memory_mb_used", "local_gb_used", "running_vms"),
)
#: Seconds. A record that was written less than this time ago may be written again in the second
#: of its ``updated_at``.
_SETTLED: Final = 5.0
#: With this number of compute nodes or more, the query reads all versions of the cell.
_NAMED: Final = 500

#: A host keeps derived results for so many kinds of requests.
_KEYS: Final = 4

_Made = TypeVar("_Made")

#: Field of a NUMA node, its value -> that value in the types of Nova's fields.
_PARTS: Final[weakref.WeakValueDictionary[tuple[str, Hashable], Any]] = (
    weakref.WeakValueDictionary()
)

#: One row of the columns of :data:`_VERSION`.
Version = tuple[Any, ...]


@attrs.frozen(eq=False)
class KeptHost:
    """A cached record of a compute node. It takes the record's place in Nova's host manager."""

    version: Version
    #: From Nova's object.
    uuid: str
    host: str
    hypervisor_hostname: str
    updated_at: datetime.datetime
    #: Attribute of a host state -> value that is never changed in place.
    _shared: Mapping[str, Any] = attrs.field(repr=False)
    #: Lists and dictionaries, which are copied.
    _copied: Mapping[str, Any] = attrs.field(repr=False)
    _pci_stats: Mapping[str, Any] = attrs.field(repr=False)
    #: Results that callers have derived from it.
    _made: dict[Hashable, Any] = attrs.field(factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, record: objects.ComputeNode) -> KeptHost | None:
        """Build the cached objects from a record; None if the record cannot be cached."""
        built = _build_attributes(record)
        stats = built.pop("pci_stats", None)
        # A record that was never updated has no values; a class outside Nova may have state.
        if record.updated_at is None or type(stats) is not pci_stats.PciDeviceStats:
            return None
        _share_parts(stats.numa_topology)
        # Without the types of Nova's fields, which reference the whole record.
        copied: dict[str, Any] = {}
        for name, value in built.items():
            for plain in (dict, list):
                if isinstance(value, plain):
                    copied[name] = plain(value)
        return cls(
            version=version_of_record(record),
            uuid=record.uuid,
            host=record.host,
            hypervisor_hostname=record.hypervisor_hostname,
            updated_at=record.updated_at,
            shared={name: value for name, value in built.items() if name not in copied},
            copied=copied,
            pci_stats={**vars(stats), "pools": [_share_texts(pool) for pool in stats.pools]},
        )

    def update_state(self, state: host_manager.HostState) -> None:
        """Set the attributes of Nova's host state from the cache.

        This replaces ``HostState._update_from_compute_node``.
        """
        if state.updated and state.updated > self.updated_at:
            return
        values = vars(state)
        values.update(self._shared)
        for name, value in self._copied.items():
            values[name] = value.copy()
        stats = object.__new__(pci_stats.PciDeviceStats)
        vars(stats).update(self._pci_stats)
        stats.pools = [pool.copy() for pool in self._pci_stats["pools"]]
        values["pci_stats"] = stats
        values["hpc_kept"] = self

    def recall(
        self, state: host_manager.HostState, key: Hashable, make: Callable[[], _Made]
    ) -> _Made:
        """Return the cached result for *state* under *key*; *make* computes a missing one.

        It is made again, and not cached, if something has been consumed on the host since.
        """
        if (
            state.numa_topology is not self._shared["numa_topology"]
            or state.pci_stats.pools != self._pci_stats["pools"]
        ):
            return make()
        made: _Made | None = self._made.get(key)
        if made is None:
            made = make()
            if len(self._made) >= _KEYS:
                self._made.clear()
            self._made[key] = made
        return made


def _share_texts(pool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the pool with texts that pools of many hosts share in memory."""
    return {
        sys.intern(key): sys.intern(value) if type(value) is str else value
        for key, value in pool.items()
    }


def _share_parts(topology: objects.NUMATopology | None) -> None:
    """Replace CPU sets in *topology* with equal ones of other hosts, to save most of the memory."""
    for cell in topology.cells if topology else ():
        for name in ("cpuset", "pcpuset"):
            _replace_by_equal(cell, name, frozenset(getattr(cell, name)))
        _replace_by_equal(cell, "siblings", tuple(map(frozenset, cell.siblings)))


def _replace_by_equal(cell: objects.NUMACell, name: str, value: Hashable) -> None:
    # The setters of Nova's objects make copies; no code changes these in place.
    attribute = f"_obj_{name}"
    setattr(cell, attribute, _PARTS.setdefault((name, value), getattr(cell, attribute)))


class _RecordedState(host_manager.HostState):
    """A host state that records which attributes were set."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.setdefault("hpc_names", set()).add(name)
        super().__setattr__(name, value)


def _build_attributes(record: objects.ComputeNode) -> dict[str, Any]:
    """Return name -> value of the attributes that Nova sets on a host state from a record."""
    state = _RecordedState(record.host, record.hypervisor_hostname, None)
    state.hpc_names.clear()
    state._update_from_compute_node(record)
    return {name: value for name, value in vars(state).items() if name in state.hpc_names}


def version_of_record(record: objects.ComputeNode) -> Version:
    """Return the version (update time and other columns) of a record, as :func:`read_versions`."""
    values = {name: getattr(record, name) for name in _VERSION}
    return tuple({**values, "updated_at": timeutils.normalize_time(record.updated_at)}.values())


@main_db.pick_context_manager_reader
def read_versions(context: nova_context.RequestContext, uuids: Collection[str]) -> list[Version]:
    """Read the versions of the compute nodes *uuids* from one cell's database.

    :raises Exception: any error of the database.
    """
    columns = [getattr(models.ComputeNode, name) for name in _VERSION]
    query = main_db.model_query(context, models.ComputeNode, args=columns)
    if len(uuids) < _NAMED:
        query = query.filter(models.ComputeNode.uuid.in_(uuids))
    return [tuple(row) for row in query.all() if row.uuid in uuids]


class KeptHosts:
    """The scheduler's thread-safe cache of Nova's compute node records, by cell and UUID.

    It keeps at most ``[hpc]kept_hosts`` records; the least recently used go first.
    """

    def __init__(self) -> None:
        #: Cell, uuid -> host.
        self._kept: collections.OrderedDict[tuple[str | None, str], KeptHost] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()

    def find(self, cell: str | None, versions: Iterable[Version]) -> dict[str, KeptHost]:
        """Return UUID -> cached host, for the hosts of a cell whose version is unchanged."""
        found = {}
        with self._lock:
            for version in versions:
                key = (cell, version[0])
                kept = self._kept.get(key)
                if kept is not None and kept.version == version:
                    self._kept.move_to_end(key)
                    found[kept.uuid] = kept
        return found

    def keep(
        self, cell: str | None, records: Sequence[objects.ComputeNode], read_at: datetime.datetime
    ) -> list[objects.ComputeNode | KeptHost]:
        """Cache the records that can be cached; return all in order, the cached ones as KeptHost.

        :param read_at: when the reading of the records began, UTC, without a time zone.
        """
        hosts: list[objects.ComputeNode | KeptHost] = []
        for record in records:
            kept = None
            if _is_settled(record, read_at):
                # An unreadable record raises in Nova's own code, for the caller.
                with contextlib.suppress(Exception):
                    kept = KeptHost.of(record)
            hosts.append(record if kept is None else kept)
        most = CONF.hpc.kept_hosts
        with self._lock:
            for kept in hosts:
                if isinstance(kept, KeptHost):
                    key = (cell, kept.uuid)
                    self._kept[key] = kept
                    self._kept.move_to_end(key)
            while len(self._kept) > most:
                self._kept.popitem(last=False)
        return hosts

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Remove all cached hosts."""
        with self._lock:
            self._kept.clear()


def _is_settled(record: objects.ComputeNode, read_at: datetime.datetime) -> bool:
    if record.updated_at is None:
        return False
    age = read_at - timeutils.normalize_time(record.updated_at)
    return bool(age.total_seconds() >= _SETTLED)


#: The hosts of this process.
KEPT_HOSTS: Final = KeptHosts()
