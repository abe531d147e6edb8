# SPDX-License-Identifier: Apache-2.0
import json

import attrs
import pytest

from nova_hpc.topology import nvlink as tags
from nova_hpc.topology import roles
from nova_hpc_tools.site import device_spec, nvlink_sets
from nova_hpc_tools.site.declaration import Declaration
from nova_hpc_tools.site.nvlink_sets import NvlinkError, NvlinkSet
from tests.unit.adopt.machines import adapter, gpu, node

ROLES = roles.parse_roles(
    [
        '{"role": "nvswitch", "vendor_id": "10de", "class": "0680"}',
        '{"role": "gpu", "class": "03*"}',
        '{"role": "vf", "class": "02*", "dev_type": "type-VF"}',
    ]
)
ONE, TWO, THREE = "0000:07:00.0", "0000:0a:00.0", "0000:0b:00.0"
SWITCH = attrs.evolve(gpu("0000:c0:00.0"), class_code="068000", product_id="22a3")
MACHINE = node(gpu(ONE), gpu(TWO), gpu(THREE), *adapter("0000:1a:00.0", ["0000:1a:00.1"]))


def entry(*devices, name="left"):
    return json.dumps({"name": name, "devices": list(devices)})


def test_sets_of_the_operator_become_tags():
    sets = nvlink_sets.parse_nvlink_sets(
        [entry(ONE, "0000:0A:00.0"), entry(ONE, TWO, THREE, name="all")]
    )
    nvlink_sets.check_nvlink_sets(sets, MACHINE, ROLES)
    spec = device_spec.build_device_spec(MACHINE, ROLES, Declaration(nvlink=sets))
    found = {offer.provider: offer.tags.nvlink for offer in spec.offers}
    assert found == {
        ONE: "all:3,left:2",
        TWO: "all:3,left:2",
        THREE: "all:3",
        "0000:1a:00.0": None,
    }
    table = tags.rebuild_nvlink_sets({key: text for key, text in found.items() if text})
    assert set(table.sets) == {frozenset({ONE, TWO}), frozenset({ONE, TWO, THREE})}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("left", "not JSON"),
        ("[" * 100000, "not JSON"),
        ("[]", "not an object with 'name' and 'devices'"),
        ('{"name": "left"}', "not an object with 'name' and 'devices'"),
        (entry(ONE, TWO, name="le:ft"), "'name' must be"),
        (entry(ONE, TWO, name="l" * 33), "'name' must be"),
        ('{"name": "a", "devices": "b"}', "must be a list"),
        (entry(ONE), "must name 2 to 64 devices, not 1"),
        (entry(ONE, "07:00.0"), "'07:00.0' is not a PCI address"),
        (entry(TWO, "0000:0A:00.0"), "0000:0a:00.0 is named twice"),
    ],
)
def test_a_bad_entry_is_named_with_the_cure(text, why):
    with pytest.raises(NvlinkError) as caught:
        nvlink_sets.parse_nvlink_sets([entry(ONE, TWO, name="fine"), text])
    assert str(caught.value).startswith("[hpc]nvlink_set, entry 2, ")
    assert why in str(caught.value)


def test_entries_that_contradict_each_other():
    with pytest.raises(NvlinkError, match="name 'left' is given twice"):
        nvlink_sets.parse_nvlink_sets([entry(ONE, TWO), entry(ONE, THREE)])
    with pytest.raises(NvlinkError, match="'left' and 'right' have the same devices"):
        nvlink_sets.parse_nvlink_sets([entry(ONE, TWO), entry(TWO, ONE, name="right")])
    others = [f"0000:{bus:02x}:00.0" for bus in range(0x20, 0x30)]
    many = [entry(ONE, other, name="n" * 20 + other[5:7]) for other in others]
    with pytest.raises(NvlinkError, match=r"0000:07:00\.0 is in so many sets"):
        nvlink_sets.parse_nvlink_sets(many)


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ((ONE, "0000:77:00.0"), "this node has no device 0000:77:00.0"),
        ((ONE, "0000:1a:00.0"), "0000:1a:00.0 has no role"),
        ((ONE, "0000:c0:00.0"), "0000:c0:00.0 has the role nvswitch"),
        ((ONE, "0000:1a:00.1"), "0000:1a:00.1 is a virtual function"),
    ],
)
def test_sets_that_the_node_does_not_have(devices, why):
    machine = node(*MACHINE.functions, SWITCH)
    with pytest.raises(NvlinkError, match=r"\[hpc\]nvlink_set 'left'") as caught:
        Declaration(nvlink=nvlink_sets.parse_nvlink_sets([entry(*devices)])).check(machine, ROLES)
    assert why in str(caught.value)


def test_devices_of_different_roles_are_no_set():
    table = roles.parse_roles(
        ['{"role": "big", "product_id": "2331"}', '{"role": "gpu", "class": "03*"}']
    )
    machine = node(gpu(ONE), gpu(TWO, product_id="2331"))
    with pytest.raises(NvlinkError, match=r"different roles \(big, gpu\)"):
        nvlink_sets.check_nvlink_sets(
            nvlink_sets.parse_nvlink_sets([entry(ONE, TWO)]), machine, table
        )


def test_switches_make_one_set_of_all_gpus():
    machine = node(*MACHINE.functions, gpu("0000:33:00.0", vendor_id="1002"), SWITCH)
    assert nvlink_sets.default_nvlink_sets(machine, ROLES) == (
        NvlinkSet("all", frozenset({ONE, TWO, THREE})),
    )
    spec = device_spec.build_device_spec(machine, ROLES)
    tagged = {offer.provider for offer in spec.offers if offer.tags.nvlink == "all:3"}
    assert tagged == {ONE, TWO, THREE}


def test_a_gpu_that_cannot_be_given_is_still_a_member():
    broken = gpu(THREE, unknown="its configuration space cannot be read")
    spec = device_spec.build_device_spec(node(gpu(ONE), gpu(TWO), broken, SWITCH), ROLES)
    assert {offer.provider: offer.tags.nvlink for offer in spec.offers if offer.tags.nvlink} == {
        ONE: "all:3",
        TWO: "all:3",
    }


def test_without_switches_nothing_is_claimed():
    assert nvlink_sets.default_nvlink_sets(MACHINE, ROLES) == ()
    assert all(
        offer.tags.nvlink is None for offer in device_spec.build_device_spec(MACHINE, ROLES).offers
    )
    assert nvlink_sets.default_nvlink_sets(node(gpu(ONE), SWITCH), ROLES) == ()


def test_a_card_of_another_product_is_in_no_set():
    """An HGX board with an L4 in a slot: a set of all of them would never be whole."""
    other = gpu("0000:99:00.0", product_id="27b8")
    machine = node(*MACHINE.functions, other, SWITCH)
    assert nvlink_sets.default_nvlink_sets(machine, ROLES) == (
        NvlinkSet("all", frozenset({ONE, TWO, THREE})),
    )
    # As many of the one as of the other: the operator knows, nobody else.
    two = gpu("0000:9a:00.0", product_id="27b8")
    even = node(gpu(ONE), gpu(TWO), other, two, SWITCH)
    assert nvlink_sets.default_nvlink_sets(even, ROLES) == ()
