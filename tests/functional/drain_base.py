# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc drain`` as an operator runs it, on the cloud of a test."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from keystoneauth1 import noauth, session
from openstack import connection
from oslo_config import cfg

from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc_tools.cloud import (
    capacity_command,
    drain_api,
    drain_command,
    server_moves,
    when_command,
)
from nova_hpc_tools.fabric import nova_aggregates
from nova_hpc_tools.fabric.map_aggregates import aggregates_of
from nova_hpc_tools.main import NovaHpc
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import cloud_readers
from tests.functional import base, fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.fabric_base import FABRIC_FILTER

CONF = cfg.CONF


def connect_as_admin(url: str, project: str) -> Any:
    """The compute API of Nova's own stack at *url*, for an administrator."""
    headers = {
        "X-Auth-User": "admin",
        "X-Auth-Project-Id": project,
        "X-Roles": "reader,member,admin",
    }
    found = connection.Connection(
        session=session.Session(auth=noauth.NoAuth(endpoint=url), additional_headers=headers),
        compute_endpoint_override=url,
    ).compute
    for name in ("openstack", "keystoneauth"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return found


def run_drain(
    compute: Any, words: Sequence[str], cloud: Any = drain_api.DrainCloud
) -> tuple[int, str, str]:
    """Run ``nova-hpc drain`` with *words*; its status, output and errors."""
    return run_moving_command(compute, ["drain", *words], cloud)


def run_moving_command(
    compute: Any,
    words: Sequence[str],
    cloud: Any = drain_api.DrainCloud,
    read: Callable[[], Any] = snapshot.take_cloud_snapshot,
) -> tuple[int, str, str]:
    """Run a command of ``nova-hpc`` that moves servers; its status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(nova_aggregates, "connect_compute_proxy", return_value=compute),
        mock.patch.object(drain_command, "DrainCloud", cloud),
        mock.patch.object(capacity_command, "DrainCloud", cloud),
        mock.patch.object(cloud_readers, "obtain_snapshot", side_effect=lambda *_: read()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        app = NovaHpc()
        app.command_manager.add_command("drain", drain_command.Drain)
        app.command_manager.add_command("capacity", capacity_command.ShowCapacity)
        app.command_manager.add_command("when", when_command.ShowWhen)
        status = app.run(list(words))
    return status, out.getvalue(), err.getvalue()


FOUR = fixtures.Shape((fixtures.Switch(gpus=4),))
PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
MEMBER = {**PAIR, "hpc:fabric": "leaf"}
STOCK = {"pci_passthrough:alias": "gpu:1"}
LEAVES = {"alpha": "leaf1", "beta": "leaf1", "gamma": "leaf2"}


class DrainCase(DriverTest):
    """Two hosts in one leaf and one in another, with four GPUs each."""

    CAST_AS_CALL = False
    FILTERS = (*DriverTest.FILTERS, "HpcFabricFilter")

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.Moves())
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{server_moves.__name__}._PAUSE", 0.1))
        for name in LEAVES:
            self.host(name, FOUR)
        places = [FabricPlace(host, leaf=leaf, spine="s") for host, leaf in LEAVES.items()]
        for aggregate in aggregates_of(FabricMap(places, name="ib")):
            made = self.admin_api.post_aggregate({"aggregate": {"name": aggregate.name}})
            action = {"set_metadata": {"metadata": dict(aggregate.metadata)}}
            self.admin_api.api_post(f"/os-aggregates/{made['id']}/action", action)
            for host in aggregate.hosts:
                self.admin_api.add_host_to_aggregate(made["id"], host)
        self.member = self.make_flavor(MEMBER)
        self.pair = self.make_flavor(PAIR)
        self.group = self.api.post_server_groups({"name": "g", "policy": "soft-anti-affinity"})
        self.compute = connect_as_admin(self.api_fixture.base_url, self.admin_api.project_id)

    def _start_scheduler(self, with_filter: bool) -> Any:
        self.flags(
            available_filters=[
                "nova.scheduler.filters.all_filters",
                base.TOPOLOGY_FILTER,
                FABRIC_FILTER,
            ],
            enabled_filters=[*self._stock_filters, *self.FILTERS],
            weight_classes=["nova.scheduler.weights.all_weighers", base.PACKING_WEIGHER],
            group="filter_scheduler",
        )
        return self.start_service("scheduler")

    def make(self, name: str, flavor: str, host: str, group: bool = False) -> dict[str, Any]:
        built = self._build_server(name=name, networks="none", flavor_id=flavor, host=host)
        hints = {"group": self.group["id"], "hpc_members": "2"} if group else {}
        made = self.admin_api.post_server({"server": built, "os:scheduler_hints": hints})
        return self._wait_for_state_change(made, "ACTIVE")

    def drain(self, *words: str, cloud: Any = drain_api.DrainCloud) -> tuple[int, str, str]:
        """Run ``nova-hpc drain alpha``; its status, output and errors."""
        return run_drain(self.compute, ["alpha", *words], cloud)

    def service(self) -> tuple[str, str | None]:
        (found,) = self.admin_api.get_services(host="alpha", binary="nova-compute")
        return found["status"], found["disabled_reason"]

    def where(self, *servers: dict[str, Any]) -> list[str]:
        found = [self.admin_api.get_server(each["id"]) for each in servers]
        self.assertEqual({"ACTIVE"}, {each["status"] for each in found})
        return [each["OS-EXT-SRV-ATTR:host"] for each in found]

    def die(self) -> None:
        (service,) = self.admin_api.get_services(host="alpha", binary="nova-compute")
        self.computes["alpha"].stop()
        self.admin_api.put_service_force_down(service["id"], True)

    def status(self, server: dict[str, Any]) -> tuple[str, str]:
        found = self.admin_api.get_server(server["id"])
        return found["status"], found["OS-EXT-SRV-ATTR:host"]
