# SPDX-License-Identifier: Apache-2.0
"""An agent with its real rounds over a real opensm, and Neutron's rows in memory."""

import contextlib
import threading
import time

import attrs

from nova_hpc.fabric.partitions.agent_round import PartitionAgent
from nova_hpc.fabric.partitions.members import ACTIVE, DOWN, ERROR, DesiredPartitions
from nova_hpc.fabric.partitions.report_choice import ReportOptions
from nova_hpc.fabric.partitions.watched_files import WatchedFiles
from tests.fabric.bare_fabric import wait_until
from tests.fabric.opensm.opensm_site import A, member


class RowServer:
    """The rows that Neutron's server would keep; a lock covers each read and write."""

    def __init__(self, site):
        self._site = site
        self._guard = threading.Lock()
        self.rows = {}
        #: Row -> each status that its port has had.
        self.seen = {}

    def bind(self, *members):
        """Rows of ports that are bound and wait."""
        with self._guard:
            for one in members:
                self._set(attrs.evolve(one, port_status=DOWN))

    def unbind(self, row):
        with self._guard:
            self.rows[row] = attrs.evolve(self.rows[row], wanted=False, port_status=None)

    def status(self, row):
        with self._guard:
            return self.rows[row].port_status if row in self.rows else None

    def _set(self, one):
        self.rows[one.row] = one
        self.seen.setdefault(one.row, []).append(one.port_status)

    def read_desired(self, _meanwhile):
        with self._guard:
            self._site.tickets += 1
            return DesiredPartitions(self._site.tickets, tuple(self.rows.values()))

    def report_members(self, ticket, reports, _meanwhile):
        told = [(row, ACTIVE) for row in reports.present]
        told += [(row, DOWN) for row, _ in reports.lost]
        told += [(row, ERROR) for row, _ in reports.failed]
        with self._guard:
            for row, status in told:
                if row in self.rows and self.rows[row].wanted:
                    self._set(attrs.evolve(self.rows[row], port_status=status))
            for row in reports.gone:
                if row in self.rows and not self.rows[row].wanted:
                    del self.rows[row]


@attrs.define
class RunningAgent:
    """An agent in a thread of its own."""

    agent: PartitionAgent
    server: RowServer
    wake: threading.Event
    #: All sentences of alarms, in their order.
    alarms: list

    def bind(self, row, guid, pkey=A, **more):
        self.server.bind(member(row, guid, pkey, **more))
        self.wake.set()

    def wait_for(self, rows, status=ACTIVE, seconds=20.0):
        """Wait until the ports of rows have a status."""
        what = f"{rows} are {status}: {[self.server.status(row) for row in rows]}"
        wait_until(lambda: all(self.server.status(row) == status for row in rows), what, seconds)

    def wait_for_alarm(self, *parts):
        """Wait for an alarm with all parts; the agent raises it after it has set the status."""
        wait_until(
            lambda: any(all(part in text for part in parts) for text in list(self.alarms)),
            f"an alarm with {parts}: {self.alarms}",
            20,
        )


@contextlib.contextmanager
def running_agent(site, timeout=3.0, **options):
    """Start an agent; it looks each half a second.

    :param timeout: ``[hpc_partitions]member_timeout``.
    """
    manager = site.backend(**options)
    server, wake, ended, alarms = RowServer(site), threading.Event(), threading.Event(), []
    agent = PartitionAgent(
        manager=manager,
        server=server,
        tell_alarms=lambda new, gone: alarms.extend(new),
        wake=wake,
        files=WatchedFiles(manager.watched_files),
        now=time.monotonic,
        pause=time.sleep,
        poll_interval=0.5,
        report_options=ReportOptions(member_timeout=timeout),
    )
    thread = threading.Thread(target=agent.run, args=(ended.is_set,), daemon=True)
    thread.start()
    try:
        yield RunningAgent(agent, server, wake, alarms)
    finally:
        ended.set()
        wake.set()
        thread.join(60)
        assert not thread.is_alive()
