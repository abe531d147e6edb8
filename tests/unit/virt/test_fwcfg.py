# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from lxml import etree

from nova_hpc.guest_tree.guest_document import DocumentCell
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_guest import document, terms
from virt_driver_patches.domain import fwcfg
from virt_driver_patches.domain.fwcfg import add_documents
from virt_driver_patches.domain.guest_domain import GuestDomainXml

DOMAIN = """<domain type='kvm'><name>x</name><memory>1024</memory>
<sysinfo type='smbios'><system><entry name='product'>OpenStack Nova</entry></system></sysinfo>
<os><type machine='q35'>hvm</type><smbios mode='sysinfo'/></os>
<devices>
<controller type='pci' index='0' model='pcie-root'/>
<controller type='pci' index='1' model='pcie-expander-bus'>
 <target busNr='32'><node>0</node></target>
 <address type='pci' domain='0x0000' bus='0x00' slot='0x03' function='0x0'/></controller>
<controller type='pci' index='2' model='pcie-root-port'>
 <address type='pci' domain='0x0000' bus='0x01' slot='0x02' function='0x1'/></controller>
%s
</devices></domain>
"""
PLACED = """<hostdev mode='subsystem' type='pci' managed='no'>
<source><address domain='0x0000' bus='0x17' slot='0x00' function='0x0'/></source>
<address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/></hostdev>"""
LOOSE = """<hostdev mode='subsystem' type='pci' managed='yes'>
<source><address domain='0x0000' bus='0x18' slot='0x1f' function='0x7'/></source></hostdev>"""
PORT = """<interface type='hostdev' managed='yes'><mac address='fa:16:3e:00:00:01'/>
<source><address type='pci' domain='0x0000' bus='0x19' slot='0x02' function='0x1'/></source>
<address type='pci' domain='0x0000' bus='0x00' slot='0x04' function='0x0'/></interface>"""
USB = """<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>"""


def parsed(*devices: str) -> GuestDomainXml:
    return GuestDomainXml(DOMAIN % "".join(devices))


def tell(xml, *said):
    domain = GuestDomainXml(xml)
    fwcfg.tell_guest_devices(domain, *said)
    return domain.text()


def test_where_the_devices_sit_in_the_guest():
    assert parsed(LOOSE, PLACED, USB, PORT).paths() == [
        ("0000:19:02.1", ("00", "04.0")),
        ("0000:18:1f.7", None),
        ("0000:17:00.0", ("20", "02.1", "00.0")),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("busNr='32'", ""),  # libvirt chooses
        ("busNr='32'", "busNr='256'"),
        ("busNr='32'", "busNr='\u0663'"),
        ("index='2'", "index='9'"),  # no such controller
        ("bus='0x01' slot='0x02'", "bus='0x02' slot='0x02'"),  # below itself
        ("bus='0x01' slot='0x02'", "bus='0x01' slot='zwei'"),
        ("bus='0x01' slot='0x02'", "slot='0x02'"),
    ],
)
def test_a_place_that_cannot_be_known(old, new):
    domain = GuestDomainXml((DOMAIN % PLACED).replace(old, new))
    assert domain.paths() == [("0000:17:00.0", None)]


def test_a_broken_source_is_left_to_libvirt():
    broken = (DOMAIN % PLACED).replace("bus='0x17'", "bus='0x1777'")
    assert GuestDomainXml(broken).paths() == []


def told(domain):
    """Name -> text, as the guest reads it."""
    return {
        each.get("name"): document.decode_entry(each.text.encode()).decode()
        for each in domain.iterfind("sysinfo[@type='fwcfg']/entry")
        if each.get("name").startswith(terms.PREFIX)
    }


