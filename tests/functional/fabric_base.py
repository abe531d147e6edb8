# SPDX-License-Identifier: Apache-2.0
"""Server groups on a fabric: hosts in leaves and blocks, one server to a host."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova.tests.functional import integrated_helpers
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.cluster.group_domain import model as group_domain
from nova_hpc.cluster.group_domain.model import DomainTree, GroupProvider
from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc.from_nova import fabric, fabric_records, log_throttle
from nova_hpc_tools.fabric import map_aggregates

CONF = cfg.CONF

FABRIC_FILTER = "scheduler_filters.hpc_fabric_filter.HpcFabricFilter"
FABRIC_WEIGHER = "scheduler_filters.hpc_fabric_weigher.HpcFabricWeigher"


class FabricTest(integrated_helpers.ProviderUsageBaseTestCase):
    """Nova with the filter, over leaves of hosts that take one server each."""

    #: Two VCPUs a host; the flavors here want both.
    compute_driver = "fake.SmallFakeDriver"
    microversion = "latest"

    LEAVES = 3
    HOSTS = 2
    #: Leaves of one block.
    BLOCK = 2

    def setUp(self) -> None:
        hpc_conf.register_all_options(CONF)
        self.flags(
            available_filters=["nova.scheduler.filters.all_filters", FABRIC_FILTER],
            enabled_filters=[*CONF.filter_scheduler.enabled_filters, "HpcFabricFilter"],
            weight_classes=["nova.scheduler.weights.all_weighers", FABRIC_WEIGHER],
            group="filter_scheduler",
        )
        self.flags(instances=-1, cores=-1, ram=-1, server_group_members=-1, group="quota")
        # That Nova's answers follow its schemas is what its own tests check.
        self.flags(response_validation="ignore", group="api")
        super().setUp()
        # A ratio that is set before is forgotten there.
        self.flags(cpu_allocation_ratio=1.0, ram_allocation_ratio=999.0)
        log_throttle.LOG_THROTTLE.clear()
        fabric._ATLAS.clear()
        self.context = nova_context.get_admin_context()
        self.leaf: dict[str, str] = {}
        self.ids: dict[str, int] = {}
        self.computes_: dict[str, Any] = {}
        places = []
        for number in range(self.LEAVES):
            for host in range(self.HOSTS):
                name = f"l{number}h{host}"
                self.computes_[name] = self._start_compute(name)
                self.leaf[name] = f"leaf{number}"
                places.append(
                    FabricPlace(
                        name,
                        leaf=f"leaf{number}",
                        block=f"block{number // self.BLOCK}",
                        spine="spine",
                    )
                )
        for each in map_aggregates.aggregates_of(FabricMap(name="ib", places=tuple(places))):
            self.make_aggregate(each.name, dict(each.metadata), each.hosts)

    def make_aggregate(self, name: str, metadata: Mapping[str, str], hosts: Iterable[str]) -> int:
        number = self.admin_api.post_aggregate({"aggregate": {"name": name}})["id"]
        self.ids[name] = number
        self.set_metadata(name, metadata)
        for host in hosts:
            self.admin_api.add_host_to_aggregate(number, host)
        return number

    def set_metadata(self, name: str, metadata: Mapping[str, str | None]) -> None:
        self.admin_api.api_post(
            f"/os-aggregates/{self.ids[name]}/action",
            {"set_metadata": {"metadata": dict(metadata)}},
        )

    def make_flavor(self, **specs: str) -> str:
        """A flavor that fills a host; keywords are ``hpc:`` keys."""
        name = f"f{len(self.admin_api.get_flavors())}"
        flavor = {"name": name, "ram": 1, "vcpus": 2, "disk": 0, "id": name}
        self.admin_api.post_flavor({"flavor": flavor})
        if specs:
            keys = {f"hpc:{key}": value for key, value in specs.items()}
            self.admin_api.post_extra_spec(name, {"extra_specs": keys})
        return name

    def make_group(self, policy: str = "soft-anti-affinity") -> str:
        return self.api.post_server_groups({"name": "g", "policy": policy})["id"]

    def post(
        self, flavor: str, group: str | None = None, hints: Mapping[str, Any] = {}, **body: Any
    ) -> dict[str, Any]:
        """Ask for a server, and do not wait."""
        built = self._build_server(networks="none", flavor_id=flavor)
        given = dict(hints) | ({"group": group} if group else {})
        return self.api.post_server({"server": built | body, "os:scheduler_hints": given})

    def wait(self, servers: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """The leaf of each, once all have an end; None: it has no host."""
        for _ in range(1200):
            found = [self.admin_api.get_server(each["id"]) for each in servers]
            if all(each["status"] in ("ACTIVE", "ERROR") for each in found):
                return [
                    self.leaf.get(each["OS-EXT-SRV-ATTR:host"])
                    if each["status"] == "ACTIVE"
                    else None
                    for each in found
                ]
            time.sleep(0.1)
        raise AssertionError([each["status"] for each in found])

    def boot(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """A server that is ACTIVE, or ERROR."""
        server = self.post(*arguments, **keywords)
        self.wait([server])
        return self.admin_api.get_server(server["id"])

    def leaf_of(self, server: Mapping[str, Any]) -> str | None:
        return self.leaf.get(self.admin_api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"])

    def host_of(self, server: Mapping[str, Any]) -> str:
        return self.admin_api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]

    def fault(self, server: Mapping[str, Any]) -> str:
        return self.admin_api.get_server(server["id"])["fault"]["message"]

    def log_lines(self, text: str) -> list[str]:
        return [line for line in self.stdlog.logger.output.splitlines() if text in line]

    # -- what Placement has --------------------------------------------------

    def trees(self) -> list[DomainTree]:
        records = fabric_records.open_group_records(self.context)
        found = records.providers()
        roots = [each for each in found if group_domain.domain_of(each.name)]
        return [
            DomainTree.of(root.uuid, [each for each in found if each.root == root.uuid])
            for root in roots
        ]

    def rooms(self) -> list[group_domain.GroupRoom]:
        return [room for tree in self.trees() for room in tree.rooms]

    def tickets(self) -> set[str]:
        return {ticket for tree in self.trees() for ticket in tree.tickets}

    def ticket(self, server: Mapping[str, Any]) -> GroupProvider | None:
        return fabric_records.open_group_records(self.context).ticket(server["id"])
