# SPDX-License-Identifier: Apache-2.0
"""A guest gets a device with a BAR of 4 GiB, and its firmware places it.

In the cloud, from flavor and image to the guest: what the firmware did is asked of the
guest's emulator, and what its kernel sees of the guest itself.

With UEFI it is not run: the node's own QEMU (11.1.3) aborts when such a guest starts. By its
source, not by a backtrace, a guest's write to CR8 (helper_write_crN,
target/i386/tcg/system/misc_helper.c) raises an interrupt without the big lock, and OVMF writes
CR8 at the end of each interrupt. What
UEFI does with such a BAR in plain emulation is in test_firmware.py.
"""

import re

import pytest

from nova_hpc_lab.node import qemu

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("lab", ["big-bar"], indirect=True)]

#: For every other guest of the node, too.
ENDS_THE_NODE = pytest.mark.xfail(run=False, reason="the node's QEMU ends itself with OVMF")

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


@pytest.mark.parametrize(
    ("word", "firmware"),
    [
        ("flat", "bios"),
        ("mirror", "bios"),
        pytest.param("flat", "uefi", marks=ENDS_THE_NODE),
        pytest.param("mirror", "uefi", marks=ENDS_THE_NODE),
    ],
)
def test_a_large_bar_is_placed(lab, word, firmware):
    name = f"big-{word}-{firmware}"
    lab.until(lambda: _offered(lab), "the large device is offered")
    try:
        server = _server(lab, name, word, firmware)
        domain = lab.inside(f"virsh -c qemu:///system dumpxml {server}")
        assert ("OVMF" in domain) == (firmware == "uefi"), domain
        report = lab.report(server)
        ids = ":".join(qemu.WIDE_GPU_IDS)
        (device,) = [each for each in report.functions if each.ids == ids]
        assert BAR in device.bars, device
        (start,) = _placed(lab, server)
        assert start >= 1 << 32
        assert start % BAR == 0
        assert (report.check_status, len(report.check)) == (0, 1), report.check
    finally:
        lab.openstack("server", "delete", "--wait", name, check=False)
        lab.openstack("flavor", "delete", name, check=False)
