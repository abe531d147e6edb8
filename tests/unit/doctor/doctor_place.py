# SPDX-License-Identifier: Apache-2.0
"""A small node on which a doctor finds nothing, and the words that change it."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc_tools.adopt import install_shim
from nova_hpc_tools.adopt.prepare import Prepare
from nova_hpc_tools.site import settings
from tests.nodes import catalogue
from tests.nodes.describe import Machine, Processor, Root
from tests.nodes.write import write as build
from tests.unit.doctor.quiet_tree import QuietTree
from tests.unit.node_files import GPU, PF, VF, declare, put

PCI: Final = "/sys/devices/pci0000:17"
NODES: Final = "/sys/devices/system/node"
GROUPS: Final = "/sys/kernel/iommu_groups"
POLICY: Final = "/sys/module/pcie_aspm/parameters/policy"
STATE: Final = "var/lib/nova"
#: Who nova-compute runs as: whoever runs the tests may give files to nobody else.
NOVA: Final = os.getuid() or 64060


@attrs.define
class Place:
    """A node and the files of its services."""

    root: Path
    #: Nova's include files; those of Placement.
    folder: Path
    placement: Path
    nova_conf: Path
    #: Runs ``nova-hpc configure``.
    configure: Callable[..., Any]
    #: Where the Nova of this node has its drivers; what answers as its libvirt.
    virt: Path | None = None
    libvirt: Any = None
    #: The counters of its kernel.
    quiet: QuietTree | None = None

    def installed(self, monkeypatch: Any, folder: Path) -> None:
        """A Nova with the shim, started by a nova-compute on PATH."""
        self.virt = folder / "nova" / "virt"
        self.virt.mkdir(parents=True)
        for each in (self.virt, self.virt.parent):
            (each / "__init__.py").touch()
        self.shim()
        program = folder / "bin" / "nova-compute"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\n", encoding="ascii")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
        top = str(Path(__file__).parents[3])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), top]))

    def shim(self, text: str | None = None) -> None:
        """Put it in place, or another one."""
        assert self.virt is not None
        install_shim.write_shim(
            self.virt / install_shim.NAME, text or install_shim.read_shim_content()
        )

    def release(self, version: str) -> None:
        """Say which release that Nova is."""
        assert self.virt is not None
        home = self.virt.parents[1]
        for path in home.glob("nova-*.dist-info"):
            shutil.rmtree(path)
        info = home / f"nova-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: nova\nVersion: {version}\n"
        (info / "METADATA").write_text(text, encoding="ascii")

    def healthy(self) -> None:
        """Two NUMA nodes, devices on vfio-pci in groups of their own, hugepages, settings."""
        cpu = "/sys/devices/system/cpu"
        for number, core, threads in ((2, 2, "2-3"), (3, 2, "2-3"), (4, 4, "4-5"), (5, 4, "4-5")):
            folder = f"{cpu}/cpu{number}/topology"
            self.put(f"{folder}/physical_package_id", "0")
            self.put(f"{folder}/core_id", str(core))
            self.put(f"{folder}/thread_siblings_list", threads)
            self.put(f"{folder}/core_cpus_list", threads)
        self.put(f"{cpu}/online", "0-5")
        self.put(f"{NODES}/online", "0-1")
        self.put(f"{NODES}/node1/cpulist", "2-5")
        self.put(f"{NODES}/node1/meminfo", "Node 1 MemTotal: 16777216 kB")
        for number in range(2):
            self.pages(number, 4)
        for number, address in enumerate((GPU, PF, VF)):
            self.group(address, number)
            self.put(f"{PCI}/{address}/reset_method", "flr")
        self.driver(GPU, "vfio-pci")
        self.driver(VF, "vfio-pci")
        self.driver(PF, "mlx5_core")
        for number in range(3):
            self.put(f"{GROUPS}/{number}/type", "identity")
        self.put("/proc/cmdline", "root=/dev/sda1 intel_iommu=on iommu=pt")
        self.put(POLICY, "[default] performance powersave powersupersave")
        self.frequencies("intel_pstate", "powersave")
        self.put("/etc/passwd", f"root:x:0:0::/root:/bin/sh\nnova:x:{NOVA}:{NOVA}::/:/bin/sh")
        self.put("/usr/lib/systemd/system/nova-compute.service", "[Service]\nUser=nova")
        state = self.root / STATE
        state.mkdir(parents=True)
        (state / "hpc-ledger.json").write_text("{}", encoding="ascii")
        for each in (state, state / "hpc-ledger.json"):
            os.chown(each, NOVA, -1)
        for name, text in (
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
        ):
            self.put(f"{PCI}/{GPU}/{name}", text)
        self.nova_conf.write_text(
            "[DEFAULT]\npointer_model = ps2mouse\n"
            "[libvirt]\nmem_stats_period_seconds = 0\n"
            "[filter_scheduler]\nenabled_filters = ComputeFilter,Mine\n"
            "[quota]\nserver_group_members = -1\n",
            encoding="ascii",
        )
        self.again(limits={"hosts": 2000}, vfs={"pf": 1}, hugepages={"1G": 4})
        status, _, err = self.configure(
            *("--part", "placement", "--write", self.placement),
            *("--declaration", self.folder / "node.yaml"),
            write=False,
        )
        assert status == 0, err

    def frequencies(self, driver: str, governor: str) -> None:
        for cpu in (1, 4, 5):
            folder = f"/sys/devices/system/cpu/cpu{cpu}/cpufreq"
            self.put(f"{folder}/scaling_driver", driver)
            self.put(f"{folder}/scaling_governor", governor)

    def say(self, text: str) -> None:
        """Add to the operator's own nova.conf."""
        with self.nova_conf.open("a", encoding="ascii") as file:
            file.write(f"{text}\n")

    def leaf(self, folder: str, ats: bool = True) -> None:
        """A switch with a GPU and an adapter, as a synthetic node has them."""
        adapter = replace(catalogue.adapter(0, 0x43, vfs=0), ats=ats)
        below = catalogue.switch(0x42, adapter, catalogue.gpu("10de:2330", "10de:16c1", 0x44))
        cells = catalogue.numa_nodes(1, 1, 2, 4, {2048: 0})
        roots = (Root(0, 0x40, 0, (catalogue.port("01.0", 0x41, below),)),)
        there = build(
            Machine("leaf", cells, roots, Processor(catalogue.XEON, sibling=2)),
            self.root.parent / folder,
        )
        root = "sys/devices/pci0000:40"
        shutil.rmtree(self.root / root, ignore_errors=True)
        shutil.copytree(there / root, self.root / root, symlinks=True)
        for link in (there / "sys/bus/pci/devices").iterdir():
            here = self.root / "sys/bus/pci/devices" / link.name
            if link.is_symlink() and not here.is_symlink():
                here.symlink_to(link.readlink())

    def again(self, *words: object, **wishes: object) -> None:
        """Declare *wishes* and run ``nova-hpc configure``, as the cures say."""
        if wishes:
            declare(self.folder / "node.yaml", **wishes)
        parts = [word for part in settings.PARTS[:3] for word in ("--part", part)]
        status, _, err = self.configure(*parts, *words)
        assert status == 0, err

    def prepare(self) -> None:
        """Run ``nova-hpc prepare`` on the node itself."""
        (self.root / "etc").mkdir(exist_ok=True)
        command = Prepare(None, None)
        words = ["--root", self.root, "--declaration", self.folder / "node.yaml"]
        parser = command.get_parser("nova-hpc prepare")
        with contextlib.redirect_stdout(io.StringIO()):
            parsed = parser.parse_args(list(map(str, [*words, "--write", self.root])))
            assert command.run(parsed) == 0

    def pass_time(self, seconds: float) -> None:
        """What "sleep" does between two readings of the counters."""
        if self.quiet is not None:
            self.quiet.wait(seconds)

    def put(self, path: str, text: str) -> None:
        put(self.root, path, text)

    def pages(self, node: int, count: int) -> None:
        pool = f"{NODES}/node{node}/hugepages/hugepages-1048576kB"
        self.put(f"{pool}/nr_hugepages", str(count))
        self.put(f"{pool}/free_hugepages", str(count))

    def driver(self, address: str, name: str) -> None:
        link = self.root / PCI.lstrip("/") / address / "driver"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../../../bus/pci/drivers/{name}")

    def group(self, address: str, number: int | None) -> None:
        link = self.root / PCI.lstrip("/") / address / "iommu_group"
        groups = self.root / "sys/kernel/iommu_groups"
        if link.is_symlink():
            (groups / link.readlink().name / "devices" / address).unlink()
            link.unlink()
        if number is not None:
            (groups / str(number) / "devices").mkdir(parents=True, exist_ok=True)
            (groups / str(number) / "devices" / address).symlink_to(
                f"../../../../devices/pci0000:17/{address}"
            )
            link.symlink_to(f"../../../kernel/iommu_groups/{number}")

    def device(self, address: str, vendor: str, product: str, code: str) -> None:
        """Plug a function in."""
        for name, text in (("vendor", vendor), ("device", product), ("class", code)):
            self.put(f"{PCI}/{address}/{name}", text)
        self.put(f"{PCI}/{address}/numa_node", "0")
        self.put(f"{PCI}/{address}/reset_method", "flr")
        self.link(address)

    def link(self, address: str, there: bool = True) -> None:
        link = self.root / "sys/bus/pci/devices" / address
        if there:
            link.symlink_to(f"../../../devices/pci0000:17/{address}")
        else:
            link.unlink()

    def edit(self, part: str, old: str, new: str) -> None:
        """Change a file of ours by hand."""
        folder = self.placement if part == settings.PLACEMENT else self.folder
        path = folder / settings.file_name(part)
        text = path.read_text(encoding="ascii")
        assert old in text, text
        path.write_text(text.replace(old, new), encoding="ascii")

    def option(self, part: str, name: str, value: str | None) -> None:
        """Give an option of ours another value, or none."""
        folder = self.placement if part == settings.PLACEMENT else self.folder
        path = folder / settings.file_name(part)
        lines = path.read_text(encoding="ascii").splitlines()
        found = [line for line in lines if line.startswith(f"{name} = ")]
        assert found, name
        keep = [line for line in lines if line not in found[1:] or value is not None]
        path.write_text(
            "".join(
                f"{line}\n"
                for line in (
                    (f"{name} = {value}" if value is not None else "") if line in found else line
                    for line in keep
                )
            ),
            encoding="ascii",
        )

    def declare(self, old: str, new: str) -> None:
        path = self.folder / "node.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text, text
        path.write_text(text.replace(old, new), encoding="utf-8")
