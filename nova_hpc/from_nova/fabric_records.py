# SPDX-License-Identifier: Apache-2.0
"""Placement and Nova's database, as the groups' domains are read and written with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.cluster.group_domain.membership import Groups
from nova_hpc.cluster.group_domain.records import (
    MICROVERSION,
    Answer,
    NoAnswerError,
    Records,
    State,
)

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register(CONF)


@attrs.frozen
class Placement:
    """Nova's own client, with the user that Nova has in Placement.

    That one may make and delete providers (placement/policies/resource_provider.py), as
    nova-compute does with its own.
    """

    request_id: str | None

    def get(self, path: str) -> Answer:
        """Send a GET."""
        return self._send(report.report_client_singleton().get, path)

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a POST with JSON."""
        return self._send(report.report_client_singleton().post, path, dict(body))

    def delete(self, path: str) -> Answer:
        """Send a DELETE."""
        return self._send(report.report_client_singleton().delete, path)

    def _send(self, method: Callable[..., Any], *arguments: Any) -> Answer:
        try:
            found = method(*arguments, version=MICROVERSION, global_request_id=self.request_id)
        except keystone.ClientException as error:
            # No connection, no answer in time, a catalogue without Placement.
            LOG.warning("Placement did not answer %s: %s", arguments[0], error)
            return Answer(0)
        try:
            body = found.json() if found.content else {}
        except ValueError:
            body = {}
        return Answer(found.status_code, body if isinstance(body, dict) else {})


@attrs.frozen
class Servers:
    """Nova's mappings of servers to cells, which every server has before it is scheduled."""

    context: Any

    def states(self, uuids: Collection[str]) -> Mapping[str, State]:
        """The state of each server.

        Who could not be scheduled is in cell0 and stays there. ``queued_for_delete`` is set
        when the API takes a DELETE, which a host may not have heard of yet
        (compute/api.py, _update_queued_for_deletion).

        :raises nova_hpc.cluster.group_domain.records.NoAnswerError: the database does not
            answer.
        """
        found = dict.fromkeys(uuids, State.GONE)
        if not found:
            return found
        try:
            mappings = objects.InstanceMappingList.get_by_instance_uuids(
                self.context.elevated(), sorted(found)
            )
        except db_exception.DBError as error:
            raise NoAnswerError(f"Nova's database does not answer: {error}") from error
        for each in mappings:
            cell = each.cell_mapping
            if cell is not None and cell.is_cell0():
                continue
            leaving = "queued_for_delete" in each and each.queued_for_delete
            found[each.instance_uuid] = State.LEAVING if leaving else State.THERE
        return found


def unknown() -> list[str]:
    """What of this Nova is not what this module relies on; [] if all is well."""
    wanted: dict[str, tuple[Any, set[str]]] = {
        "InstanceMappingList.get_by_instance_uuids": (objects.InstanceMappingList, {"uuids"}),
        "SchedulerReportClient.get": (report.SchedulerReportClient, {"url", "version"}),
        "SchedulerReportClient.post": (report.SchedulerReportClient, {"url", "data", "version"}),
        "SchedulerReportClient.delete": (report.SchedulerReportClient, {"url", "version"}),
    }
    found = []
    for name, (owner, parameters) in wanted.items():
        function = getattr(owner, name.rpartition(".")[2], None)
        if function is None or not parameters <= set(inspect.signature(function).parameters):
            found.append(f"{name} of this Nova is not what this release of nova-hpc relies on")
    return found


def records(context: Any) -> Records:
    """The records, for one operation."""
    return Records(
        Placement(getattr(context, "global_id", None)), CONF.hpc.fabric_placement_timeout
    )


def groups(context: Any) -> Groups:
    """The groups' domains, for one member."""
    return Groups(records(context), Servers(context))


def admin_context() -> Any:
    """The context of a command."""
    return nova_context.get_admin_context()
