# SPDX-License-Identifier: Apache-2.0
"""The last readings of the fabric, so that a new look only reads the changed parts.

The ports are searched again if one is missing or does not answer, and after a while. Tables of
members are read until they are right, then once a second. Tables of all ports are read once in
a poll interval. They are also read at once when a network has a P_Key for the first time, and while
a stranger is seen. If many tables are to change, a few are read first: while none of them has
changed, the others have not changed either.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from nova_hpc.fabric.partitions.port_tables import (
    EndPort,
    FabricPorts,
    PortTables,
    Strangers,
    TableExpectations,
)

#: Seconds.
_TRUST: Final = 1.0
_AGE_OF_PORTS: Final = 30.0
_PAUSE_OF_WALKS: Final = 0.5
_PAUSE_OF_SCANS: Final = 0.2
#: Seconds for which a port that did not answer is not queried again: at first, and at most. Each
#: query costs its timeout, and the other ports wait for it. Its switch is queried as always.
_FIRST_SILENCE, _LONGEST_SILENCE = 1.0, 30.0
#: Number of ports that are read first if more than ``_MANY`` times as many are to be read.
_PROBE: Final = 16
_MANY: Final = 4
#: The part of time that may go into finding ports while one is missing.
_PART_OF_WALKS: Final = 0.1


class TableSource(Protocol):
    """Interface to a reader of ports and P_Key tables, such as :class:`PortReader`."""

    def read_ports(self) -> FabricPorts:
        """Find all ports of the fabric by walking it."""

    def read_tables(
        self, ports: Sequence[EndPort], silent: frozenset[int] = frozenset()
    ) -> Mapping[int, PortTables]:
        """Read the tables of ports, by GUID.

        :param silent: GUIDs of ports for which only the switch port's table is read.
        """


class TableCache:
    """Caches the ports of a fabric and their P_Key tables between the agent's rounds."""

    def __init__(self, source: TableSource, scan_interval: float) -> None:
        """Read nothing yet.

        :param scan_interval: seconds between two looks at all ports.
        """
        self._source = source
        self._scan_interval = scan_interval
        self._fabric: FabricPorts | None = None
        self._walked_at = 0.0
        self._walk_took = 0.0
        self._walk_again = False
        #: GUID -> the expected entries that were right, and the time of that reading.
        self._right: dict[int, tuple[frozenset[int], float]] = {}
        self._read: dict[int, PortTables] = {}
        self._scanned_at: float | None = None
        #: The time at which all requested tables were read last.
        self._passed_at = float("-inf")
        self._pkeys: frozenset[int] = frozenset()
        #: GUID of a port that did not answer -> seconds of the pause, and its end.
        self._silent: dict[int, tuple[float, float]] = {}
        self._strangers = Strangers()

    def distrust(self) -> None:
        """Read all tables again after a change: tables that were right may be wrong now."""
        self._right.clear()

    def refresh_ports(self, guids: frozenset[int]) -> FabricPorts:
        """Return the ports of the fabric; walk it again if they are old or GUIDs are missing.

        :param guids: GUIDs of the requested ports.
        :raises SubnetManagerError: they cannot be read.
        """
        moment = time.monotonic()
        age = moment - self._walked_at
        fabric = self._fabric
        if fabric is not None and age < _AGE_OF_PORTS:
            missing = self._walk_again or not guids <= fabric.ports.keys()
            if not missing or age < max(_PAUSE_OF_WALKS, self._walk_took / _PART_OF_WALKS):
                return fabric
        fabric = self._source.read_ports().keep_silent_ports(self._fabric)
        self._walked_at = time.monotonic()
        self._walk_took = self._walked_at - moment
        self._fabric, self._walk_again = fabric, False
        self._read = {guid: read for guid, read in self._read.items() if guid in fabric.ports}
        self._silent = {guid: one for guid, one in self._silent.items() if guid in fabric.ports}
        return fabric

    def read(
        self,
        expectations: TableExpectations,
        guids: frozenset[int],
        leaving: frozenset[tuple[int, int]],
    ) -> tuple[Mapping[int, PortTables], Strangers]:
        """Read the P_Key tables of ports that may have changed, and find keys that no one gave.

        :param guids: ports whose tables are requested.
        :param leaving: see :meth:`TableExpectations.find_strangers`.
        :returns: GUID -> tables, without ports that the fabric does not have; the unexpected keys.
        :raises SubnetManagerError: nothing can be read.
        """
        ports = expectations.fabric.ports
        moment = time.monotonic()
        scans = self._is_scan_due(expectations, moment)
        asked = [
            port
            for guid, port in ports.items()
            if scans or (guid in guids and not self._is_trusted(guid, expectations, moment))
        ]
        answers, passed = self._read_ports(asked, expectations, moment)
        for guid, tables in answers.items():
            self._right.pop(guid, None)
            if expectations.judge_port(guid, tables) is None and not tables.is_coming_up:
                self._right[guid] = expectations.entries_of(guid), moment
            self._note_silence(guid, tables, moment)
        if scans and passed:
            self._scanned_at = moment
            self._pkeys = frozenset(expectations.layout.partitions)
        if answers:
            self._strangers = expectations.find_strangers(self._read, leaving)
            # Another manager may have taken over, and a full member may be its port.
            self._walk_again = self._walk_again or bool(self._strangers.sentences)
        read = {
            guid: self._read.get(guid, PortTables(None, None)) for guid in guids if guid in ports
        }
        return read, self._strangers

    def _read_ports(
        self, asked: Sequence[EndPort], expectations: TableExpectations, moment: float
    ) -> tuple[Mapping[int, PortTables], bool]:
        """Read tables; returns them, and whether all requested tables were read.

        Only a few of the tables that have not changed yet are read as long as the last complete
        reading is trusted.
        """
        answers: dict[int, PortTables] = {}
        if len(asked) > _PROBE * _MANY and moment - self._passed_at < _TRUST:
            waiting = (port for port in asked if not self._was_right(port.guid, expectations))
            probe = list(itertools.islice(waiting, _PROBE))
            answers.update(self._read_tables(probe, moment))
            self._read.update(answers)
            if probe and not any(self._was_right(port.guid, expectations) for port in probe):
                return answers, False
        rest = [port for port in asked if port.guid not in answers]
        answers.update(self._read_tables(rest, moment))
        self._read.update(answers)
        self._passed_at = moment
        return answers, True

    def _read_tables(self, ports: Sequence[EndPort], moment: float) -> Mapping[int, PortTables]:
        silent = frozenset(guid for guid, (_, end) in self._silent.items() if moment < end)
        return self._source.read_tables(ports, silent)

    def _note_silence(self, guid: int, tables: PortTables, moment: float) -> None:
        """Pause the reading of a silent port, longer each time; end the pause if it answered."""
        if tables.own is not None:
            self._silent.pop(guid, None)
            return
        pause, end = self._silent.get(guid, (0.0, 0.0))
        if moment < end:
            return
        # A walk shows whether the port is gone; one walk is enough.
        self._walk_again = self._walk_again or not pause
        pause = min(max(_FIRST_SILENCE, 2 * pause), _LONGEST_SILENCE)
        self._silent[guid] = pause, time.monotonic() + pause

    def _was_right(self, guid: int, expectations: TableExpectations) -> bool:
        """Whether the tables that were read last are as they have to be now."""
        tables = self._read.get(guid)
        return tables is not None and expectations.judge_port(guid, tables) is None

    def _is_trusted(self, guid: int, expectations: TableExpectations, moment: float) -> bool:
        entries, at = self._right.get(guid, (frozenset(), 0.0))
        return moment - at < _TRUST and entries == expectations.entries_of(guid)

    def _is_scan_due(self, expectations: TableExpectations, moment: float) -> bool:
        if self._scanned_at is None or not expectations.layout.partitions.keys() <= self._pkeys:
            return True
        pause = _PAUSE_OF_SCANS if self._strangers.sentences else self._scan_interval
        return moment - self._scanned_at > pause
