# SPDX-License-Identifier: Apache-2.0
"""A program that reads ports and P_Key tables of a fabric by libibmad.

It reads one JSON object a line, writes one for each, and exits when its input ends. It is a process
of its own for two reasons. A library that waits for an answer of the fabric cannot be interrupted,
and a simulated fabric (ibsim) needs a library loaded before all others. The program uses only the
standard library.

Attributes and offsets: InfiniBand Architecture Specification, volume 1, 14.2.5 (NodeInfo,
PortInfo, P_KeyTable), as in ``libibmad/src/fields.c``; structures: ``infiniband/mad.h``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

_NODE_INFO: Final = 0x11
_SWITCH_INFO: Final = 0x12
_PORT_INFO: Final = 0x15
_PKEY_TABLE: Final = 0x16
_SM_INFO: Final = 0x20
#: SMPs by LID and by way; the library wants both.
_CLASSES: Final = (0x01, 0x81)
_KINDS: Final = {1: "ca", 2: "switch", 3: "router"}
_ENTRIES_OF_A_BLOCK: Final = 32
#: PortState: 1 down, 2 init, 3 armed, 4 active.
_DOWN: Final = 1
_INIT: Final = 2
#: CapabilityMask: a subnet manager runs at the port.
_IS_SM: Final = 0x2
_MANAGER_STATES: Final = ("not active", "discovering", "standby", "master")
#: The most switches on a path, in hops (IB_SUBNET_PATH_HOPS_MAX).
_MOST_HOPS: Final = 63
#: Timeout of one query in ms, and the number of tries.
_TIMEOUT: Final = 200
_TRIES: Final = 3

#: Egress ports from the local port on. All queries use paths and not LIDs: a LID may belong to
#: another port by now, and only the path shows that a cable was moved.

Path = tuple[int, ...]


class _Route(ctypes.Structure):
    """The C structure ``ib_dr_path_t``: a directed route."""

    _fields_ = [
        ("cnt", ctypes.c_int),
        ("p", ctypes.c_uint8 * 64),
        ("drslid", ctypes.c_uint16),
        ("drdlid", ctypes.c_uint16),
    ]


class _Destination(ctypes.Structure):
    """The C structure ``ib_portid_t``, with room at the end for additions of a later release."""

    _fields_ = [
        ("lid", ctypes.c_int),
        ("drpath", _Route),
        ("grh_present", ctypes.c_int),
        ("gid", ctypes.c_uint8 * 16),
        ("qp", ctypes.c_uint32),
        ("qkey", ctypes.c_uint32),
        ("sl", ctypes.c_uint8),
        ("pkey_idx", ctypes.c_uint),
        ("room", ctypes.c_uint8 * 64),
    ]


class _Mads:
    """Sender of subnet management packets (SMPs) through libibmad."""

    def __init__(self, device: str | None, port: int, m_key: int) -> None:
        """Open the local port.

        :raises OSError: the library is not installed, or the port does not exist.
        """
        library = ctypes.CDLL("libibmad.so.5")
        library.mad_rpc_open_port.restype = ctypes.c_void_p
        library.smp_query_via.restype = ctypes.c_void_p
        library.smp_query_via.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(_Destination),
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_void_p,
        ]
        library.mad_rpc_set_retries.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.smp_mkey_set.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self._library = library
        classes = (ctypes.c_int * len(_CLASSES))(*_CLASSES)
        name = None if device is None else device.encode()
        self._port = library.mad_rpc_open_port(name, port, classes, len(_CLASSES))
        if not self._port:
            raise OSError(f"the local port {device or ''}/{port} cannot be opened")
        library.mad_rpc_set_retries(self._port, _TRIES)
        library.smp_mkey_set(self._port, m_key)
        self._answer = ctypes.create_string_buffer(256)

    def ask(self, path: Path, attribute: int, modifier: int) -> bytes | None:
        """Query the node at the end of a path; None if it does not answer."""
        destination = _Destination()
        destination.drpath.cnt = len(path)
        for hop, port in enumerate(path, 1):
            destination.drpath.p[hop] = port
        answered = self._library.smp_query_via(
            self._answer,
            ctypes.byref(destination),
            attribute,
            modifier,
            _TIMEOUT,
            self._port,
        )
        return self._answer.raw[:64] if answered else None


class _NodeInfo:
    """The NodeInfo of a fabric node, and the port that received the query."""

    def __init__(self, data: bytes) -> None:
        self.kind = _KINDS.get(data[2], "other")
        self.ports = data[3]
        self.node_guid = int.from_bytes(data[12:20], "big")
        self.port_guid = int.from_bytes(data[20:28], "big")
        self.port = data[36]


def _walk_fabric(mads: _Mads, end: float) -> dict[str, Any]:
    """Find all end ports, from the local port on, switch by switch.

    :param end: no query starts after it, by time.monotonic(); "whole" is False if some are missing.
    """
    walk = _Walk(mads, end)
    walk.start()
    return {
        "ports": walk.found,
        "manager_lid": walk.manager_lid,
        "managers": walk.managers,
        "whole": not walk.cut_off,
        "silent": walk.silent,
        "silent_places": walk.silent_places,
    }


class _Walk:
    def __init__(self, mads: _Mads, end: float) -> None:
        self._mads = mads
        self._end = end
        #: [GUID, kind, LID, port, LID of the switch, its port, way]; without a switch null twice.
        self.found: list[list[Any]] = []
        self.manager_lid = 0
        #: [GUID, state] of each port with a subnet manager.
        self.managers: list[list[Any]] = []
        #: Number of ports that are up and do not answer.
        self.silent = 0
        #: [LID of the switch, its port] that such a port is connected to.
        self.silent_places: list[list[int]] = []
        self.cut_off = False
        self._switches: set[int] = set()
        self._queue: deque[tuple[Path, _NodeInfo]] = deque()
        #: Ends of cables between switches that have been seen from the other side.
        self._ends: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Start the walk over the fabric at the local port."""
        data = self._mads.ask((), _NODE_INFO, 0)
        if data is None:
            raise OSError("the local port does not answer")
        local = _NodeInfo(data)
        info = self._mads.ask((), _PORT_INFO, 0 if local.kind == "switch" else local.port)
        if info is not None:
            self.manager_lid = int.from_bytes(info[18:20], "big")
        if local.kind == "switch":
            self._add_switch((), local)
        else:
            self._leave_local(local, info)
        while self._queue:
            self._visit_switch(*self._queue.popleft())

    def _leave_local(self, local: _NodeInfo, info: bytes | None) -> None:
        data = self._mads.ask((local.port,), _NODE_INFO, 0)
        if data is None:
            # The cable is unplugged: the fabric consists of this port only.
            if info is not None:
                self._add_end_port(local, info, ())
            return
        neighbour = _NodeInfo(data)
        if neighbour.kind == "switch":
            self._add_switch((local.port,), neighbour)
            return
        for node, path in ((local, ()), (neighbour, (local.port,))):
            info = self._mads.ask(path, _PORT_INFO, node.port)
            if info is None:
                self.silent += 1
            else:
                self._add_end_port(node, info, path)

    def _add_switch(self, path: Path, node: _NodeInfo) -> None:
        if node.node_guid not in self._switches:
            self._switches.add(node.node_guid)
            self._queue.append((path, node))

    def _add_end_port(
        self,
        node: _NodeInfo,
        info: bytes,
        path: Path,
        switch: int | None = None,
        port: int | None = None,
    ) -> None:
        lid = int.from_bytes(info[16:18], "big")
        number = 0 if node.kind == "switch" else node.port
        self.found.append([node.port_guid, node.kind, lid, number, switch, port, path])
        if int.from_bytes(info[20:24], "big") & _IS_SM:
            self.managers.append([node.port_guid, self._read_manager_state(path)])

    def _read_manager_state(self, path: Path) -> str:
        """Read SMInfo's SMState (14.2.5.13) at *path*; "unknown" if the manager does not answer."""
        data = self._mads.ask(path, _SM_INFO, 0)
        state = len(_MANAGER_STATES) if data is None else data[20] & 0xF
        return _MANAGER_STATES[state] if state < len(_MANAGER_STATES) else "unknown"

    def _visit_switch(self, path: Path, node: _NodeInfo) -> None:
        info = self._mads.ask(path, _PORT_INFO, 0)
        if info is None:
            self.silent += 1
            return
        lid = int.from_bytes(info[16:18], "big")
        self._add_end_port(node, info, path)
        for port in range(1, node.ports + 1):
            if (node.node_guid, port) in self._ends:
                continue
            if time.monotonic() > self._end:
                self.cut_off = True
                return
            link = self._mads.ask(path, _PORT_INFO, port)
            if link is None:
                self.silent += 1
            elif link[32] & 0xF != _DOWN and len(path) < _MOST_HOPS:
                self._visit_neighbour((*path, port), lid, port)

    def _visit_neighbour(self, path: Path, switch: int, port: int) -> None:
        data = self._mads.ask(path, _NODE_INFO, 0)
        if data is None:
            self._note_silent(switch, port)
            return
        node = _NodeInfo(data)
        if node.kind == "switch":
            self._ends.add((node.node_guid, node.port))
            self._add_switch(path, node)
            return
        info = self._mads.ask(path, _PORT_INFO, node.port)
        if info is None:
            self._note_silent(switch, port)
        else:
            self._add_end_port(node, info, path, switch, port)

    def _note_silent(self, switch: int, port: int) -> None:
        self.silent += 1
        self.silent_places.append([switch, port])


