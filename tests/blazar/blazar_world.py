# SPDX-License-Identifier: Apache-2.0
"""Blazar's own manager with its database in memory, above a cloud at the boundary of HTTP."""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import requests_mock
from blazar import config as _blazar_config  # noqa: F401  registers options
from blazar import context
from blazar.db import api as db_api
from blazar.db.sqlalchemy import facade_wrapper, models
from blazar.manager import service
from blazar.notification import notifier
from blazar.plugins.oshosts import host_plugin
from oslo_config import cfg
from oslo_utils import timeutils

import nova_hpc_blazar.cluster_plugin  # noqa: F401  registers [pci]alias
from tests.blazar.http_cloud import CATALOG, PROJECT, HttpCloud, inventory

CONF = cfg.CONF
OURS = "hpc:flavor:instance"
STOCK = "flavor:instance"
ALIAS = (
    '{"name": "gpu", "resource_class": "CUSTOM_HPC_GPU"}',
    '{"name": "vf", "vendor_id": "15b3", "product_id": "101e", "traits": "CUSTOM_HPC_ROLE_VF"}',
)
GPU = "CUSTOM_HPC_GPU"
FORMAT = "%Y-%m-%d %H:%M"
NOON = datetime.datetime(2026, 12, 1, 12)


def at(hour: float) -> datetime.datetime:
    """The time so many hours after the beginning."""
    return NOON + datetime.timedelta(hours=hour)


def text_at(hour: float) -> str:
    return at(hour).strftime(FORMAT)


class BlazarWorld:
    """A cloud, and Blazar's manager above it."""

    def __init__(self, cloud: HttpCloud, resource_type: str) -> None:
        self.cloud, self.resource_type = cloud, resource_type
        self.cloud.add_aggregate(CONF.nova.aggregate_freepool_name, [], {})
        self.manager = service.ManagerService()
        #: Id of a host -> its name.
        self.hosts: dict[str, str] = {}
        #: Name of a host -> number of GPUs.
        self.gpus: dict[str, int] = {}
        self.leaf_of: dict[str, str] = {}

    def add_leaf(self, leaf: str, block: str, hosts: dict[str, int]) -> None:
        """Add hosts of one leaf: name -> number of GPUs."""
        metadata = {
            **{"hpc_fabric:version": "1", "hpc_fabric:map": "ib", "hpc_fabric:kind": "leaf"},
            **{"hpc_fabric:leaf": leaf, "hpc_fabric:block": block},
        }
        self.cloud.add_aggregate(f"hpc-fabric:leaf:{leaf}", list(hosts), metadata)
        for name, gpus in hosts.items():
            self.add_host(name, gpus)
            self.leaf_of[name] = leaf

    def add_host(self, name: str, gpus: int) -> str:
        plain = {"PCPU": 128, "MEMORY_MB": 1 << 20, "DISK_GB": 1000}
        root = self.cloud.add_provider(name, plain)
        for number in range(gpus):
            self.cloud.add_provider(f"{name}_0000:{number:02x}:00.0", {GPU: 1}, root)
        self.cloud.add_provider(
            f"{name}_0000:f0:00.0",
            {"CUSTOM_PCI_15B3_101E": 8},
            root,
            frozenset({"CUSTOM_HPC_ROLE_VF"}),
        )
        number = str(len(self.hosts) + 1)
        self.cloud.aggregates[1]["hosts"].append(name)
        db_api.host_create(
            {
                **{"id": number, "vcpus": 128, "cpu_info": "", "hypervisor_type": "QEMU"},
                **{"hypervisor_version": 8, "hypervisor_hostname": name, "service_name": name},
                **{"memory_mb": 1 << 20, "local_gb": 1000, "availability_zone": "nova"},
                "trust_id": "trust",
            }
        )
        for each, total in plain.items():
            db_api.host_resource_inventory_create(
                {"computehost_id": number, "resource_class": each, **inventory(total)}
            )
        self.hosts[number], self.gpus[name] = name, gpus
        return number

    # -- what users and time do ---------------------------------------------------------------

    def lease(self, begin: float, end: float, amount: object, flavor: str, **more: Any) -> str:
        """Create a lease, and return its id."""
        reservation = {
            **{"resource_type": self.resource_type, "flavor_id": flavor, "amount": amount},
            **{"affinity": "None"},
            **more,
        }
        values = {
            **{"name": "lease", "trust_id": "trust", "user_id": "user"},
            **{"start_date": text_at(begin), "end_date": text_at(end)},
            **{"reservations": [reservation], "events": []},
        }
        with self._user():
            lease = self.manager.create_lease(lease_values=values)
        number: str = lease["id"]
        return number

    def update(self, lease: str, **values: Any) -> None:
        if "amount" in values:
            own = db_api.lease_get(lease)["reservations"][0]["id"]
            values["reservations"] = [{"id": own, "amount": values.pop("amount")}]
        with self._user():
            self.manager.update_lease(lease_id=lease, values=values)

    def delete(self, lease: str) -> None:
        with self._user():
            self.manager.delete_lease(lease_id=lease)

    def set_clock(self, hour: float) -> None:
        timeutils.set_time_override(at(hour))

    def run_events(self) -> None:
        self.manager._process_events()

    def _user(self) -> context.BlazarContext:
        return context.BlazarContext(
            **{"user_name": "user", "auth_token": "token", "project_id": PROJECT},
            service_catalog=CATALOG,
        )

    # -- what tests see -----------------------------------------------------------------------

    def show(self, lease: str) -> dict[str, Any]:
        record: dict[str, Any] = db_api.lease_get(lease)
        return record

    def status(self, lease: str) -> str:
        status: str = self.show(lease)["status"]
        return status

    def placed(self, lease: str) -> Counter[str]:
        """Return name of a host -> members of a lease on it."""
        own = self.show(lease)["reservations"][0]["id"]
        allocations = db_api.host_allocation_get_all_by_values(reservation_id=own)
        return Counter(self.hosts[each["compute_host_id"]] for each in allocations)

    def started(self, lease: str) -> Counter[str]:
        """Return name of a host -> members that Nova lets a project create there."""
        own: str = self.show(lease)["reservations"][0]["id"]
        name = "CUSTOM_RESERVATION_" + own.upper().replace("-", "_")
        open_hosts = {
            host
            for aggregate in self.cloud.aggregates.values()
            if aggregate["metadata"].get("reservation") == own
            for host in aggregate["hosts"]
        }
        if not self.cloud.access.get(own):
            return Counter()
        return Counter(
            {
                host: provider["inventories"][name]["total"]
                for provider in self.cloud.providers.values()
                if (host := provider["name"].removeprefix("blazar_")) in open_hosts
                and name in provider["inventories"]
            }
        )


