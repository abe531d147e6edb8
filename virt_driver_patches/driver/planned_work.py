# SPDX-License-Identifier: Apache-2.0
"""Announces planned work on devices to the owners of their servers, as the ledger lists it.

``nova-hpc device maintenance --at`` writes the times.
:mod:`nova_hpc.tenancy.watch.planned` decides; the reports go the way of faults. The ledger keeps
the announced times, so a restart of nova-compute reports nothing twice.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping

import attrs
from oslo_log import log as logging

from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.watch import planned
from nova_hpc.wire.ledger import Ledger
from nova_hpc_common.wire.planned_work import PlannedWork, format_planned_time, read_planned_tags
from virt_driver_patches.driver.fault_reports import OwnerReports

LOG = logging.getLogger(__name__)


@attrs.define
class PlannedDeviceReports:
    """The announcements of one node. Only the thread of the watch uses them."""

    _ledger: LedgerFile
    _reports: OwnerReports
    _physical_function_of: Callable[[str], str | None]
    #: Server -> the time in its tag or its queue; None until the ledger was read.
    _announced: dict[str, str] | None = None
    #: The same in the ledger: these owners have the tag and the action.
    _recorded: Mapping[str, str] = attrs.field(factory=dict)
    _forgetful: bool = False

    def compare(self, users: Mapping[str, str]) -> None:
        """Put the changes since the last look into the queues of reports.

        :param users: address -> server, for the devices of this node.
        """
        ledger = self._ledger.read()
        if ledger.lost:
            return
        if self._announced is None:
            self._announced = dict(ledger.planned.announced)
            self._recorded = dict(self._announced)
            for server, time in self._announced.items():
                self._reports.restore(server, PlannedWork(time))
        times = planned.find_planned_times(
            ledger.planned.devices, users, self._physical_function_of
        )
        if ledger.damaged:
            # A mark that cannot be read takes nothing back; the others count.
            for server, time in self._announced.items():
                times[server] = times.get(server, frozenset()) | {time}
        changes = planned.decide_planned_changes(
            times,
            self._announced,
            format_planned_time(datetime.datetime.now(datetime.UTC)),
        )
        for change in changes:
            self._reports.put(change.server, PlannedWork(change.time), change.present)
            if change.present:
                self._announced[change.server] = change.time
            elif self._announced[change.server] == change.time:
                del self._announced[change.server]

    def clear_former(self, server: str, tags: Iterable[str]) -> None:
        """Remove tags of an earlier run or another node; those of the host are not ours."""
        if self._announced is None:
            return
        for work in read_planned_tags(tags):
            if work.of_device and work.time != self._announced.get(server):
                self._reports.put(server, work, present=False)

    def record(self) -> None:
        """Write into the ledger which times owners have as a tag and an action."""
        if self._announced is None:
            return
        announced = {
            server: time
            for times in (self._recorded, self._announced)
            for server, time in times.items()
            if self._reports.is_reported(server, PlannedWork(time))
        }
        if announced == self._recorded:
            return

        def edit(ledger: Ledger) -> Ledger:
            return attrs.evolve(ledger, planned=attrs.evolve(ledger.planned, announced=announced))

        try:
            self._ledger.change(edit)
        except LedgerError as error:
            if not self._forgetful:
                LOG.warning("A restart of nova-compute would report planned work again: %s", error)
            self._forgetful = True
        else:
            self._recorded, self._forgetful = announced, False
