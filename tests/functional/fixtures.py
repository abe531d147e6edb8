# SPDX-License-Identifier: Apache-2.0
"""Hosts with a given PCIe topology, for Nova's fake libvirt.

A :class:`Shape` says how many GPUs and adapters sit below which switch, PCIe
root and NUMA node. It yields what Nova's test classes want (fake libvirt
devices and host information), what an operator would write (``device_spec``
with tags) and the truth that tests compare with (address -> Location).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import attrs
import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver

from nova_hpc.wire import stats
from nova_hpc.wire.tags import Tags
from nova_hpc_common.level import Location

GPU_VENDOR, GPU_PRODUCT = "10de", "20b2"
NIC_VENDOR, PF_PRODUCT, VF_PRODUCT = "15b3", "101d", "101e"
DISK_VENDOR, DISK_PRODUCT = "144d", "a80a"
GPU_CLASS = "CUSTOM_HPC_GPU"
VF_CLASS = "CUSTOM_HPC_VF"
DISK_CLASS = "CUSTOM_HPC_NVME"
#: Devices that carry no resource class get the one that Nova derives.
DEFAULT_GPU_CLASS = f"CUSTOM_PCI_{GPU_VENDOR}_{GPU_PRODUCT}".upper()

#: Aliases by resource class only: they match every pool as far as Nova's own
#: matching of specifications goes.
CLASS_ALIASES = (
    {"name": "gpu", "resource_class": GPU_CLASS},
    {"name": "vf", "resource_class": VF_CLASS},
)
#: Aliases by identifiers, as most deployments have them.
ID_ALIASES = (
    {"name": "gpu", "vendor_id": GPU_VENDOR, "product_id": GPU_PRODUCT},
    {
        "name": "vf",
        "vendor_id": NIC_VENDOR,
        "product_id": VF_PRODUCT,
        "device_type": "type-VF",
    },
)


@attrs.frozen
class Switch:
    """What sits below one PCIe switch."""

    gpus: int = 2
    pfs: int = 0
    #: Virtual functions of each adapter; Nova's fake knows up to 6.
    vfs: int = 4
    numa: int = 0
    #: PCIe root; None: one of its own.
    root: str | None = None
    #: False: the devices hang off root ports, without a switch.
    switched: bool = True
    #: NVMe disks.
    disks: int = 0


@attrs.frozen
class Function:
    """One function of the fake host."""

    kind: str  # gpu, pf, vf or nvme
    bus: int
    slot: int
    function: int
    location: Location
    group: int

    @property
    def address(self) -> str:
        return f"0000:{self.bus:02x}:{self.slot:02x}.{self.function:x}"


@attrs.frozen
class Shape:
    """A whole host."""

    switches: tuple[Switch, ...] = attrs.field(converter=tuple)
    nodes: int = 2  # NUMA nodes
    sockets: int = 1
    cores: int = 2  # a NUMA node
    threads: int = 2
    memory_kib: int = 32 * 1024 * 1024
    #: page size in KiB -> pages, on every NUMA node; None: 4 KiB pages only
    pages: tuple[tuple[int, int], ...] | None = None

    def functions(self) -> Iterator[Function]:
        """Every function of the host, in the order of addresses."""
        group = 40
        for index, switch in enumerate(self.switches):
            bus = 0x40 + index
            root = switch.root or f"pci0000:{bus:02x}"
            socket = switch.numa // (self.nodes // self.sockets) if self.sockets > 1 else 0
            location = Location(
                numa=switch.numa,
                socket=socket,
                root=root,
                switches=(f"0000:{0x20 + index:02x}:00.0",) if switch.switched else (),
            )
            for slot in range(switch.gpus):
                group += 1
                place = location
                if not switch.switched:
                    place = attrs.evolve(location, switches=(f"0000:{0x20 + slot:02x}:1c.0",))
                yield Function("gpu", bus, slot, 0, place, group)
            for slot in range(switch.gpus, switch.gpus + switch.pfs):
                group += 1
                yield Function("pf", bus, slot, 0, location, group)
                for function in range(1, switch.vfs + 1):
                    group += 1
                    yield Function("vf", bus, slot, function, location, group)
            first = switch.gpus + switch.pfs
            for slot in range(first, first + switch.disks):
                group += 1
                yield Function("nvme", bus, slot, 0, location, group)

    def locations(self) -> dict[str, Location]:
        """The truth: where every function sits, by PCI address."""
        return {each.address: each.location for each in self.functions()}

    def host_info(self) -> fakelibvirt.HostInfo:
        mempages = None
        if self.pages is not None:
            mempages = {
                node: fakelibvirt.create_mempages(list(self.pages)) for node in range(self.nodes)
            }
        return fakelibvirt.HostInfo(
            cpu_nodes=self.nodes // self.sockets,
            cpu_sockets=self.sockets,
            cpu_cores=self.cores,
            cpu_threads=self.threads,
            kB_mem=self.memory_kib,
            mempages=mempages,
        )

    def pci_info(self) -> fakelibvirt.HostPCIDevicesInfo:
        info = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
        vfs = {switch.vfs for switch in self.switches if switch.pfs} or {0}
        assert len(vfs) == 1, "Nova's fake wants one number of VFs a host"
        ratio = vfs.pop()
        for each in self.functions():
            common = {
                "bus": each.bus,
                "slot": each.slot,
                "function": each.function,
                "iommu_group": each.group,
                "numa_node": each.location.numa,
            }
            if each.kind == "gpu":
                info.add_device(
                    "PCI",
                    vend_id=GPU_VENDOR,
                    vend_name="NVIDIA Corporation",
                    prod_id=GPU_PRODUCT,
                    prod_name="GPU",
                    driver_name="vfio-pci",
                    **common,
                )
            elif each.kind == "nvme":
                info.add_device(
                    "PCI",
                    vend_id=DISK_VENDOR,
                    vend_name="Samsung Electronics",
                    prod_id=DISK_PRODUCT,
                    prod_name="NVMe disk",
                    driver_name="vfio-pci",
                    **common,
                )
            elif each.kind == "pf":
                info.add_device(
                    "PF",
                    vf_ratio=ratio,
                    vend_id=NIC_VENDOR,
                    vend_name="Mellanox Technologies",
                    prod_id=PF_PRODUCT,
                    prod_name="ConnectX",
                    driver_name="mlx5_core",
                    **common,
                )
            else:
                info.add_device(
                    "VF",
                    vf_ratio=ratio,
                    parent=(each.bus, each.slot, 0),
                    vend_id=NIC_VENDOR,
                    vend_name="Mellanox Technologies",
                    prod_id=VF_PRODUCT,
                    prod_name="ConnectX VF",
                    driver_name="vfio-pci",
                    **common,
                )
        return info

    def device_spec(self, classes: bool = True, tags: bool = True) -> list[dict[str, str]]:
        """What an operator writes: one entry a GPU or disk, one for the VFs of a PF.

        :param classes: give resource classes; without, Nova derives them.
        :param tags: give the ``hpc_*`` tags.
        """
        entries = []
        for each in self.functions():
            if each.kind == "vf":
                continue
            role = "vf" if each.kind == "pf" else each.kind
            name = {"gpu": GPU_CLASS, "nvme": DISK_CLASS}.get(role, VF_CLASS)
            if role == "gpu":
                entry = {"vendor_id": GPU_VENDOR, "product_id": GPU_PRODUCT}
                entry["address"] = each.address
            elif role == "nvme":
                entry = {"vendor_id": DISK_VENDOR, "product_id": DISK_PRODUCT}
                entry["address"] = each.address
            else:
                entry = {"vendor_id": NIC_VENDOR, "product_id": VF_PRODUCT}
                entry["address"] = each.address[:-1] + "*"
            entry["managed"] = "no"
            if classes:
                entry["resource_class"] = name
            if tags:
                entry |= Tags(
                    location=each.location, role=role, resource_class=name if classes else None
                ).to_spec()
            entries.append(entry)
        return entries


def two_switches(
    gpus: int = 4, pfs: int = 0, numa: Sequence[int] = (0, 0), **keywords: object
) -> Shape:
    """The plainest host with something to choose: two switches."""
    return Shape(tuple(Switch(gpus=gpus, pfs=pfs, numa=node) for node in numa), **keywords)


def healthy_stats() -> dict[str, str]:
    """What the driver of this project says of a node where nothing is wrong."""
    return {stats.KEY: stats.StatsDocument().dumps()}


class SaidOfStock(fixtures.Fixture):
    """Nodes with Nova's own driver, of which the scheduler hears what ours would say.

    Tests of the scheduler have no sysfs for the driver to read.

    :param silent: names of nodes of which it hears nothing; may grow.
    """

    def __init__(self, silent: Collection[str]) -> None:
        super().__init__()
        self.silent = silent

    def _setUp(self) -> None:
        plain = libvirt_driver.LibvirtDriver.get_available_resource

        def reported(driver: libvirt_driver.LibvirtDriver, nodename: str) -> dict[str, Any]:
            found = plain(driver, nodename)
            if nodename not in self.silent:
                found["stats"] |= healthy_stats()
            return found

        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.get_available_resource", reported
            )
        )


class DomainRecorder(fixtures.Fixture):
    """Keeps every domain that was given to libvirt, newest last, by UUID."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, list[str]] = {}

    def _setUp(self) -> None:
        recorder = self
        plain = fakelibvirt.Domain.__init__

        def init(domain, connection, xml, running=False, transient=False):
            text = xml if isinstance(xml, str) else xml.decode()
            plain(domain, connection, xml, running=running, transient=transient)
            recorder.given.setdefault(domain.UUIDString(), []).append(text)

        self.useFixture(fixtures.MonkeyPatch("nova.tests.fixtures.libvirt.Domain.__init__", init))


