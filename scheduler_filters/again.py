# SPDX-License-Identifier: Apache-2.0
"""Chooses other devices on one host, after another scheduler has claimed some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nova_hpc.from_nova import hosts as reader
from nova_hpc.from_nova import placement_answer, providers
from nova_hpc.from_nova.placement_answer import PlacementAnswer
from nova_hpc.placement.model import DeviceMiss
from scheduler_filters import choice


@attrs.frozen
class ChooseAgain:
    """Chooses devices again after a lost claim, with the data of the filter's pass."""

    #: UUID of the compute node -> host state, of the hosts that passed.
    hosts: Mapping[str, Any]
    order: choice.ServerOrder
    #: Want -> role.
    bound: Mapping[str, str]
    answer: PlacementAnswer

    def __call__(self, candidate: dict[str, Any]) -> bool:
        """Put other devices of the same host into *candidate*, whose claim was refused.

        :returns: False if nothing else can be claimed: Placement does not answer, the
            devices were not the reason, or no others are good enough.
        """
        named = (self.hosts[uuid] for uuid in candidate["allocations"] if uuid in self.hosts)
        host = next(named, None)
        if host is None or not self._look(host):
            return False
        task = self.order.task
        available = reader.Available.of(task, self.answer)
        view = reader.read_host(host, task, available.devices, available.bandwidth)
        view = reader.bind_view_roles(view, self.bound)
        chosen = choice.place_devices_on_host(host, self.order, view)
        if isinstance(chosen, DeviceMiss):
            return False
        choice.put_choice_on_host(host, chosen)
        if chosen.candidate["allocations"] == candidate["allocations"]:
            return False
        # Nova keeps a reference to this object, and takes the devices from it.
        candidate.clear()
        candidate.update(chosen.candidate)
        host.allocation_candidates = [candidate]
        return True

    def _look(self, host: Any) -> bool:
        """Query Placement for the free devices of a host; returns whether it answers."""
        kind = next(iter(self.order.task.kinds), None)
        if kind is None:
            return False
        summaries = providers.ask_about_host(host.uuid, kind)
        if summaries is None:
            return False
        self.answer.renew(host.uuid, summaries)
        placement_answer.forget_view(host)
        return True
