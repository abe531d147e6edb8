# SPDX-License-Identifier: Apache-2.0
"""The comparison of all accounts of a server."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.wire.decision import Decision
from nova_hpc_common.level import AffinityPolicy, Level, Location
from nova_hpc_lab.compare import compare
from nova_hpc_lab.evidence import (
    Asked,
    Domain,
    Evidence,
    Guest,
    GuestDevice,
    HostDevice,
    Record,
)

GPU, VF = "1234:1111", "8086:10ca"


def _gpu(address, numa, mib):
    place = Location(numa=numa, socket=numa, root=f"pci0000:{address[5:7]}", switches=(address,))
    return HostDevice(address, GPU, "gpu", address, place, f"BAR of {mib} MiB")


def _vf(address, parent, numa, mac):
    place = Location(numa=numa, socket=numa, root=f"pci0000:{address[5:7]}", switches=(parent,))
    return HostDevice(address, VF, "vf", parent, place, f"MAC {mac}")


DEVICES = {
    device.address: device
    for device in (
        _gpu("0000:21:00.0", 0, 16),
        _gpu("0000:81:00.0", 1, 32),
        _gpu("0000:81:01.0", 1, 64),
        _vf("0000:82:10.0", "0000:82:00.0", 1, "52:54:00:01:01:00"),
        _vf("0000:82:10.2", "0000:82:00.0", 1, "52:54:00:01:01:01"),
    )
}
# Both below one root complex of the node.
for _address in ("0000:81:00.0", "0000:81:01.0", "0000:82:10.0", "0000:82:10.2"):
    DEVICES[_address] = attrs.evolve(
        DEVICES[_address], location=attrs.evolve(DEVICES[_address].location, root="pci0000:80")
    )

GOOD = Evidence(
    asked=Asked({"gpu": 1, "vf": 1}, Level.ROOT, vcpus=1, memory_mib=512, page_kib=2048),
    planned={device.identity: device.location.numa for device in DEVICES.values()},
    node=DEVICES,
    cpus={0: frozenset({0, 1}), 1: frozenset({2, 3})},
    allocation={"0000:81:00.0": 1, "0000:82:00.0": 1},
    records=(Record("0000:81:00.0", "0000:81:00.0"), Record("0000:82:10.0", "0000:82:00.0")),
    domain=Domain(
        hostdevs=("0000:82:10.0", "0000:81:00.0"),
        pins={0: frozenset({3})},
        emulator=frozenset({0}),
        memory_nodes=frozenset({1}),
        page_kib=2048,
    ),
    pages={1: 256},
    guest=Guest(
        devices=(
            GuestDevice("0000:05:00.0", GPU, None, "BAR of 32 MiB"),
            GuestDevice("0000:06:00.0", VF, "igbvf", "MAC 52:54:00:01:01:00"),
        ),
        cpus=1,
        memory_kib=470_000,
        check=("As promised: 2 devices, 1 NUMA nodes, topology flat.",),
        check_status=0,
    ),
    decision=Decision(Level.ROOT, AffinityPolicy.REQUIRED, Level.ROOT),
)


def wrong(evidence):
    return [check.what for check in compare(evidence) if not check.agrees]


def test_all_agree():
    assert wrong(GOOD) == []


def _guest(*devices, **changes):
    return attrs.evolve(
        GOOD, guest=attrs.evolve(GOOD.guest, devices=devices or GOOD.guest.devices, **changes)
    )


def _domain(**changes):
    return attrs.evolve(GOOD, domain=attrs.evolve(GOOD.domain, **changes))


def test_a_gpu_swapped_behind_libvirts_back_is_noticed():
    # The domain says one GPU, the guest got the other.
    swapped = attrs.evolve(GOOD.guest.devices[0], identity="BAR of 64 MiB")
    assert wrong(_guest(swapped, GOOD.guest.devices[1])) == [
        "the guest has exactly these devices, by their identities"
    ]


def test_a_gpu_swapped_in_the_domain_is_noticed():
    evidence = _domain(hostdevs=("0000:82:10.0", "0000:81:01.0"))
    assert wrong(evidence) == ["libvirt's domain has exactly the recorded devices"]


def test_a_vf_of_the_right_adapter_that_is_not_the_recorded_one_is_noticed():
    swapped = attrs.evolve(GOOD.guest.devices[1], identity="MAC 52:54:00:01:01:01")
    assert wrong(_guest(GOOD.guest.devices[0], swapped)) == [
        "the guest has exactly these devices, by their identities"
    ]


def test_identities_that_are_not_unique_prove_nothing():
    twins = {key: attrs.evolve(one, identity="BAR of 32 MiB") for key, one in DEVICES.items()}
    assert "the guest has exactly these devices, by their identities" in wrong(
        attrs.evolve(GOOD, node=twins)
    )


def test_what_the_guests_own_check_misses_is_noticed():
    what = "the guest's own nova-hpc-guest check finds what the cloud promised"
    assert wrong(_guest(check=("WRONG device: device 0: not there",), check_status=1)) == [what]
    assert wrong(_guest(check=(), check_status=None)) == [what]


ADDRESSES = st.lists(st.sampled_from(sorted(DEVICES)), max_size=4).map(tuple)
REPORTED = st.lists(
    st.sampled_from([(one.ids, one.identity) for one in DEVICES.values()]), max_size=4
)


@given(records=ADDRESSES, attached=ADDRESSES, reported=REPORTED)
def test_agreement_means_that_guest_domain_and_records_are_the_same(records, attached, reported):
    evidence = attrs.evolve(
        GOOD,
        records=tuple(Record(one, DEVICES[one].provider) for one in records),
        domain=attrs.evolve(GOOD.domain, hostdevs=attached),
        guest=attrs.evolve(
            GOOD.guest,
            devices=tuple(
                GuestDevice("0000:05:00.0", ids, "driver", identity) for ids, identity in reported
            ),
        ),
    )
    same = sorted(records) == sorted(attached) and sorted(reported) == sorted(
        (DEVICES[one].ids, DEVICES[one].identity) for one in records
    )
    differ = {
        "libvirt's domain has exactly the recorded devices",
        "the guest has exactly these devices, by their identities",
    } & set(wrong(evidence))
    assert same == (not differ)


@pytest.mark.parametrize(
    ("evidence", "what"),
    [
        (
            attrs.evolve(GOOD, allocation={"0000:81:01.0": 1, "0000:82:00.0": 1}),
            "Nova's records are what Placement allocated",
        ),
        (
            attrs.evolve(GOOD, allocation={}),
            "Nova's records are what Placement allocated",
        ),
        (
            attrs.evolve(GOOD, asked=attrs.evolve(GOOD.asked, devices={"gpu": 2, "vf": 1})),
            "the devices are those that the flavor asks for",
        ),
        (
            attrs.evolve(GOOD, planned={**GOOD.planned, "BAR of 32 MiB": 0}),
            "each identity is where the shape put it",
        ),
        (
            attrs.evolve(GOOD, planned={}),
            "each identity is where the shape put it",
        ),
        (
            attrs.evolve(GOOD, decision=None),
            "the node's stored decision says the same",
        ),
        (
            attrs.evolve(GOOD, decision=attrs.evolve(GOOD.decision, reached=Level.SWITCH)),
            "the node's stored decision says the same",
        ),
        (
            _domain(pins={0: frozenset({1})}),
            "every vCPU is pinned next to the devices",
        ),
        (
            _domain(pins={0: frozenset({2, 3})}),
            "every vCPU is pinned next to the devices",
        ),
        (_domain(pins={}), "every vCPU is pinned next to the devices"),
        (
            _domain(emulator=frozenset({0, 3})),
            "emulator threads stay off the pinned CPUs",
        ),
        (
            _domain(emulator=frozenset()),
            "emulator threads stay off the pinned CPUs",
        ),
        (
            _domain(memory_nodes=frozenset({0})),
            "the memory is in hugepages next to the devices",
        ),
        (
            _domain(page_kib=None),
            "the memory is in hugepages next to the devices",
        ),
        (
            attrs.evolve(GOOD, pages={0: 256}),
            "the memory is in hugepages next to the devices",
        ),
        (
            attrs.evolve(GOOD, pages={1: 255}),
            "the memory is in hugepages next to the devices",
        ),
        (_guest(cpus=2), "the guest has the CPUs and the memory of the flavor"),
        (
            _guest(memory_kib=100_000),
            "the guest has the CPUs and the memory of the flavor",
        ),
        (
            _guest(GOOD.guest.devices[0], attrs.evolve(GOOD.guest.devices[1], driver=None)),
            "the guest's drivers hold its virtual functions",
        ),
    ],
)
def test_one_disagreement_is_found_and_nothing_else(evidence, what):
    assert wrong(evidence) == [what]


def test_devices_further_apart_than_asked_are_noticed():
    evidence = attrs.evolve(
        GOOD,
        asked=attrs.evolve(GOOD.asked, level=Level.SWITCH),
        decision=attrs.evolve(GOOD.decision, asked=Level.SWITCH),
    )
    assert wrong(evidence) == ["the devices are as close as the flavor asks for"]


def test_a_device_that_the_node_does_not_have_is_no_crash():
    evidence = attrs.evolve(GOOD, records=(Record("0000:99:00.0", "0000:99:00.0"),))
    assert "the devices are those that the flavor asks for" in wrong(evidence)