class HonestDomains(fixtures.Fixture):
    """Lets the XML of Nova's fake libvirt name the devices of direct ports as libvirt does."""

    _SOURCE = re.compile(r"<source hostdev='pci_(\w{4})_(\w{2})_(\w{2})_(\w)'/>")
    _ADDRESS = (
        r"<source><address type='pci' domain='0x\1' bus='0x\2' slot='0x\3' function='0x\4'/>"
        "</source>"
    )

    def _setUp(self) -> None:
        plain = fakelibvirt.Domain.XMLDesc

        def describe(domain, flags):
            return self._SOURCE.sub(self._ADDRESS, plain(domain, flags))

        self.useFixture(
            fixtures.MonkeyPatch("nova.tests.fixtures.libvirt.Domain.XMLDesc", describe)
        )


class Moves(fixtures.Fixture):
    """Lets servers move between hosts whose disks are not there.

    As in reality the guest is shut off where it was, and its domain is gone there when
    the move is confirmed. (Nova compares with ``CONF.host``, of which a process has one.)
    """

    def _setUp(self) -> None:
        driver = "nova.virt.libvirt.driver.LibvirtDriver"
        patch = fixtures.MonkeyPatch
        self.useFixture(patch(f"{driver}.migrate_disk_and_power_off", self._power_off))
        self.useFixture(patch(f"{driver}._cleanup_resize", self._undefine))

    @staticmethod
    def _power_off(driver, context, instance, *args, **kwargs):
        driver._host.get_guest(instance).poweroff()
        return "{}"

    @staticmethod
    def _undefine(driver, context, instance, network_info):
        if instance.host != driver.virtapi._compute.host:
            driver._undefine_domain(instance)


def stock_move_claims() -> fixtures.Fixture:
    """Nova's own claims of moves, should an earlier test have bound them."""
    from nova.compute import claims

    plain = inspect.unwrap(claims.MoveClaim.__init__)
    return fixtures.MonkeyPatch("nova.compute.claims.MoveClaim.__init__", plain)
