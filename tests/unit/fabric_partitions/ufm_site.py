# SPDX-License-Identifier: Apache-2.0
"""An agent at UFM with its rounds, and a Neutron that keeps ports as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import attrs
from oslo_config import cfg

from nova_hpc.fabric.partitions.agent_round import PartitionAgent
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc.fabric.partitions.report_choice import MemberReports
from nova_hpc.fabric.partitions.watched_files import WatchedFiles
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_world import want

Row = tuple[int, int, Membership]


def unbind(desired: DesiredPartitions, *rows: int) -> DesiredPartitions:
    """The same rows; those are no longer wanted."""
    members = tuple(
        attrs.evolve(member, wanted=False, port_status=None) if member.row in rows else member
        for member in desired.members
    )
    return attrs.evolve(desired, ticket=desired.ticket + 1, members=members)


@attrs.define
class Site:
    """An agent with its rounds, and a server that keeps ports as it is told."""

    conf: cfg.GroupAttr
    members: tuple[Row, ...] = ()
    status: dict[int, str] = attrs.field(factory=dict)
    reports: list[MemberReports] = attrs.field(factory=list)
    on_alarm: Callable[[Sequence[str]], None] = lambda texts: None
    alarms: list[str] = attrs.field(factory=list)
    ticket: int = 0
    clock: float = 0.0
    manager: UfmSubnetManager = attrs.field(init=False)
    agent: PartitionAgent = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.manager = UfmSubnetManager(self.conf, now=lambda: self.clock)
        self.agent = PartitionAgent(
            manager=self.manager,
            server=self,
            tell_alarms=self._tell_alarms,
            wake=threading.Event(),
            files=WatchedFiles(self.manager.watched_files),
            now=lambda: self.clock,
            pause=self._pause,
            poll_interval=5.0,
        )

    def _pause(self, seconds: float) -> None:
        self.clock += seconds

    def _tell_alarms(self, new: Sequence[str], _: Sequence[str]) -> None:
        self.alarms += new
        self.on_alarm(new)

    def read_desired(self, meanwhile: Callable[[], None]) -> DesiredPartitions:
        self.ticket += 1
        desired = want(self.ticket, *self.members)
        rows = tuple(
            attrs.evolve(row, port_status=self.status.setdefault(row.row, "DOWN"))
            for row in desired.members
        )
        return DesiredPartitions(self.ticket, rows)

    def report_members(
        self, ticket: int, reports: MemberReports, meanwhile: Callable[[], None]
    ) -> None:
        self.reports.append(reports)
        self.status.update(dict.fromkeys(reports.present, "ACTIVE"))
        self.status.update({row: "ERROR" for row, _ in reports.failed})
        self.status.update({row: "DOWN" for row, _ in getattr(reports, "lost", ())})

    def round(self) -> float:
        """Make a round, and let its pause pass."""
        pause = self.agent.make_round()
        self.clock += pause
        return pause