_BLAZAR_CONF = """
[DEFAULT]
transport_url = fake:/
os_auth_protocol = http
os_auth_host = cloud
os_auth_port = 80
os_auth_prefix = identity
os_auth_version = v3
os_region_name = R
[database]
connection = sqlite://
[manager]
plugins = physical.host.plugin,{plugin}
[pci]
alias = {gpu}
alias = {vf}
"""


@contextlib.contextmanager
def open_world(plugin: str, resource_type: str) -> Iterator[BlazarWorld]:
    """Open a cloud without hosts, with Blazar's manager and one plug-in, at noon."""
    gpu, vf = ALIAS
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(_BLAZAR_CONF.format(plugin=plugin, gpu=gpu, vf=vf))
        file.flush()
        CONF(args=[], project="blazar", default_config_files=[file.name], default_config_dirs=[])
    facade_wrapper._clear_engine()
    # Blazar has one in a process, which would call the plug-ins of earlier tests.
    host_plugin.PhysicalHostMonitorPlugin._instance = None
    timeutils.set_time_override(NOON)
    cloud = HttpCloud()
    try:
        with requests_mock.Mocker() as mocker:
            cloud.mount(mocker)
            # Blazar's setup_db() forgets its engine, and a database in memory with it.
            engine = facade_wrapper._get_facade().writer.get_engine()
            models.Lease.metadata.create_all(engine)
            notifier.init()
            yield BlazarWorld(cloud, resource_type)
    finally:
        timeutils.clear_time_override()
        facade_wrapper._clear_engine()
        CONF.reset()
        CONF.clear_override("alias", "pci")
        CONF.clear_override("cleaning_time")
        CONF.clear_override("tell_lease_begin", group="hpc")
        CONF.clear_override("healing_interval", "physical:host")
