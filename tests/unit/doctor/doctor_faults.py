# SPDX-License-Identifier: Apache-2.0
"""Faults that are made for real on a small node, each with what cures it."""

from __future__ import annotations

from typing import Final

import attrs

from nova_hpc.tenancy.peer import acs_registers as peer
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc_tools.adopt import install_shim
from tests.unit.doctor.doctor_changes import (
    COMPUTE,
    CONFIGURE,
    GONE_ENTRY,
    HOOK,
    MANAGED,
    ROLE,
    RULE,
    TRANSLATED,
    Fault,
    again,
    bar,
    broadcom,
    disk,
    groups,
    hook,
    libvirt,
    manager,
    no_entry,
    no_groups,
    no_vf,
    noisy,
    not_started,
    not_translated,
    nvswitch,
    port,
    prepared_and_edited,
    quiet,
    second,
    sound,
    stand_in,
    started,
    still,
    translated,
    vf,
    vgpu_type,
    vgpus,
)
from tests.unit.doctor.doctor_place import PCI, POLICY, STATE
from tests.unit.doctor.doctor_service_faults import SERVICE_FAULTS
from tests.unit.node_files import GPU, PF


@attrs.frozen
class Row:
    """A fault that is made elsewhere, as the table shows it."""

    text: str
    check: str
    cured_by: str


#: A mount of the directory of shared memory.
SHM: Final = "22 1 0:25 / / rw - ext4 /dev/sda1 rw\n23 22 0:26 / /dev/shm rw - {} shm {}\n"

