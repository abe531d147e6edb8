# SPDX-License-Identifier: Apache-2.0
"""All compute nodes of a race in one process: Nova's own resource trackers.

Each host has a real ``ResourceTracker``, which registers it (compute node, PCI
devices, providers in Placement). It claims the devices of every server exactly
as nova-compute does before it starts a guest. Only the hypervisor is missing.
"""

from __future__ import annotations

import json
import queue
import threading
import traceback
import uuid
from concurrent import futures
from typing import Any

import attrs

from benchmarks.concurrency import nova_process
from benchmarks.concurrency.model import Cloud
from nova_hpc.wire import stats
from nova_hpc.wire.tags import Tags
from nova_hpc_common.level import Location

GPU_CLASS = "CUSTOM_HPC_GPU"
GPU = ("10de", "20b2")
VF_CLASS = "CUSTOM_HPC_VF"
VF = ("15b3", "101e")


@attrs.frozen
class Function:
    """A virtual function: its adapter, and the place of that adapter."""

    adapter: str
    place: Location


def names(cloud: Cloud) -> list[str]:
    """The names of the hosts."""
    return [f"node{index:03d}" for index in range(cloud.hosts)]


def node_uuid(name: str) -> str:
    """The UUID that a host's driver reports."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def functions(cloud: Cloud) -> dict[str, Function]:
    """The virtual functions of a host: address -> function."""
    places = {place.root: place for place in layout(cloud).values()}
    found = {}
    for index, place in enumerate(places.values()):
        adapter = f"0000:{0x60 + index:02x}:00.0"
        for number in range(1, cloud.functions + 1):
            address = f"0000:{0x60 + index:02x}:{number // 8:02x}.{number % 8}"
            found[address] = Function(adapter, place)
    return found


def layout(cloud: Cloud) -> dict[str, Location]:
    """The places of the GPUs of a host: address -> location."""
    found = {}
    for index in range(cloud.switches):
        place = Location(
            numa=index * 2 // cloud.switches,
            socket=0,
            root=f"pci0000:{0x40 + index:02x}",
            switches=(f"0000:{0x20 + index:02x}:00.0",),
        )
        for slot in range(cloud.gpus):
            found[f"0000:{0x40 + index:02x}:{slot:02x}.0"] = place
    return found


def device_spec(cloud: Cloud) -> list[str]:
    """``[pci]device_spec`` of every host."""
    entries = []
    for address, place in layout(cloud).items():
        tags = Tags(location=place, role="gpu", resource_class=GPU_CLASS).to_spec()
        entry = {"address": address, "managed": "no", "resource_class": GPU_CLASS}
        entries.append(json.dumps(entry | tags))
    for address, function in functions(cloud).items():
        tags = Tags(location=function.place, role="vf", resource_class=VF_CLASS).to_spec()
        entry = {"address": address, "managed": "no", "resource_class": VF_CLASS}
        entries.append(json.dumps(entry | tags))
    return entries


def _pci_devices(cloud: Cloud) -> str:
    """The report of a libvirt driver on a host's GPUs and virtual functions."""
    found = [_device(address, GPU, place.numa) for address, place in layout(cloud).items()]
    for address, function in functions(cloud).items():
        kind = {"dev_type": "type-VF", "parent_addr": function.adapter}
        found.append(_device(address, VF, function.place.numa) | kind)
    return json.dumps(found)


def _device(address: str, ids: tuple[str, str], node: int | None) -> dict[str, Any]:
    vendor, product = ids
    return {
        "dev_id": f"pci_{address}",
        "address": address,
        "product_id": product,
        "vendor_id": vendor,
        "numa_node": node,
        "label": f"label_{vendor}_{product}",
        "dev_type": "type-PCI",
        "parent_addr": None,
        "managed": "no",
    }


def _driver(name: str, cloud: Cloud) -> Any:
    """A driver that reports a host with GPUs, and starts no guest."""
    import os_resource_classes as orc
    from nova.virt import driver

    class Driver(driver.ComputeDriver):
        def get_available_nodes(self, refresh: bool = False) -> list[str]:
            return [name]

        def get_available_resource(self, nodename: str) -> dict[str, Any]:
            return {
                "vcpus": 256,
                "memory_mb": 2**20,
                "local_gb": 10**4,
                "vcpus_used": 0,
                "memory_mb_used": 0,
                "local_gb_used": 0,
                "disk_available_least": 10**4,
                "hypervisor_type": "QEMU",
                "hypervisor_version": 8002000,
                "hypervisor_hostname": name,
                "cpu_info": json.dumps({"arch": "x86_64", "features": []}),
                "supported_instances": [("x86_64", "kvm", "hvm")],
                "numa_topology": None,
                "pci_passthrough_devices": _pci_devices(cloud),
                # The report of HpcLibvirtDriver for a node without faults.
                "stats": {stats.KEY: stats.StatsDocument().dumps()},
                "uuid": node_uuid(name),
            }

        def update_provider_tree(self, tree: Any, nodename: str, allocations: Any = None) -> None:
            totals = {orc.VCPU: 256, orc.MEMORY_MB: 2**20, orc.DISK_GB: 10**4}
            tree.update_inventory(
                nodename,
                {
                    key: {
                        "total": total,
                        "min_unit": 1,
                        "max_unit": total,
                        "step_size": 1,
                        "allocation_ratio": 1.0,
                        "reserved": 0,
                    }
                    for key, total in totals.items()
                },
            )

    return Driver(None)