def test_the_entries_are_in_the_domain_and_it_is_valid():
    domain = parsed()
    add_documents(domain, {terms.NCCL: b'<a b="1"/>\n', terms.DOCUMENT: b'{"x": "]]>"}'})
    again = etree.fromstring(domain.text())
    assert not {",", '"', "<", "&"} & set("".join(again.xpath("sysinfo[2]/entry/text()")))
    found = told(again)
    assert found == {terms.NCCL: '<a b="1"/>\n', terms.DOCUMENT: '{"x": "]]>"}'}
    schema = Path("/usr/share/libvirt/schemas/domain.rng")
    if not schema.exists():
        pytest.skip("libvirt's schemas are not installed")
    etree.RelaxNG(etree.parse(str(schema))).assertValid(again)


def test_entries_are_replaced_and_those_of_others_kept():
    domain = parsed()
    other = etree.SubElement(domain.edit(), "sysinfo", type="fwcfg")
    etree.SubElement(other, "entry", name="opt/com.example/x").text = "kept"
    add_documents(domain, {terms.DOCUMENT: b'{"a": 1}'})
    add_documents(domain, {terms.DOCUMENT: b'{"a": 2}'})
    assert domain.root.find("sysinfo/entry[@name='opt/com.example/x']").text == "kept"
    assert len(domain.root.findall("sysinfo/entry")) == 2
    assert told(domain.root)[terms.DOCUMENT] == '{"a": 2}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("opt/org.qemu/x", b""),
        ("opt/org.nova-hpc/" + "x" * 50, b""),
        ("opt/org.nova-hpc/\u00e4", b""),
        ("opt/org.nova-hpc/x", b"a\0b"),
        ("opt/org.nova-hpc/x", "\u00e4".encode()),
        ("opt/org.nova-hpc/x", b"x" * 90_001),
    ],
)
def test_what_must_not_be_there(name, text):
    domain = parsed()
    before = domain.text()
    with pytest.raises(ValueError, match=r"."):
        add_documents(domain, {terms.DOCUMENT: b"{}", name: text})
    assert domain.text() is before


NODE = Node(
    "x",
    functions=(
        PciFunction(
            "0000:17:00.0",
            vendor_id="10de",
            product_id="2330",
            class_code="030200",
            numa_node=3,
            root="pci0000:16",
            path=("0000:16:00.0",),
            switches=("0000:16:00.0",),
        ),
        PciFunction("0000:18:1f.7", vendor_id=None),
    ),
)


def test_the_document():
    cells = (DocumentCell(4, 1 << 20, None, 3),)
    xml = tell(DOMAIN % (PLACED + LOOSE), NODE, "mirror", cells, {"0000:17:00.0": "gpu"})
    domain = etree.fromstring(xml)
    entries = told(domain)
    assert json.loads(entries[terms.DOCUMENT]) == {
        "schema": "nova-hpc/guest",
        "version": 1,
        "topology": "mirror",
        "cells": [{"cpus": 4, "memory_kib": 1048576, "page_kib": None}],
        # The other device could not be read, and nothing is said about it.
        "devices": [
            {
                "role": "gpu",
                "vendor_id": "10de",
                "product_id": "2330",
                "class_code": "030200",
                "cell": 0,
                "root": 0,
                "switches": [],
                "path": ["20", "02.1", "00.0"],
                "link": None,
            }
        ],
        "peer_to_peer": [],
    }
    assert entries[terms.NCCL] == (
        '<system version="1">\n  <cpu numaid="0">\n'
        '    <pci busid="device-0" class="0x030200"/>\n  </cpu>\n</system>\n'
    )


@pytest.mark.parametrize("role", ["a b", "", "x" * 65, "\u00e4", '"}'])
def test_a_role_that_is_no_word_is_not_told(role):
    xml = tell(DOMAIN % PLACED, NODE, "flat", (), {"0000:17:00.0": role})
    (text,) = etree.fromstring(xml).xpath("sysinfo/entry[contains(@name, 'json')]/text()")
    assert (
        document.parse_guest_document(document.decode_entry(text.encode())).devices[0].role is None
    )


def test_a_domain_without_devices_stays_as_it_is():
    xml = DOMAIN % USB
    assert tell(xml, NODE, "flat", (), {}) is xml
