# SPDX-License-Identifier: Apache-2.0
"""Random hosts and their guests' domains, for the tests of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from nova_hpc.guest_tree import Abi, TreeDevice, TreePlan
from nova_hpc.guest_tree.windows import Span
from nova_hpc_common.level import Location
from virt_driver_patches.domain import pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomainXml

#: As Nova 34 writes it, shortened.
DOMAIN = """<domain type="kvm">
  <uuid>f4ad7d9e-5c0e-4c7c-9a4c-0d1a5f3f1a11</uuid>
  <name>instance-00000001</name>
  <memory>{memory}</memory>
  <vcpu>4</vcpu>
  <os>
    <type machine="{machine}">hvm</type>{loader}
    <boot dev="hd"/>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>
  <cpu mode="host-passthrough" match="exact">
    <topology sockets="4" cores="1" threads="1"/>{numa}
  </cpu>
  <devices>
    <disk type="file" device="disk">
      <driver name="qemu" type="qcow2" cache="none"/>
      <source file="/var/lib/nova/instances/x/disk"/>
      <target dev="vda" bus="virtio"/>
    </disk>
    <controller type="usb" index="0"/>{ports}
    <serial type="pty"/>{hostdevs}
    <video>
      <model type="virtio"/>
    </video>
    <memballoon model="virtio">
      <stats period="10"/>
    </memballoon>
  </devices>
</domain>
"""
_HOSTDEV = """
    <hostdev mode="subsystem" type="pci" managed="no">
      <source>
        <address domain="0x{}" bus="0x{}" slot="0x{}" function="0x{}"/>
      </source>
    </hostdev>"""
_PORT = """
    <interface type="hostdev" managed="yes">
      <mac address="fa:16:3e:00:00:01"/>
      <source>
        <address type="pci" domain="0x{}" bus="0x{}" slot="0x{}" function="0x{}"/>
      </source>
    </interface>"""
UEFI = """
    <loader type="pflash" readonly="yes">/usr/share/OVMF/OVMF_CODE_4M.fd</loader>"""


def domain(
    addresses: Iterable[str],
    cells: int = 2,
    machine: str = "pc-q35-9.2",
    loader: str = "",
    memory: int = 8 << 20,
    root_ports: int = 0,
    ports: Sequence[str] = (),
) -> str:
    """A domain that passes *addresses* through, and direct *ports*."""
    numa = "".join(
        f'\n      <cell id="{cell}" cpus="{cell}" memory="{memory // cells}"/>'
        for cell in range(cells)
    )
    given = '\n    <controller type="pci" index="0" model="pcie-root"/>' if root_ports else ""
    given += '\n    <controller type="pci" model="pcie-root-port"/>' * root_ports
    return DOMAIN.format(
        memory=memory,
        machine=machine,
        loader=loader,
        numa=f"\n    <numa>{numa}\n    </numa>" if cells else "",
        ports=given,
        hostdevs="".join(
            template.format(each[:4], each[5:7], each[8:10], each[11])
            for template, several in ((_HOSTDEV, addresses), (_PORT, ports))
            for each in several
        ),
    )


def arranged(xml: str, plan: TreePlan, abi: Abi) -> str:
    """The domain with the tree of *plan*."""
    found = GuestDomainXml(xml)
    pcie_tree.arrange_pcie_tree(found, plan, abi)
    return found.text()


@st.composite
def hosts(draw: st.DrawFn, nodes: int = 4) -> list[TreeDevice]:
    """Devices somewhere on a host of up to *nodes* NUMA nodes and 6 root complexes."""
    numas = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=6))
    addresses = draw(
        st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=24, unique=True), label="addresses"
    )
    devices = []
    for value in addresses:
        root = draw(st.integers(0, len(numas) - 1))
        # Paths of few choices: devices meet at every level, and go on alone at every level.
        path = draw(st.lists(st.integers(0, 1), max_size=4))
        names = [f"{root}.{'.'.join(map(str, path[: end + 1]))}" for end in range(len(path))]
        known = draw(st.integers(0, 9)) > 0
        place = Location(
            numa=numas[root],
            root=f"pci0000:{root:02x}" if known else None,
            switches=tuple(names) if known else (),
        )
        size = draw(st.sampled_from([0, 1 << 20, 1 << 30, 1 << 37]))
        devices.append(
            TreeDevice(
                address=f"0000:{value >> 8:02x}:{value >> 3 & 31:02x}.{value & 7:x}",
                location=place,
                span=Span(size, max(size, 1 << 20)),
                clique=draw(st.booleans()),
            )
        )
    return devices