class Computes:
    """The hosts of a cloud."""

    def __init__(self, context: Any, cloud: Cloud) -> None:
        from nova.compute import resource_tracker

        self.context = context
        self.trackers = {
            name: resource_tracker.ResourceTracker(name, _driver(name, cloud))
            for name in names(cloud)
        }
        self.servers: dict[str, tuple[str, Any]] = {}
        self.lock = threading.Lock()

    def register(self, count: int | None = None) -> None:
        """Do the same as the start of nova-compute, and as nova-manage's discover_hosts.

        :param count: number of hosts to register; None for all.
        """
        from nova import objects

        cell = _make_cells(self.context)
        for name, tracker in list(self.trackers.items())[:count]:
            service = objects.Service(
                self.context, host=name, binary="nova-compute", topic="compute"
            )
            service.create()
            tracker.set_service_ref(service)
            tracker.update_available_resource(self.context, name, startup=True)
            objects.HostMapping(self.context, host=name, cell_mapping=cell).create()

    def build(self, primitive: Any, host: str, mapping: dict[str, list[str]]) -> str:
        """Claim a server's devices as nova-compute does; return '' or the reason of a refusal."""
        from nova import exception, objects
        from nova.compute import utils as compute_utils

        spec = objects.RequestSpec.obj_from_primitive(primitive, self.context)
        instance = objects.Instance(
            self.context,
            uuid=spec.instance_uuid,
            project_id=self.context.project_id or "race",
            user_id=self.context.user_id or "race",
            flavor=spec.flavor,
            old_flavor=None,
            new_flavor=None,
            image_ref="",
            memory_mb=spec.flavor.memory_mb,
            vcpus=spec.flavor.vcpus,
            root_gb=spec.flavor.root_gb,
            ephemeral_gb=0,
            system_metadata={},
            vm_state="building",
            task_state="scheduling",
            numa_topology=None,
            pci_requests=spec.pci_requests,
        )
        instance.create()
        tracker = self.trackers[host]
        client = tracker.reportclient
        try:
            compute_utils.update_pci_request_with_placement_allocations(
                self.context, client, instance.pci_requests.requests, mapping
            )
            allocations = client.get_allocations_for_consumer(self.context, instance.uuid)
            tracker.instance_claim(self.context, instance, host, allocations, {})
        except exception.NovaException as error:
            return f"{type(error).__name__}: {error}"
        instance.vm_state = "active"
        instance.task_state = None
        instance.save()
        with self.lock:
            self.servers[instance.uuid] = (host, instance)
        return ""

    def devices(self) -> list[tuple[str, str, str]]:
        """Nova's own records: server, host and address of each allocated device."""
        from nova import objects

        found = []
        for name, tracker in self.trackers.items():
            node = tracker.compute_nodes[name]
            for device in objects.PciDeviceList.get_by_compute_node(self.context, node.id):
                if device.instance_uuid:
                    found.append((device.instance_uuid, name, device.address))
        return found

    def clear(self) -> None:
        """Delete all servers; every device is free afterwards."""
        client = next(iter(self.trackers.values())).reportclient
        for server, (_, instance) in self.servers.items():
            client.delete_allocation_for_instance(self.context, server, force=True)
            instance.destroy()
        self.servers.clear()
        for name, tracker in self.trackers.items():
            tracker.update_available_resource(self.context, name)


def _make_cells(context: Any, transport: str = "fake:/") -> Any:
    """Make cell0 and the single cell with hosts; return the latter."""
    from nova import objects
    from nova.conf import CONF

    url = CONF.database.connection
    zero = objects.CellMapping.CELL0_UUID
    cells = (
        ("cell0", zero, url.replace("/nova?", "/nova_cell0?")),
        ("cell1", str(uuid.uuid4()), url),
    )
    for name, ident, connection in cells:
        cell = objects.CellMapping(
            context,
            uuid=ident,
            name=name,
            database_connection=connection,
            transport_url=transport,
            disabled=ident == zero,
        )
        cell.create()
    return cell


def run(nova_conf: str, log: str, cloud: Cloud, orders: Any, answers: Any) -> None:
    """Main function of the process of the computes.

    Takes ``(word, arguments)`` from *orders* and puts ``(word, result)`` into
    *answers*; ``stop`` ends it.
    """
    options = {("pci", "device_spec"): device_spec(cloud)}
    try:
        computes = Computes(nova_process.begin(nova_conf, log, options), cloud)
    except Exception:
        answers.put(("failed", traceback.format_exc()))
        return
    pool = futures.ThreadPoolExecutor(4)
    pending: list[futures.Future[str]] = []
    while True:
        try:
            word, arguments = orders.get(timeout=600)
        except queue.Empty:
            return
        try:
            if word == "stop":
                return
            if word == "build":
                pending.append(pool.submit(computes.build, *arguments))
                continue
            if word == "settle":
                # All builds that were ordered before this word have ended.
                result: Any = [text for each in pending if (text := each.result())]
                pending.clear()
            else:
                result = getattr(computes, word)(*arguments)
            answers.put((word, result))
        except Exception:
            answers.put(("failed", traceback.format_exc()))
