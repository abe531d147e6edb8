# SPDX-License-Identifier: Apache-2.0
"""Nova's clients of Placement and its database, for the records of the groups' domains."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
from keystoneauth1 import exceptions as keystone
from nova import objects
from nova.scheduler.client import report
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.cluster.group_domain.membership import GroupDomains
from nova_hpc.cluster.group_domain.records import (
    MICROVERSION,
    PlacementSilentError,
    ProviderAnswer,
    ProviderRecords,
    ServerPresence,
)

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register_all_options(CONF)


@attrs.frozen
class NovaPlacementClient:
    """Sends requests to Placement with Nova's own report client and service user.

    This user may create and delete providers (placement/policies/resource_provider.py), as
    nova-compute does with its own.
    """

    request_id: str | None

    def get(self, path: str) -> ProviderAnswer:
        """Send a GET request to Placement by Nova's client; return the answer of any status."""
        return self._send(report.report_client_singleton().get, path)

    def post(self, path: str, body: Mapping[str, Any]) -> ProviderAnswer:
        """Send a POST request with a JSON body to Placement."""
        return self._send(report.report_client_singleton().post, path, dict(body))

    def delete(self, path: str) -> ProviderAnswer:
        """Send a DELETE request to Placement through Nova's client; return the answer."""
        return self._send(report.report_client_singleton().delete, path)

    def _send(self, method: Callable[..., Any], *arguments: Any) -> ProviderAnswer:
        try:
            response = method(*arguments, version=MICROVERSION, global_request_id=self.request_id)
        except keystone.ClientException as error:
            # There is no connection, no timely answer, or no Placement in the catalogue.
            LOG.warning("Placement did not answer %s: %s", arguments[0], error)
            return ProviderAnswer(0)
        try:
            body = response.json() if response.content else {}
        except ValueError:
            body = {}
        return ProviderAnswer(response.status_code, body if isinstance(body, dict) else {})


@attrs.frozen
class ServerMappings:
    """Reads the instance mappings in Nova's API database, which exist before a server is
    scheduled.
    """

    context: Any

    def states(self, uuids: Collection[str]) -> Mapping[str, ServerPresence]:
        """Return server UUID -> its state in Nova's cell mappings: present, leaving or gone.

        A server that could not be scheduled is in cell0 and stays there. ``queued_for_delete`` is
        set when the API accepts a DELETE, possibly before the host gets it (compute/api.py,
        _update_queued_for_deletion).

        :raises nova_hpc.cluster.group_domain.records.PlacementSilentError: the database does not
            answer.
        """
        states = dict.fromkeys(uuids, ServerPresence.GONE)
        if not states:
            return states
        try:
            mappings = objects.InstanceMappingList.get_by_instance_uuids(
                self.context.elevated(), sorted(states)
            )
        except db_exception.DBError as error:
            raise PlacementSilentError(f"Nova's database does not answer: {error}") from error
        for mapping in mappings:
            cell = mapping.cell_mapping
            if cell is not None and cell.is_cell0():
                continue
            leaving = "queued_for_delete" in mapping and mapping.queued_for_delete
            states[mapping.instance_uuid] = (
                ServerPresence.LEAVING if leaving else ServerPresence.THERE
            )
        return states


def list_client_differences() -> list[str]:
    """List the differences between this Nova and this module's requirements; [] without any."""
    wanted: dict[str, tuple[Any, set[str]]] = {
        "InstanceMappingList.get_by_instance_uuids": (objects.InstanceMappingList, {"uuids"}),
        "SchedulerReportClient.get": (report.SchedulerReportClient, {"url", "version"}),
        "SchedulerReportClient.post": (report.SchedulerReportClient, {"url", "data", "version"}),
        "SchedulerReportClient.delete": (report.SchedulerReportClient, {"url", "version"}),
    }
    differences = []
    for name, (owner, parameters) in wanted.items():
        function = getattr(owner, name.rpartition(".")[2], None)
        if function is None or not parameters <= set(inspect.signature(function).parameters):
            differences.append(f"{name} of this Nova is not as this release of nova-hpc needs it")
    return differences


def open_group_records(context: Any) -> ProviderRecords:
    """Return access to the records of server groups in Placement, for one operation."""
    return ProviderRecords(
        NovaPlacementClient(getattr(context, "global_id", None)), CONF.hpc.fabric_placement_timeout
    )


def open_group_domains(context: Any) -> GroupDomains:
    """Return access to the fabric domains of server groups, for the request of one member."""
    return GroupDomains(open_group_records(context), ServerMappings(context))
