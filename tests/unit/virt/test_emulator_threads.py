# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from virt_driver_patches.domain.emulator_threads import (
    choose_housekeeping_cpus,
    pin_emulator_threads,
)
from virt_driver_patches.domain.guest_domain import GuestDomainXml

DOMAIN = """<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>x</name><!-- kept -->
  <cputune>
    <vcpupin vcpu='0' cpuset='2'/>
    <vcpupin vcpu='1' cpuset='3'/>
    <emulatorpin cpuset='2-3'/>
    <iothreadpin iothread='1' cpuset='2-3'/>
  </cputune>
  <qemu:commandline><qemu:arg value='-foo'/></qemu:commandline>
</domain>
"""
CELLS = {0: range(0, 8), 1: range(8, 16)}


def keep_emulator_off(xml, cpus):
    domain = GuestDomainXml(xml)
    pin_emulator_threads(domain, frozenset(cpus))
    return domain.text()


def test_the_spare_cpus_of_the_guests_own_node():
    spare = choose_housekeeping_cpus(range(16), [2, 3, 4, 5, 6, 7, 10, 11], (), CELLS, [0])
    assert spare == {0, 1}
    assert choose_housekeeping_cpus(range(16), range(2, 8), (), CELLS, [1]) == set(range(8, 16))


def test_another_node_where_its_own_has_none_to_spare():
    assert choose_housekeeping_cpus(range(16), range(8), (), CELLS, [0]) == set(range(8, 16))


def test_the_shared_cpus_where_there_are_any():
    assert choose_housekeeping_cpus(range(16), range(4, 8), [0, 9], CELLS, [0]) == {0}
    assert choose_housekeeping_cpus(range(16), range(4, 8), [9], CELLS, [0]) == {9}
    # Offline CPUs take no threads.
    assert choose_housekeeping_cpus(range(8), range(4, 8), [9], CELLS, [0]) == set()


def test_none_to_spare():
    assert choose_housekeeping_cpus(range(16), range(16), (), CELLS, [0]) == set()
    # Without cpu_dedicated_set Nova may pin a guest to any CPU.
    assert choose_housekeeping_cpus(range(16), (), (), CELLS, [0]) == set()


cpus = st.sets(st.integers(0, 15))


@given(cpus, cpus, cpus, st.sets(st.integers(0, 2)))
def test_never_a_dedicated_or_offline_cpu(online, dedicated, shared, nodes):
    found = choose_housekeeping_cpus(online, dedicated, shared, CELLS, nodes)
    assert found <= online - dedicated
    if shared:
        assert found <= shared


def test_only_the_two_pins_change():
    text = keep_emulator_off(DOMAIN, {0, 1, 2, 8, 10, 11})
    before, after = etree.fromstring(DOMAIN), etree.fromstring(text)
    for name in ("emulatorpin", "iothreadpin"):
        (pin,) = after.iterfind(f"cputune/{name}")
        assert pin.get("cpuset") == "0-2,8,10-11"
        pin.set("cpuset", "2-3")
    assert etree.tostring(before, method="c14n") == etree.tostring(after, method="c14n")


def test_a_domain_that_needs_no_change_is_the_same_text():
    assert keep_emulator_off(DOMAIN, ()) is DOMAIN
    floating = DOMAIN.replace("cpuset='2'", "cpuset='0-7'").replace("cpuset='3'", "cpuset='0-7'")
    assert keep_emulator_off(floating, {1}) is floating
    bare = "<domain><name>x</name></domain>"
    assert keep_emulator_off(bare, {1}) is bare


def test_a_guest_with_some_pinned_cpus():
    mixed = DOMAIN.replace("vcpu='1' cpuset='3'", "vcpu='1' cpuset='0-1'")
    assert '<emulatorpin cpuset="0"/>' in keep_emulator_off(mixed, {0})
