# SPDX-License-Identifier: Apache-2.0
"""A guest gets a device with a BAR of 4 GiB, and its firmware places it.

In the cloud, from flavor and image to the guest: what the firmware did is asked of the
guest's emulator, and what its kernel sees of the guest itself.

With UEFI, the guest is emulated, too: under KVM the node's own QEMU (11.1.3) aborts when such
a guest starts. By its source, not by a backtrace, a guest's write to CR8 (helper_write_crN,
target/i386/tcg/system/misc_helper.c) raises a virtual interrupt without the big lock, and OVMF
writes CR8 at the end of each interrupt. With emulation in emulation the firmware and the kernel
need minutes, and everything else is as under KVM: Nova, libvirt, VFIO and the device. ``mirror``
with UEFI had not placed it after 40 minutes of a busy machine, so it is not run here; in plain
emulation (test_firmware.py) UEFI places such BARs.
"""

import contextlib
import re
import time

import pytest

from nova_hpc_lab import bootstrap, observe
from nova_hpc_lab.node import qemu
from tests.lab.conftest import REPORT
from tests.lab.histories import nova_compute

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("lab", ["big-bar"], indirect=True)]

#: Settings of the node with which its guests are emulated.
EMULATED = "/etc/nova/nova.conf.d/zz-emulated.conf"
#: Seconds until an emulated guest of an emulated node has to have said something.
EMULATED_REPORT = 2400

BAR = 4096 << 20
FLAVOR = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "wide:1",
    "hpc:affinity": "switch",
}
#: "BAR2: 64 bit prefetchable memory at 0x800000000 [0x8ffffffff]."
PLACED = re.compile(r"64 bit prefetchable memory at 0x([0-9a-f]+) \[0x([0-9a-f]+)\]")


def _server(lab, name, word, firmware):
    properties = {**FLAVOR, "hpc:guest_topology": word}
    words = [part for key in properties for part in ("--property", f"{key}={properties[key]}")]
    lab.openstack(
        *("flavor", "create", name, "--vcpus", "1", "--ram", "768", "--disk", "1", *words)
    )
    lab.openstack("image", "set", "hpc-guest", "--property", f"hw_firmware_type={firmware}")
    try:
        lab.openstack(
            *("server", "create", "--flavor", name, "--image", "hpc-guest", "--nic", "none"),
            *("--wait", name),
            check=False,
        )
    finally:
        lab.openstack("image", "set", "hpc-guest", "--property", "hw_firmware_type=bios")
    server = lab.show(name)
    assert server["status"] == "ACTIVE", server.get("fault")
    return server["id"]


def _offered(lab):
    """Whether Placement has the large device, and nobody has it: a deleted server's is cleaned."""
    (node,) = lab.status()["nodes"]
    found = {each["resource_class"]: each for each in node["providers"]}
    wide = found.get("CUSTOM_PCI_" + "_".join(qemu.WIDE_GPU_IDS).upper())
    return wide is not None and not wide["withheld"] and not wide["used"]


def _placed(lab, server):
    """Where the guest's firmware has put BARs of 64 bits, by QEMU's monitor."""
    virsh = f"virsh -c qemu:///system qemu-monitor-command --hmp {server} info pci"
    found = [(int(a, 16), int(b, 16)) for a, b in PLACED.findall(lab.inside(virsh))]
    return [start for start, last in found if last - start + 1 == BAR]


def _restart(lab, script):
    """Change the node's settings, and wait for a nova-compute that has read them."""
    lab.inside(f"{script}; sync; {nova_compute('KILL')}")
    begin = time.time()
    cloud = bootstrap.connect(lab.settings)
    lab.until(lambda: observe.last_report(cloud, "hpc1") > begin + 2, "nova-compute is up")


@contextlib.contextmanager
def _emulated(lab):
    """The node's new guests are emulated, not run by KVM."""
    _restart(lab, f"printf '[libvirt]\\nvirt_type = qemu\\ncpu_mode = none\\n' >{EMULATED}")
    try:
        yield EMULATED_REPORT
    finally:
        _restart(lab, f"rm -f {EMULATED}")


@pytest.mark.parametrize(
    ("word", "firmware"),
    [
        ("flat", "bios"),
        ("mirror", "bios"),
        ("flat", "uefi"),
    ],
)
def test_a_large_bar_is_placed(lab, word, firmware):
    name = f"big-{word}-{firmware}"
    lab.until(lambda: _offered(lab), "the large device is offered")
    with contextlib.ExitStack() as stack:
        seconds = stack.enter_context(_emulated(lab)) if firmware == "uefi" else REPORT
        stack.callback(lab.openstack, "flavor", "delete", name, check=False)
        stack.callback(lab.openstack, "server", "delete", "--wait", name, check=False)
        server = _server(lab, name, word, firmware)
        domain = lab.inside(f"virsh -c qemu:///system dumpxml {server}")
        emulated = "<domain type='qemu'" in domain
        assert ("OVMF" in domain) == emulated == (firmware == "uefi"), domain
        (start,) = lab.until(lambda: _placed(lab, server), "its firmware has placed it", seconds)
        report = lab.report(server, seconds)
        ids = ":".join(qemu.WIDE_GPU_IDS)
        (device,) = [each for each in report.functions if each.ids == ids]
        assert BAR in device.bars, device
        assert [start] == _placed(lab, server)
        assert start >= 1 << 32
        assert start % BAR == 0
        assert (report.check_status, len(report.check)) == (0, 1), report.check
