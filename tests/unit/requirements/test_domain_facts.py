# SPDX-License-Identifier: Apache-2.0
"""Facts of a domain's XML: pins, and devices that nobody needs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_requirements.domain_facts import read_cpu_set, read_domain_facts
from nova_hpc_requirements.verdicts import EvidenceError

CLEAN = """<domain type='kvm' id='3'>
  <uuid>0b1f6a5e-7f52-4c0d-9b0e-0a4a2f5d7c11</uuid>
  <vcpu placement='static'>2</vcpu>
  <cputune><vcpupin vcpu='0' cpuset='4'/><vcpupin vcpu='1' cpuset='5'/></cputune>
  <devices>
    <controller type='usb' index='0' model='none'/>
    <controller type='pci' index='0' model='pcie-root'/>
    <hostdev mode='subsystem' type='pci' managed='no'/>
    <interface type='hostdev'/>
    <graphics type='vnc'/>
    <audio id='1' type='none'/>
    <input type='mouse' bus='ps2'/>
    <disk type='file' device='cdrom'><source file='/config'/></disk>
    <serial type='pty'/>
  </devices>
</domain>"""


def change(old: str, new: str) -> str:
    assert old in CLEAN
    return CLEAN.replace(old, new)


def test_a_domain_for_computing():
    facts = read_domain_facts(CLEAN)
    assert facts.uuid.startswith("0b1f")
    assert facts.pins == {0: frozenset((4,)), 1: frozenset((5,))}
    assert (facts.vcpus, facts.hostdevs) == (2, 2)
    assert facts.usb == facts.clipboard == facts.needless == ()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (change("model='none'", "model='piix3-uhci'"), "a USB controller (piix3-uhci)"),
        (change(" model='none'/>", "/>"), "a USB controller (of the default model)"),
        (change("type='mouse' bus='ps2'", "type='tablet' bus='usb'"), "a USB tablet"),
        (change("<serial", "<redirdev bus='usb'/><serial"), "a redirected USB device"),
        (change("<serial", "<hostdev type='usb'/><serial"), "a USB device of the host"),
    ],
)
def test_usb(text, part):
    assert part in read_domain_facts(text).usb


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (change("type='vnc'/>", "type='spice'/>"), 1),
        (change("type='vnc'/>", "type='spice'><clipboard copypaste='no'/></graphics>"), 0),
        (change("<serial", "<channel type='qemu-vdagent'/><serial"), 1),
        (
            change(
                "<serial",
                "<channel type='spicevmc'><target name='com.redhat.spice.0'/></channel><serial",
            ),
            1,
        ),
        (change("<serial", "<channel type='unix'><target name='a'/></channel><serial"), 0),
    ],
)
def test_clipboard(text, count):
    assert len(read_domain_facts(text).clipboard) == count


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (change("<serial", "<sound model='ich6'/><serial"), "a sound card"),
        (change("type='none'/>", "type='spice'/>"), "an audio backend"),
        (change("<source file='/config'/>", ""), "an empty CD-ROM drive"),
        (change("<serial", "<disk device='floppy'/><serial"), "a floppy drive"),
    ],
)
def test_needless(text, part):
    assert read_domain_facts(text).needless == (part,)


def test_no_pins_are_no_pins():
    facts = read_domain_facts(change("<vcpupin vcpu='0' cpuset='4'/>", ""))
    assert set(facts.pins) == {1}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "cannot be read"),
        ("<domain>", "cannot be read"),
        ("<network/>", "none of a domain"),
        ("<domain/>", "it is cut"),
        ("<domain><devices/></domain>", "CPUs that make no sense"),
        (change("cpuset='4'", "cpuset='4-99999999'"), "CPUs that make no sense"),
        (change("cpuset='4'", "cpuset='x'"), "CPUs that make no sense"),
        (
            "<!DOCTYPE d [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><domain><vcpu>&b;</vcpu>"
            "<devices/></domain>",
            "CPUs that make no sense",
        ),
        ("x" * (1 << 23), "longer than"),
    ],
)
def test_what_is_no_domain(text, part):
    with pytest.raises(EvidenceError, match=part):
        read_domain_facts(text)


def test_cpus_as_libvirt_writes_them():
    assert read_cpu_set("0-3,^2,8") == {0, 1, 3, 8}
    assert read_cpu_set("") == frozenset()


@given(st.text(max_size=200))
def test_any_text_is_a_domain_or_refused(text):
    with contextlib.suppress(EvidenceError):
        read_domain_facts(text)
