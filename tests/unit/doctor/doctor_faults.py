# SPDX-License-Identifier: Apache-2.0
"""Faults that are made for real on a small node, each with what cures it.

``python -m tests.unit.doctor.doctor_faults`` writes the table of the documentation.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy.peer import acs_registers as peer
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc_tools.adopt import host_files, install_shim, settings
from nova_hpc_tools.adopt.findings import CHECKS
from tests.unit.doctor.doctor_place import GROUPS, PCI, POLICY, STATE, Place
from tests.unit.node_files import GPU, PF, VF

PAGE: Final = Path(__file__).parents[3] / "docs/source/admin/doctor-faults.inc"


@attrs.frozen
class Fault:
    """One fault."""

    text: str
    check: str
    make: Callable[[Place], object]
    #: What is done, in words, and the same.
    cured_by: str
    cure: Callable[[Place], object]
    part: str = "node"


@attrs.frozen
class Row:
    """A fault that is made elsewhere, as the table shows it."""

    text: str
    check: str
    cured_by: str


CONFIGURE: Final = "``nova-hpc configure --write``"


def _again(place: Place) -> None:
    place.again()


def _controller(filters: str) -> Callable[[Place], None]:
    return lambda place: place.option(settings.CONTROLLER, "enabled_filters", filters)


def _prepared_and_edited(place: Place) -> None:
    place.prepare()
    path = place.root / host_files.MODULES
    path.write_text(f"{host_files.MARKER}\nvfio\n", encoding="ascii")


def _no_groups(place: Place) -> None:
    for address in (GPU, PF, VF):
        place.group(address, None)
    shutil.rmtree(place.root / "sys/kernel/iommu_groups")


def _groups(place: Place) -> None:
    for number, address in enumerate((GPU, PF, VF)):
        place.group(address, number)


def _sound(place: Place) -> None:
    place.device("0000:18:00.1", "0x10de", "0x22f0", "0x040300")
    place.driver("0000:18:00.1", "snd_hda_intel")
    place.group("0000:18:00.1", 0)


def _no_vf(place: Place) -> None:
    place.link(VF, False)
    (place.root / PCI.lstrip("/") / PF / "virtfn0").unlink()


def _vf(place: Place) -> None:
    place.link(VF)
    (place.root / PCI.lstrip("/") / PF / "virtfn0").symlink_to(f"../{VF}")


def _manager(place: Place) -> None:
    path = place.root / PCI.lstrip("/") / PF / "vpd"
    path.write_bytes(b"\x90" + (14).to_bytes(2, "little") + b"V0\x0bSMDL=SW_MNG\x78")


def _not_started(place: Place) -> None:
    place.put("/etc/default/grub", "")
    place.put("/etc/default/grub.d/mine.cfg", "")
    place.prepare()
    place.put("/proc/cmdline", "root=/dev/sda1 intel_iommu=on")


def _started(place: Place) -> None:
    """A boot loader that has read what was prepared."""
    text = (place.root / host_files.GRUB).read_text(encoding="ascii")
    line = text.partition('"$GRUB_CMDLINE_LINUX ')[2].partition('"')[0]
    place.put("/proc/cmdline", f"root=/dev/sda1 {line}")


def _translated(place: Place) -> None:
    place.put(f"{GROUPS}/1/type", "DMA-FQ")
    place.put("/proc/cmdline", "root=/dev/sda1 intel_iommu=on")
    place.put("/etc/default/grub", "")
    place.put("/etc/default/grub.d/mine.cfg", "")


def _not_translated(place: Place) -> None:
    place.prepare()
    _started(place)
    place.put(f"{GROUPS}/1/type", "identity")


def _libvirt(place: Place, version: int) -> None:
    place.libvirt.version = version


BROADCOM: Final = "0000:1e:00.0"
#: As the cure of the check has it.
ROLE: Final = (
    '{"role": "nic-14e4", "vendor_id": "14e4", "product_id": "1760", "dev_type": "type-PCI"}'
)


def _broadcom(place: Place) -> None:
    place.device(BROADCOM, "0x14e4", "0x1760", "0x020000")
    place.driver(BROADCOM, "vfio-pci")
    place.group(BROADCOM, 8)


def _nvswitch(place: Place, driver: str | None = "vfio-pci") -> None:
    place.device("0000:1c:00.0", "0x10de", "0x22a3", "0x068000")
    place.group("0000:1c:00.0", 7)
    if driver is not None:
        place.driver("0000:1c:00.0", driver)


_MANAGED: Final = "[hpc]\nnvlink_backend = fabric-manager"
_HOOK: Final = "/etc/libvirt/hooks/qemu.d/nvlink"


def _hook(place: Place) -> None:
    _nvswitch(place)
    place.say(_MANAGED)
    place.put(_HOOK, "#!/bin/sh\n[ $2 = prepare ] && fmpm -a 3")


def _weighers(place: Place, names: str) -> None:
    text = ",".join((names, *settings.WEIGHER_CLASSES))
    place.option(CONTROLLER, "weight_classes", text)


def _later_weighers(place: Place, names: str) -> None:
    text = ",".join((names, *settings.WEIGHER_CLASSES))
    place.say(f"[filter_scheduler]\nweight_classes = {settings.ALL_WEIGHERS},acme.Tenants")
    (place.folder / "zz.conf").write_text(f"[filter_scheduler]\nweight_classes = {text}\n")


def _stand_in(place: Place) -> None:
    said = f"offer_in_use:\n- {{hardware: 'serial:0200000000000003', address: '{GPU}'}}\n"
    place.declare("vfs:\n", f"{said}vfs:\n")


_RULE: Final = f'ACTION=="add", KERNEL=="{GPU}", ATTR{{driver_override}}="nvidia"'
_TRANSLATED: Final = "[hpc]\npeer_to_peer = translated"


def _bar(start: str, end: str, flags: str) -> str:
    """The file ``resource`` of a function with one BAR."""
    width = 18
    words = [f"0x{int(each, 16):0{width - 2}x}" for each in (start, end, flags)]
    return "\n".join([" ".join(words), *[" ".join(["0x" + "0" * 16] * 3)] * 5])


def _port(place: Place, state: str) -> None:
    port = f"{PCI}/{PF}/infiniband/mlx5_0/ports/1"
    place.put(f"{port}/state", state)
    place.put(f"{port}/link_layer", "InfiniBand")


def _second(place: Place) -> None:
    place.device("0000:1d:00.0", "0x10de", "0x2330", "0x030200")
    place.driver("0000:1d:00.0", "vfio-pci")
    place.group("0000:1d:00.0", 9)


def _hidden(place: Place) -> None:
    text = place.folder / settings.file_name(settings.CONTROLLER)
    line = next(each for each in text.read_text().splitlines() if "enabled_filters" in each)
    last = line.replace("Mine,", "")
    (place.folder / "zz.conf").write_text(f"[filter_scheduler]\n{last}\n", encoding="ascii")


_PLACEMENT_WORDS: Final = ("--part", "placement")


def _placement(place: Place) -> None:
    status, _, err = place.configure(*_PLACEMENT_WORDS, "--write", place.placement, write=False)
    assert status == 0, err


def _quota(count: int) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        text = place.nova_conf.read_text(encoding="ascii")
        head = text.partition("server_group_members")[0]
        place.nova_conf.write_text(f"{head}server_group_members = {count}\n", encoding="ascii")

    return change


FULL: Final = ",".join(settings.place_own_filters(["ComputeFilter", "Mine"]))
COMMON, CONTROLLER, COMPUTE, PLACEMENT = settings.PARTS

FAULTS: Final = (
    Fault("no IOMMU", "iommu-off", _no_groups, "IOMMU switched on", _groups),
    Fault(
        "a GPU without an IOMMU group", "iommu-group", lambda p: p.group(GPU, None),
        "its group is back", lambda p: p.group(GPU, 0),
    ),
    Fault(
        "a sound function of the host in a GPU's group", "group-shared", _sound,
        "bound to vfio-pci", lambda p: p.driver("0000:18:00.1", "vfio-pci"),
    ),
    Fault(
        "a GPU on the host's driver", "driver", lambda p: p.driver(GPU, "nvidia"),
        "``driverctl``: vfio-pci", lambda p: p.driver(GPU, "vfio-pci"),
    ),
    Fault(
        "fewer VFs than declared", "vfs-declared", lambda p: p.declare("pf: 1", "pf: 2"),
        "the declaration changed", lambda p: p.declare("pf: 2", "pf: 1"),
    ),
    Fault(
        "VFs switched off", "vfs-declared", _no_vf, "``sriov_numvfs`` written", _vf,
    ),
    Fault(
        "VFs off and none declared", "vfs-none",
        lambda p: (p.declare("vfs:\n  pf: 1\n", ""), _no_vf(p)), "``sriov_numvfs`` written", _vf,
    ),
    Fault(
        "no hugepages", "hugepages-none",
        lambda p: (p.declare("hugepages:\n  1G: 4\n", ""), p.pages(0, 0), p.pages(1, 0)),
        "reserved", lambda p: (p.pages(0, 4), p.pages(1, 4)),
    ),
    Fault(
        "fewer hugepages than declared", "hugepages-declared", lambda p: p.pages(1, 2),
        "``nr_hugepages`` written", lambda p: p.pages(1, 4),
    ),
    Fault(
        "hugepages on the other NUMA node alone", "hugepages-uneven", lambda p: p.pages(0, 0),
        "``nr_hugepages`` written", lambda p: p.pages(0, 4),
    ),
    Fault(
        "a prepared host with a file edited by hand", "prepare-drift", _prepared_and_edited,
        "``nova-hpc prepare --write``", lambda p: p.prepare(),
    ),
    Fault(
        "a prepared host that was not restarted", "prepare-restart",
        _not_started,
        "restarted", _started,
    ),
    Fault(
        "a script of the operator's that makes VFs, too", "vfs-twice",
        lambda p: (p.prepare(), p.put("/etc/rc.local", f"echo 8 >/sys/{PF}/sriov_numvfs")),
        "taken out", lambda p: p.put("/etc/rc.local", "exit 0"),
    ),
    Fault(
        "driverctl with the host's driver for a GPU", "driver-at-boot",
        lambda p: p.put(f"/etc/driverctl.d/pci-{GPU}", "nvidia"),
        "``driverctl``: vfio-pci", lambda p: p.put(f"/etc/driverctl.d/pci-{GPU}", "vfio-pci"),
    ),
    Fault(
        "a udev rule of another tool with the host's driver for a GPU", "driver-rule",
        lambda p: p.put("/etc/udev/rules.d/90-gpus.rules", _RULE),
        "the line taken out",
        lambda p: p.put("/etc/udev/rules.d/90-gpus.rules", f"# {_RULE}"),
    ),
    Fault(
        "a host whose adapters are translated", "iommu-translated", _translated,
        "``nova-hpc prepare --write``, restarted", _not_translated,
    ),
    Fault(
        "links that sleep", "aspm-saving",
        lambda p: p.put(POLICY, "default performance [powersave] powersupersave"),
        "``policy`` written",
        lambda p: p.put(POLICY, "default [performance] powersave powersupersave"),
    ),
    Fault(
        "dedicated CPUs at their lowest frequency", "cpus-slow",
        lambda p: p.frequencies("acpi-cpufreq", "powersave"),
        "``cpupower``: performance", lambda p: p.frequencies("acpi-cpufreq", "performance"),
    ),
    Fault(
        "ports of a switch that a reset has set back", "peer-ports",
        lambda p: (p.leaf("leaf"), p.again(), p.say(_TRANSLATED)),
        "set as nova-compute does", lambda p: peer.apply_peer_wish(p.root, PeerWish.TRANSLATED),
    ),
    Fault(
        "an adapter whose firmware does not offer ATS", "peer-lacking",
        lambda p: (p.leaf("leaf", ats=False), p.again(), p.say(_TRANSLATED)),
        "``mlxconfig``, a cold start", lambda p: p.leaf("after"),
    ),
    Fault(
        "cliques and a libvirt before 8.2", "libvirt-old",
        lambda p: (p.say("[hpc]\ngpudirect_clique = true"), _libvirt(p, 8_001_000)),
        "libvirt upgraded", lambda p: _libvirt(p, 8_002_000),
    ),
    Fault(
        "a GPU of a terabyte and a libvirt before 8.7", "libvirt-old",
        lambda p: (
            p.put(f"{PCI}/{GPU}/resource", _bar("0x100000000000", "0x10ffffffffff", "0x14220c")),
            _libvirt(p, 8_006_000),
        ),
        "libvirt upgraded", lambda p: _libvirt(p, 8_007_000),
    ),
    Fault(
        "no shim", "shim", lambda p: (p.virt / install_shim.NAME).unlink(),
        "``nova-hpc install-shim``", lambda p: p.shim(),
    ),
    Fault(
        "the shim of an earlier release", "shim",
        lambda p: p.shim('"""nova-hpc: of an earlier release."""\n'),
        "``nova-hpc install-shim``", lambda p: p.shim(),
    ),
    Fault(
        "a ledger in a folder for everybody", "ledger-open",
        lambda p: (p.root / STATE).chmod(0o777),
        "``chmod``", lambda p: (p.root / STATE).chmod(0o775),
    ),
    Fault(
        "a folder that nova cannot write into", "ledger-closed",
        lambda p: (p.root / STATE).chmod(0o555),
        "``chown``, ``chmod``", lambda p: (p.root / STATE).chmod(0o755),
    ),
    Fault(
        "a ledger that nova cannot read", "ledger-closed",
        lambda p: (p.root / STATE / "hpc-ledger.json").chmod(0o040),
        "``chown``, ``chmod``", lambda p: (p.root / STATE / "hpc-ledger.json").chmod(0o640),
    ),
    Fault(
        "a GPU without room for its memory", "bar-unassigned",
        lambda p: p.put(f"{PCI}/{GPU}/resource", _bar("0x0", "0x1fffffffff", "0x2014220c")),
        "a larger MMIO window", lambda p: p.put(
            f"{PCI}/{GPU}/resource", _bar("0x380000000000", "0x381fffffffff", "0x14220c")
        ),
    ),
    Fault(
        "an adapter without a cable", "port-down", lambda p: _port(p, "1: DOWN"),
        "plugged in", lambda p: _port(p, "4: ACTIVE"),
    ),
    Fault(
        "no dedicated CPUs", "cpus-none",
        lambda p: (
            p.option(COMPUTE, "cpu_dedicated_set", None), p.option(COMPUTE, "cpu_shared_set", None)
        ),
        CONFIGURE, _again,
    ),
    Fault(
        "a set that is none", "cpus-unreadable",
        lambda p: p.option(COMPUTE, "cpu_dedicated_set", "1-"),
        "the line corrected", lambda p: p.option(COMPUTE, "cpu_dedicated_set", "1,4-5"),
    ),
    Fault(
        "CPUs that the host has not", "cpus-absent",
        lambda p: p.option(COMPUTE, "cpu_dedicated_set", "1,4-9"),
        "taken out", lambda p: p.option(COMPUTE, "cpu_dedicated_set", "1,4-5"),
    ),
    Fault(
        "a CPU shared and dedicated", "cpus-overlap",
        lambda p: p.option(COMPUTE, "cpu_dedicated_set", "0-1,4-5"),
        "taken out of one", lambda p: p.option(COMPUTE, "cpu_dedicated_set", "1,4-5"),
    ),
    Fault(
        "the threads of a core apart", "cpus-split",
        lambda p: (
            p.option(COMPUTE, "cpu_dedicated_set", "1,3-5"),
            p.option(COMPUTE, "cpu_shared_set", "0,2"),
        ),
        "both into one set",
        lambda p: (
            p.option(COMPUTE, "cpu_dedicated_set", "1,4-5"),
            p.option(COMPUTE, "cpu_shared_set", "0,2-3"),
        ),
    ),
    Fault(
        "dedicated CPUs on the other NUMA node alone", "cpus-away",
        lambda p: p.option(COMPUTE, "cpu_dedicated_set", "4-5"),
        "CPUs added", lambda p: p.option(COMPUTE, "cpu_dedicated_set", "1,4-5"),
    ),
    Fault(
        "GPUs whose NUMA node the firmware does not name", "numa-unknown",
        lambda p: p.put(f"{PCI}/{GPU}/numa_node", "-1"),
        "``numa_node`` written", lambda p: p.put(f"{PCI}/{GPU}/numa_node", "0"),
    ),
    Fault(
        "an adapter of another make for servers", "role-none", _broadcom,
        f"{CONFIGURE} ``--add-device-role``", lambda p: p.again("--add-device-role", ROLE),
    ),
    Fault(
        "NVSwitches that nobody runs", "nvswitch-idle", _nvswitch,
        "Fabric Manager, ``nvlink_backend``", lambda p: p.say(_MANAGED),
    ),
    Fault(
        "NVSwitches that servers are to have", "nvswitch-idle", _nvswitch,
        f"{CONFIGURE} ``--offer-switches``", lambda p: p.again("--offer-switches"),
    ),
    Fault(
        "NVSwitches without a driver for their manager", "nvswitch-idle",
        lambda p: (_nvswitch(p, None), p.say(_MANAGED)),
        "a driver bound", lambda p: p.driver("0000:1c:00.0", "nvidia"),
    ),
    Fault(
        "a hook of libvirt that starts partitions", "nvswitch-hook", _hook,
        "taken out", lambda p: p.put(_HOOK, "#!/bin/sh\n# fmpm -a 3"),
    ),
    Fault(
        "a declaration by a number of a saved inventory", "declared-stand-in", _stand_in,
        CONFIGURE, _again,
    ),
    Fault(
        "a USB tablet for every server", "guest-devices",
        lambda p: p.say("[DEFAULT]\npointer_model = usbtablet"),
        "``pointer_model`` set", lambda p: p.say("[DEFAULT]\npointer_model = ps2mouse"),
    ),
    Fault(
        "a memory balloon for every server", "guest-devices",
        lambda p: p.say("[libvirt]\nmem_stats_period_seconds = 10"),
        "``mem_stats_period_seconds`` set",
        lambda p: p.say("[libvirt]\nmem_stats_period_seconds = 0"),
    ),
    Fault(
        "a GPU with 8 of 16 lanes", "link-narrow",
        lambda p: p.put(f"{PCI}/{GPU}/current_link_width", "8"),
        "the card reseated", lambda p: p.put(f"{PCI}/{GPU}/current_link_width", "16"),
    ),
    Fault(
        "a GPU that cannot be reset", "reset-none",
        lambda p: (p.root / PCI.lstrip("/") / GPU / "reset_method").unlink(),
        "``configure --leave-out``", lambda p: p.again("--leave-out", GPU),
    ),
    Fault(
        "a GPU whose NUMA node cannot be read", "unreadable",
        lambda p: p.put(f"{PCI}/{GPU}/numa_node", "many"),
        "the card replaced", lambda p: p.put(f"{PCI}/{GPU}/numa_node", "0"),
    ),
    Fault(
        "an offered GPU that is away", "offered-gone", lambda p: p.link(GPU, False),
        f"{CONFIGURE} ``--replace``", lambda p: p.again("--replace", GPU),
    ),
    Fault(
        "an offered adapter that manages NVSwitches", "offered-never", _manager,
        f"{CONFIGURE} ``--replace``", lambda p: p.again("--replace", PF),
    ),
    Fault("a GPU that is not offered", "not-offered", _second, CONFIGURE, _again),
    Fault(
        "a GPU moved to another NUMA node", "tags-stale",
        lambda p: p.put(f"{PCI}/{GPU}/numa_node", "1"), CONFIGURE, _again,
    ),
    Fault(
        "an entry without managed: no", "managed",
        lambda p: p.edit(COMPUTE, '"managed": "no", ', ""), CONFIGURE, _again,
    ),
    Fault(
        "an entry of stock Nova before ours", "entry-hidden",
        lambda p: (p.folder / "aa.conf").write_text(
            f'[pci]\ndevice_spec = {{"vendor_id": "10de", "address": "{GPU}"}}\n'
        ),
        "taken out", lambda p: (p.folder / "aa.conf").unlink(),
    ),
    Fault(
        "an adapter that is offered by its interface", "nova-refuses",
        lambda p: (p.folder / "aa.conf").write_text(
            '[pci]\ndevice_spec = {"devname": "enp25s0f0", "physical_network": "physnet1"}\n'
        ),
        "its address", lambda p: (p.folder / "aa.conf").write_text(
            f'[pci]\ndevice_spec = {{"address": "{PF}", "physical_network": "physnet1"}}\n'
        ),
    ),
    Fault(
        "an alias of another type than the device", "alias-type",
        lambda p: (p.folder / "aa.conf").write_text(
            '[pci]\nalias = {"name": "adapter", "vendor_id": "15b3", "product_id": "101e", '
            '"resource_class": "CUSTOM_HPC_VF", "device_type": "type-PF"}\n'
        ),
        "the type of the device", lambda p: (p.folder / "aa.conf").write_text(
            '[pci]\nalias = {"name": "adapter", "vendor_id": "15b3", "product_id": "101e", '
            '"resource_class": "CUSTOM_HPC_VF", "device_type": "type-VF"}\n'
        ),
    ),
    Fault(
        "the stock driver", "driver-stock",
        lambda p: p.option(COMPUTE, "compute_driver", "libvirt.LibvirtDriver"), CONFIGURE, _again,
    ),
    Fault(
        "devices that Placement does not know", "pci-report",
        lambda p: p.option(COMPUTE, "report_in_placement", "false"), CONFIGURE, _again,
    ),
    Fault(
        "the filter not enabled", "filter-missing", _controller("ComputeFilter,Mine"),
        CONFIGURE, _again, "controller",
    ),
    Fault(
        "the filter not available", "filter-unknown",
        lambda p: p.edit(CONTROLLER, f"available_filters = {settings.FILTER_CLASS}\n", ""),
        CONFIGURE, _again, "controller",
    ),
    Fault(
        "the filter behind Nova's", "filter-order",
        _controller(FULL.replace("HpcTopologyFilter,", "").replace(
            "NUMATopologyFilter", "NUMATopologyFilter,HpcTopologyFilter")),
        CONFIGURE, _again, "controller",
    ),
    Fault(
        "the fabric's filter not the last", "filter-last",
        _controller(f"HpcFabricFilter,{FULL.replace(',HpcFabricFilter', '')}"),
        CONFIGURE, _again, "controller",
    ),
    Fault(
        "another team's filter hidden by a later file", "filter-lost", _hidden,
        "added to the last file",
        lambda p: (p.folder / "zz.conf").write_text(
            f"[filter_scheduler]\nenabled_filters = {FULL}\n"
        ),
        "controller",
    ),
    Fault(
        "the weighers replaced", "weigher-missing",
        lambda p: p.option(CONTROLLER, "weight_classes", settings.ALL_WEIGHERS),
        CONFIGURE, _again, "controller",
    ),
    Fault(
        "Nova's own weighers left out", "weigher-lost",
        lambda p: _weighers(p, "acme.Tenants"),
        "added", lambda p: _weighers(p, f"{settings.ALL_WEIGHERS},acme.Tenants"), "controller",
    ),
    Fault(
        "another team's weigher hidden by a later file", "weigher-lost",
        lambda p: _later_weighers(p, settings.ALL_WEIGHERS),
        "added to the last file",
        lambda p: _later_weighers(p, f"{settings.ALL_WEIGHERS},acme.Tenants"), "controller",
    ),
    Fault(
        "candidates without devices", "pci-in-placement",
        lambda p: p.option(COMMON, "pci_in_placement", "false"), CONFIGURE, _again, "controller",
    ),
    Fault(
        "Nova's limit below the number of hosts", "limit-placement",
        lambda p: p.option(CONTROLLER, "max_placement_results", "1500"),
        CONFIGURE, _again, "controller",
    ),
    Fault(
        "a scheduler that remembers fewer hosts than can match", "cache-small",
        lambda p: (p.folder / "zz.conf").write_text("[hpc]\ncache_size = 900\n"),
        "raised", lambda p: (p.folder / "zz.conf").write_text("[hpc]\ncache_size = 0\n"),
        "controller",
    ),
    Fault(
        "an alias given twice", "alias-twice",
        lambda p: (p.folder / "aa.conf").write_text(
            '[pci]\nalias = {"name": "gpu", "product_id": "2330", "vendor_id": "10de"}\n'
        ),
        "one removed", lambda p: (p.folder / "aa.conf").unlink(), "controller",
    ),
    Fault(
        "an alias that is no JSON", "alias-broken",
        lambda p: (p.folder / "aa.conf").write_text("[pci]\nalias = gpu\n"),
        "written as JSON",
        lambda p: (p.folder / "aa.conf").write_text('[pci]\nalias = {"name": "x"}\n'),
        "controller",
    ),
    Fault(
        "server groups of ten members", "group-members", _quota(10),
        "``server_group_members`` raised", _quota(2000), "controller",
    ),
    Fault(
        "candidates depth first", "candidates-depth",
        lambda p: p.option(PLACEMENT, "allocation_candidates_generation_strategy", "depth-first"),
        CONFIGURE, _placement, "placement",
    ),
    Fault(
        "Placement's limit below the number of hosts", "limit-candidates",
        lambda p: p.option(PLACEMENT, "max_allocation_candidates", "1500"),
        CONFIGURE, _placement, "placement",
    ),
    Fault(
        "Placement's own retries", "conflict-retry",
        lambda p: p.option(PLACEMENT, "allocation_conflict_retry_count", "10"),
        CONFIGURE, _placement, "placement",
    ),
)  # fmt: skip

#: Those of a cloud are made on Nova's own stack: tests/functional/test_doctor_cloud.py has a test
#: of each text's name.
CLOUD: Final = (
    Row("an orphaned allocation", "allocation-orphaned", "the command that is named"),
    Row("a device without a provider", "provider-missing", "nova-compute restarted"),
    Row("functions that Placement does not know", "provider-missing", "nova-compute restarted"),
    Row("a device that the node has not", "provider-excess", "the command that is named"),
    Row("a node that is no more", "node-gone", "its providers deleted"),
    Row("an alias that no node has", "alias-nowhere", "removed"),
    Row("a host in two leaves", "map-contradicts", "``nova-hpc fabric sync``"),
    Row("a host that the map does not have", "host-no-leaf", "``nova-hpc fabric sync``"),
    Row("networks that do not meet", "rails-mixed", "``physical_network`` corrected"),
    Row("a user without the role", "service-role", "the role added"),
    Row("a node of a later release", "not-read", "one release everywhere"),
    Row("a node with another driver", "driver-stock", "``compute_driver`` set"),
)


def table() -> str:
    """The faults as the documentation shows them."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    lines += ["   * - Fault", "     - Finding", "     - Severity", "     - Cured by"]
    for each in (*FAULTS, *CLOUD):
        lines += [
            f"   * - {each.text}",
            f"     - :ref:`{each.check} <doctor-{each.check}>`",
            f"     - {CHECKS[each.check].severity.word}",
            f"     - {each.cured_by}",
        ]
    return "\n".join(lines) + "\n"


def checks() -> str:
    """Every check with its anchor."""
    lines: list[str] = []
    for name, check in CHECKS.items():
        title = name
        lines += [f".. _doctor-{name}:", "", title, "-" * len(title), ""]
        lines += [f"*{check.severity.word}*: {check.why}", ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
    PAGE.with_name("doctor-checks.inc").write_text(checks(), encoding="utf-8")
