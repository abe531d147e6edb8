# SPDX-License-Identifier: Apache-2.0
"""Alternates of a request for several servers: each names devices of its own.

Nova gives every server of a request the same alternates, with the same allocation candidate
of each host (a note in its source mentions it). A second server that has to go there finds
the devices taken, and the retry is lost. If it was the last alternate, Nova's conductor
fails, because it notifies of an exception that was never raised.

Report: ``docs/source/contributor/upstream/index.rst`` (reschedule-lost: its end, in the
conductor). No bug is known to be filed; the note in Nova's source proposes the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nova import objects
from nova.scheduler import manager

from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.placement import flavor

ALTERNATES: Final = Patch(
    "nova.scheduler.manager:SchedulerManager._get_alternate_hosts",
    parameters=(
        *("self", "selected_hosts", "spec_obj", "hosts", "index", "num_alts"),
        *("alloc_reqs_by_rp_uuid", "allocation_request_version"),
    ),
    lines={32: (621, 710), 33: (644, 733), 34: (649, 738)},
    why="The alternates of all servers of a request name the same devices of the same hosts.",
    until="alternates use different candidates, as the note in Nova's source proposes",
)

_MARK: Final = "hpc_alternates"


def install_alternates_patch() -> None:
    """Wrap the choice of alternate hosts in Nova's scheduler.

    Nova's class is wrapped, because the filters are made before there is an object of it.
    """
    plain = manager.SchedulerManager._get_alternate_hosts
    if not hasattr(plain, _MARK):
        wrap_method(manager.SchedulerManager, ALTERNATES, _deal_alternates)
        setattr(manager.SchedulerManager._get_alternate_hosts, _MARK, True)


def _deal_alternates(call: Call) -> Any:
    """Wrap Nova's selection: deal the alternates over all servers of the request.

    Nova's own result is kept for a request for one server, and for flavors without ``hpc:`` keys.
    """
    given = call.given
    spec, most = given["spec_obj"], given["num_alts"]
    several = len(given["selected_hosts"]) > 1 and most > 0
    if (
        not several
        or given["alloc_reqs_by_rp_uuid"] is None
        or not flavor.has_hpc_keys(spec.flavor.extra_specs or {})
    ):
        return call()
    # Nova does it in this way there; at index 0 it takes the hosts in their order.
    hosts = given["hosts"]
    if given["index"] > 0:
        hosts = given["self"]._get_sorted_hosts(spec, hosts, given["index"])
    selection_lists = call(hosts=hosts, index=0)
    chosen = given["selected_hosts"]
    taken = {id(host) for host in chosen}
    promises = _PromisedHosts(given, [host for host in hosts if id(host) not in taken])
    dealt = promises.deal([host.cell_uuid for host in chosen], most)
    return [[selections[0], *more] for selections, more in zip(selection_lists, dealt, strict=True)]


class _PromisedHosts:
    """The hosts of a request in their order, with the devices that are already promised to
    servers.
    """

    def __init__(self, given: Mapping[str, Any], hosts: list[Any]) -> None:
        self._given = given
        #: Hosts without promised devices.
        self._fresh = [host for host in hosts if host.allocation_candidates]
        #: Hosts whose first candidate names promised devices.
        self._used: list[Any] = []

    def deal(self, cells: Sequence[str], most: int) -> list[list[objects.Selection]]:
        """Choose alternate hosts for all servers, one for each server in turn.

        No server gets a second alternate before all have one.

        :param cells: for each server, the cell in which it can be built.
        :param most: maximum for one server.
        :returns: for each server, alternates on different hosts.
        """
        alternates: list[list[objects.Selection]] = [[] for _ in cells]
        hosts: list[list[Any]] = [[] for _ in cells]
        for _ in range(most):
            for cell, server_alternates, before in zip(cells, alternates, hosts, strict=True):
                host = self._next(cell, before)
                if host is not None:
                    before.append(host)
                    server_alternates.append(self._selection(host))
        return alternates

    def _selection(self, host: Any) -> objects.Selection:
        version = self._given["allocation_request_version"]
        return objects.Selection.from_host_state(host, host.allocation_candidates[0], version)

    def _next(self, cell: str, but: Sequence[Any]) -> Any:
        """Choose a host of the cell, first one without promised devices; None if there is none.

        :param but: hosts that the server has already.
        """
        for host in self._fresh:
            if host.cell_uuid == cell and host not in but:
                self._fresh.remove(host)
                self._used.append(host)
                return host
        for host in tuple(self._used):
            if host.cell_uuid == cell and host not in but:
                # The host with the fewest promises goes first the next time.
                self._used.remove(host)
                if self._consume(host):
                    self._used.append(host)
                    return host
        return None

    def _consume(self, host: Any) -> bool:
        """Take the host's offer from it, as for a server; returns whether it offers more."""
        spec, this = self._given["spec_obj"], self._given["self"]
        groups = spec.requested_resources
        before = [group.provider_uuids for group in groups]
        mappings = host.allocation_candidates[0]["mappings"]
        try:
            for group in groups:
                group.provider_uuids = mappings[group.requester_id]
            host.consume_from_request(spec)
            left = this.host_manager.get_filtered_hosts([host], spec, self._given["index"])
        finally:
            for group, providers in zip(groups, before, strict=True):
                group.provider_uuids = providers
        return bool(left) and bool(host.allocation_candidates)