FAULTS: Final = (
    Fault("no IOMMU", "iommu-off", no_groups, "IOMMU switched on", groups),
    Fault(
        "a GPU without an IOMMU group", "iommu-group", lambda p: p.group(GPU, None),
        "its group is back", lambda p: p.group(GPU, 0),
    ),
    Fault(
        "a sound function of the host in a GPU's group", "group-shared", sound,
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
        "VFs switched off", "vfs-declared", no_vf, "``sriov_numvfs`` written", vf,
    ),
    Fault(
        "VFs declared that the firmware does not allow", "vfs-firmware",
        lambda p: (no_vf(p), p.put(f"{PCI}/{PF}/sriov_totalvfs", "0")),
        "``mlxconfig``, a cold start", lambda p: p.put(f"{PCI}/{PF}/sriov_totalvfs", "8"),
    ),
    Fault(
        "VFs off and none declared", "vfs-none",
        lambda p: (p.declare("vfs:\n  pf: 1\n", ""), no_vf(p)), "``sriov_numvfs`` written", vf,
    ),
    Fault(
        "a vGPU without a type", "vgpu-type", lambda p: vgpus(p, 0),
        "``current_vgpu_type`` written", lambda p: vgpu_type(p, 0, 1430),
    ),
    Fault(
        "vGPUs of two types", "vgpu-unlike", lambda p: vgpus(p, 1430, 1431),
        "``current_vgpu_type`` written", lambda p: vgpu_type(p, 1, 1430),
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
        "a prepared host with a file edited by hand", "prepare-drift", prepared_and_edited,
        "``nova-hpc prepare --write``", lambda p: p.prepare(),
    ),
    Fault(
        "a prepared host that was not restarted", "prepare-restart",
        not_started,
        "restarted", started,
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
        lambda p: p.put("/etc/udev/rules.d/90-gpus.rules", RULE),
        "the line taken out",
        lambda p: p.put("/etc/udev/rules.d/90-gpus.rules", f"# {RULE}"),
    ),
    Fault(
        "a host whose adapters are translated", "iommu-translated", translated,
        "``nova-hpc prepare --write``, restarted", not_translated,
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
        lambda p: (p.leaf("leaf"), p.again(), p.say(TRANSLATED)),
        "set as nova-compute does", lambda p: peer.apply_peer_wish(p.root, PeerWish.TRANSLATED),
    ),
    Fault(
        "an adapter whose firmware does not offer ATS", "peer-lacking",
        lambda p: (p.leaf("leaf", ats=False), p.again(), p.say(TRANSLATED)),
        "``mlxconfig``, a cold start", lambda p: p.leaf("after"),
    ),
    Fault(
        "cliques and a libvirt before 8.2", "libvirt-old",
        lambda p: (p.say("[hpc]\ngpudirect_clique = true"), libvirt(p, 8_001_000)),
        "libvirt upgraded", lambda p: libvirt(p, 8_002_000),
    ),
    Fault(
        "a GPU of a terabyte and a libvirt before 8.7", "libvirt-old",
        lambda p: (
            p.put(f"{PCI}/{GPU}/resource", bar("0x100000000000", "0x10ffffffffff", "0x14220c")),
            libvirt(p, 8_006_000),
        ),
        "libvirt upgraded", lambda p: libvirt(p, 8_007_000),
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
        lambda p: p.put(f"{PCI}/{GPU}/resource", bar("0x0", "0x1fffffffff", "0x2014220c")),
        "a larger MMIO window", lambda p: p.put(
            f"{PCI}/{GPU}/resource", bar("0x380000000000", "0x381fffffffff", "0x14220c")
        ),
    ),
    Fault(
        "an adapter without a cable", "port-down", lambda p: port(p, "1: DOWN"),
        "plugged in", lambda p: port(p, "4: ACTIVE"),
    ),
    Fault(
        "no dedicated CPUs", "cpus-none",
        lambda p: (
            p.option(COMPUTE, "cpu_dedicated_set", None), p.option(COMPUTE, "cpu_shared_set", None)
        ),
        CONFIGURE, again,
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
        "a dedicated CPU that is offline", "cpus-offline",
        lambda p: p.put("/sys/devices/system/cpu/online", "0-4"),
        "set online", lambda p: p.put("/sys/devices/system/cpu/online", "0-5"),
    ),
    Fault(
        "an adapter that vfio-pci takes by its id", "driver-ids",
        lambda p: p.put("/etc/modprobe.d/vfio.conf", "options vfio-pci ids=15b3:1021"),
        "the id taken out",
        lambda p: p.put("/etc/modprobe.d/vfio.conf", "options vfio-pci disable_vga=1"),
    ),
    Fault(
        "an entry of a card that is gone", "entry-unmatched",
        lambda p: p.say(GONE_ENTRY),
        "taken out",
        no_entry,
    ),
    Fault(
        "a Nova that takes its own hints from users", "nova-hints",
        lambda p: p.release("33.0.0"), "the release with the fix", lambda p: p.release("33.0.2"),
    ),
    Fault(
        "CPUs that cannot be read", "cpus-unread",
        lambda p: p.put("/sys/devices/system/cpu/present", "0-"),
        "a kernel that tells them", lambda p: p.put("/sys/devices/system/cpu/present", "0-5"),
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
        "a thread of a dedicated core that the host works on", "cpus-split",
        lambda p: (
            p.option(COMPUTE, "cpu_dedicated_set", "1,4"),
            p.option(COMPUTE, "cpu_shared_set", "0,2-3"),
        ),
        "both into one set", lambda p: p.option(COMPUTE, "cpu_dedicated_set", "1,4-5"),
    ),
    Fault(
        "quiet CPUs and a kernel without isolcpus", "cpus-not-isolated",
        lambda p: quiet(p).put("/sys/devices/system/cpu/isolated", ""),
        "``nova-hpc prepare --write``, restarted", still,
    ),
    Fault(
        "an NVMe queue that interrupts a quiet CPU", "cpus-interrupted",
        noisy("cpus-interrupted"), "``smp_affinity_list`` written", still,
    ),
    Fault(
        "a kernel thread that runs on a quiet CPU", "cpus-kernel-threads",
        noisy("cpus-kernel-threads"), "``taskset``", still,
    ),
    Fault(
        "a tick beside a vCPU that runs alone", "cpus-ticking",
        noisy("cpus-ticking"), "the dependency gone", still,
    ),
    Fault(
        "irqbalance with a ban list that lacks quiet CPUs", "irqbalance-unbanned",
        noisy("irqbalance-unbanned"), "the list taken out", still,
    ),
    Fault(
        "no polling for vCPUs that wait", "halt-polling",
        lambda p: p.put("/sys/module/kvm/parameters/halt_poll_ns", "0"),
        "``halt_poll_ns`` set",
        lambda p: p.put("/sys/module/kvm/parameters/halt_poll_ns", "200000"),
    ),
    Fault(
        "NUMA balancing", "numa-balancing",
        lambda p: p.put("/proc/sys/kernel/numa_balancing", "1"),
        "``sysctl``", lambda p: p.put("/proc/sys/kernel/numa_balancing", "0"),
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
        "an adapter of another make for servers", "role-none", broadcom,
        f"{CONFIGURE} ``--add-device-role``", lambda p: p.again("--add-device-role", ROLE),
    ),
    Fault(
        "a disk for servers whose cleaner erases nothing", "storage-kept", disk,
        "its driver given back", lambda p: p.driver("0000:1c:00.0", "nvme"),
    ),
    Fault(
        "NVSwitches that nobody runs", "nvswitch-idle", nvswitch,
        "Fabric Manager, ``nvlink_backend``", lambda p: p.say(MANAGED),
    ),
    Fault(
        "NVSwitches that servers are to have", "nvswitch-idle", nvswitch,
        f"``offer_switches: true``, {CONFIGURE}", lambda p: p.again(offer_switches=True),
    ),
    Fault(
        "NVSwitches without a driver for their manager", "nvswitch-idle",
        lambda p: (nvswitch(p, None), p.say(MANAGED)),
        "a driver bound", lambda p: p.driver("0000:1c:00.0", "nvidia"),
    ),
    Fault(
        "a hook of libvirt that starts partitions", "nvswitch-hook", hook,
        "taken out", lambda p: p.put(HOOK, "#!/bin/sh\n# fmpm -a 3"),
    ),
    Fault(
        "a declaration by a number of a saved inventory", "declared-stand-in", stand_in,
        CONFIGURE, again,
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
        "memory for servers to share that the host has not set aside", "shared-reserved",
        lambda p: p.say("[hpc]\nshared_memory_mb = 4096"),
        "``reserved_host_memory_mb`` set",
        lambda p: p.say("[DEFAULT]\nreserved_host_memory_mb = 10240"),
    ),
    Fault(
        "memory for servers to share on a tmpfs that is too small", "shared-tmpfs",
        lambda p: (
            p.say("[hpc]\nshared_memory_mb = 0:64"),
            p.put("/proc/self/mountinfo", SHM.format("tmpfs", "rw,size=4096k")),
        ),
        "mounted larger",
        lambda p: p.put("/proc/self/mountinfo", SHM.format("tmpfs", "rw,size=65536k")),
    ),
    Fault(
        "memory for servers to share on a disk", "shared-tmpfs",
        lambda p: (
            p.say("[hpc]\nshared_memory_mb = 0:64"),
            p.put("/proc/self/mountinfo", SHM.format("ext4", "rw")),
        ),
        "another ``shared_memory_dir``",
        lambda p: p.put("/proc/self/mountinfo", SHM.format("tmpfs", "rw")),
    ),
    Fault(
        "memory for servers to share on a NUMA node that is not there", "shared-absent",
        lambda p: p.say("[hpc]\nshared_memory_mb = 0:64,7:64"),
        "taken out", lambda p: p.say("[hpc]\nshared_memory_mb = 0:64"),
    ),
    Fault(
        "memory for servers to share, and no dedicated CPUs", "shared-cpus",
        lambda p: (
            p.say("[hpc]\nshared_memory_mb = 0:64"),
            p.option(COMPUTE, "cpu_dedicated_set", None),
        ),
        "CPUs named", lambda p: p.say("[compute]\ncpu_dedicated_set = 1,4-5"),
    ),
    Fault(
        "a GPU with 8 of 16 lanes", "link-narrow",
        lambda p: p.put(f"{PCI}/{GPU}/current_link_width", "8"),
        "the card reseated", lambda p: p.put(f"{PCI}/{GPU}/current_link_width", "16"),
    ),
    Fault(
        "a GPU that cannot be reset", "reset-none",
        lambda p: (p.root / PCI.lstrip("/") / GPU / "reset_method").unlink(),
        f"``left_out``, {CONFIGURE}", lambda p: p.again(left_out=[GPU]),
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
        "an offered adapter that manages NVSwitches", "offered-never", manager,
        f"{CONFIGURE} ``--replace``", lambda p: p.again("--replace", PF),
    ),
    Fault("a GPU that is not offered", "not-offered", second, CONFIGURE, again),
    Fault(
        "a GPU moved to another NUMA node", "tags-stale",
        lambda p: p.put(f"{PCI}/{GPU}/numa_node", "1"), CONFIGURE, again,
    ),
    Fault(
        "an entry without managed: no", "managed",
        lambda p: p.edit(COMPUTE, '"managed": "no", ', ""), CONFIGURE, again,
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
        lambda p: p.option(COMPUTE, "compute_driver", "libvirt.LibvirtDriver"), CONFIGURE, again,
    ),
    Fault(
        "devices that Placement does not know", "pci-report",
        lambda p: p.option(COMPUTE, "report_in_placement", "false"), CONFIGURE, again,
    ),
    *SERVICE_FAULTS,
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
    Row("a device that Cyborg counts too", "provider-cyborg", "left to one of the two"),
    Row("a node of a later release", "not-read", "one release everywhere"),
    Row("a node with another driver", "driver-stock", "``compute_driver`` set"),
    Row("a node without dedicated CPUs", "cpus-none", "``cpu_dedicated_set`` set"),
)
