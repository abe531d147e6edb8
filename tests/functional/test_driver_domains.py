# SPDX-License-Identifier: Apache-2.0
"""The guest domains of a node, read from libvirt itself: its driver for tests needs no daemon."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import libvirt
import pytest
from nova.virt.libvirt import host as libvirt_host

from nova_hpc.tenancy.guest_domains import LIST_ALL, DomainCondition
from virt_driver_patches.driver.domains import LibvirtDomains

GPU, VF, NVME = "0000:41:00.0", "0000:43:00.1", "0000:45:00.0"
DEVICES = """
<hostdev mode='subsystem' type='pci' managed='no'>
  <source><address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source>
</hostdev>
<interface type='hostdev' managed='yes'>
  <mac address='52:54:00:11:22:33'/>
  <source><address type='pci' domain='0x0000' bus='0x43' slot='0x00' function='0x1'/></source>
</interface>
<disk type='nvme' device='disk'>
  <driver name='qemu' type='raw'/>
  <source type='pci' managed='yes' namespace='1'>
    <address domain='0x0000' bus='0x45' slot='0x00' function='0x0'/>
  </source>
  <target dev='vda' bus='virtio'/>
</disk>
"""


def xml(name: str) -> str:
    return (
        f"<domain type='test'><name>{name}</name><uuid>{uuid.uuid4()}</uuid><memory>8192</memory>"
        f"<os><type>hvm</type></os><devices>{DEVICES}</devices></domain>"
    )


class Host:
    """Nova's host, as far as it is asked; its connection is libvirt's own."""

    list_instance_domains = libvirt_host.Host.list_instance_domains

    def __init__(self, path: Path) -> None:
        # With a file of its own its domains are nobody else's.
        path.write_text("<node/>")
        self.connection = libvirt.open(f"test://{path}")

    def get_connection(self):
        return self.connection

    def _wrap_libvirt_proxy(self, found):
        return found


@pytest.fixture
def host(monkeypatch, tmp_path):
    monkeypatch.setattr(libvirt_host, "libvirt", libvirt)
    # What libvirt says of errors goes to the test that expects them.
    libvirt.registerErrorHandler(lambda *_: None, None)
    return Host(tmp_path / "node.xml")


def test_every_domain_is_read_whatever_it_does(host) -> None:
    make = host.connection
    make.defineXML(xml("defined"))
    make.createXML(xml("running"))
    make.createXML(xml("paused")).suspend()
    saved = make.defineXML(xml("saved"))
    saved.create()
    saved.managedSave(0)
    found = LibvirtDomains(lambda: host).read()
    assert found.unknown is None
    assert {each.name: each.condition for each in found.domains} == {
        "defined": DomainCondition.SHUT_OFF,
        "running": DomainCondition.RUNNING,
        "paused": DomainCondition.PAUSED,
        "saved": DomainCondition.SAVED,
    }
    for each in found.domains:
        assert each.following.hostdevs == {GPU, NVME}
        assert each.following.interfaces == {VF}
        now = (
            {GPU, NVME, VF}
            if each.condition in (DomainCondition.RUNNING, DomainCondition.PAUSED)
            else set()
        )
        assert each.live.all == now
    assert found.having(GPU).name in ("running", "paused")
    assert found.of(saved.UUIDString()).name == "saved"


def test_one_that_ends_meanwhile_has_nothing(host) -> None:
    host.connection.createXML(xml("stays"))
    ended = host.connection.createXML(xml("ends"))

    def listing(only_running):
        found = host.connection.listAllDomains(LIST_ALL)
        ended.destroy()
        return found

    host.list_instance_domains = listing
    found = LibvirtDomains(lambda: host).read()
    assert [each.name for each in found.domains] == ["stays"]
    assert found.unknown is None


def test_a_connection_that_is_lost_is_unknown(host) -> None:
    host.connection.close()
    found = LibvirtDomains(lambda: host).read()
    assert found.domains == ()
    assert found.unknown.startswith("libvirt does not say which guest domains there are")


def test_a_libvirt_that_hangs_is_left_behind_and_asked_by_one_thread_only(host) -> None:
    host.connection.createXML(xml("running"))
    free, asked = threading.Event(), []

    def hang():
        asked.append(1)
        free.wait(60)
        return host

    domains = LibvirtDomains(hang, patience=0.2)
    for _ in range(3):
        found = domains.read()
        assert "no answer within 0.2 seconds" in found.unknown
    assert len(asked) == 1
    free.set()
    for _ in range(500):
        found = domains.read()
        if found.unknown is None:
            break
        time.sleep(0.02)
    assert [each.name for each in found.domains] == ["running"]


def test_whoever_asks_hears_of_what_was_there_when_it_asked(host) -> None:
    """An answer that is older than the question is none."""
    first, going = threading.Event(), threading.Event()
    listing = host.list_instance_domains

    def slow(only_running):
        found = listing(only_running=only_running)
        if not first.is_set():
            first.set()
            going.wait(60)
        return found

    host.list_instance_domains = slow
    domains, answers = LibvirtDomains(lambda: host), []
    one = threading.Thread(target=lambda: answers.append(domains.read()))
    one.start()
    first.wait(60)
    host.connection.createXML(xml("new"))
    two = threading.Thread(target=lambda: answers.append(domains.read()))
    two.start()
    going.set()
    one.join(60)
    two.join(60)
    assert sorted(len(each.domains) for each in answers) == [0, 1]


def test_before_nova_has_a_host(host) -> None:
    assert LibvirtDomains(lambda: None).read().unknown is not None