def _read_table(mads: _Mads, path: Path, port: int, entries: int) -> list[int] | None:
    """Read a P_Key table without the empty entries; None if a part of it could not be read."""
    keys: set[int] = set()
    for block in range((entries + _ENTRIES_OF_A_BLOCK - 1) // _ENTRIES_OF_A_BLOCK):
        data = mads.ask(path, _PKEY_TABLE, port << 16 | block)
        if data is None:
            return None
        keys.update(int.from_bytes(data[at : at + 2], "big") for at in range(0, 64, 2))
    return sorted(key for key in keys if key & 0x7FFF)


class _Tables:
    """Reader of P_Key tables of ports, with a cache of the table sizes of switches."""

    def __init__(self, mads: _Mads) -> None:
        self._mads = mads
        self._enforced: dict[Path, int] = {}

    def read(self, port: list[Any]) -> list[Any]:
        """Read the tables of a port and of the switch port facing it.

        The switch port's table is read also if the port itself does not answer.

        :param port: its description from the walk, and whether to query the port itself.
        :returns: both tables, None for one that could not be read; whether the link is coming up.
        """
        guid, _, _, number, _, switch_port, way, is_asked = port
        path = tuple(way)
        data = self._mads.ask(path, _NODE_INFO, 0) if is_asked else None
        own, facing, is_coming_up = None, None, False
        if data is not None:
            # Another port may be at the end of the way by now.
            if int.from_bytes(data[20:28], "big") != guid:
                return [None, None, False]
            # A link that went and came back keeps its tables, and carries no data until the
            # manager has made it active. If the link's state cannot be read, the port is unread.
            info = self._mads.ask(path, _PORT_INFO, number)
            if info is not None:
                is_coming_up = info[32] & 0xF == _INIT
                own = _read_table(self._mads, path, number, int.from_bytes(data[28:30], "big"))
        if switch_port is not None:
            entries = self._entries_of_switch(path[:-1])
            if entries is not None:
                facing = _read_table(self._mads, path[:-1], switch_port, entries)
        return [own, facing, is_coming_up]

    def _entries_of_switch(self, path: Path) -> int | None:
        if path not in self._enforced:
            data = self._mads.ask(path, _SWITCH_INFO, 0)
            if data is None:
                return None
            self._enforced[path] = int.from_bytes(data[14:16], "big")
        return self._enforced[path]

    def forget_switches(self) -> None:
        """Forget the cached switches, because routes may lead elsewhere now."""
        self._enforced.clear()


def _answer_lines(lines: Iterable[str]) -> None:
    mads: _Mads | None = None
    tables: _Tables | None = None
    for line in lines:
        request = json.loads(line)
        end = time.monotonic() + request["seconds"]
        answer: dict[str, Any]
        try:
            if mads is None or tables is None:
                mads = _Mads(request["device"], request["port"], request["m_key"])
                tables = _Tables(mads)
            if request["do"] == "walk":
                tables.forget_switches()
                answer = _walk_fabric(mads, end)
            else:
                answer = {
                    "tables": [
                        tables.read(port) if time.monotonic() < end else [None, None, False]
                        for port in request["ports"]
                    ]
                }
        except (OSError, AttributeError) as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _answer_lines(sys.stdin)
