# SPDX-License-Identifier: Apache-2.0
import json

import attrs
import pytest
from hypothesis import given

from nova_hpc.topology import roles
from nova_hpc.topology.model import address_key
from nova_hpc.wire import tags
from nova_hpc_common.level import Location
from nova_hpc_tools.site import declaration, device_spec
from tests.unit.adopt.machines import ROLE_ENTRIES, ROLES, adapter, gpu, machines, node


def entries(spec):
    return [json.loads(line) for line in spec.lines()]


def test_a_device_with_its_tags():
    spec = device_spec.build_device_spec(node(gpu("0000:19:00.0", 40)), ROLES)
    assert entries(spec) == [
        {
            "vendor_id": "10de",
            "product_id": "2330",
            "address": "0000:19:00.0",
            "managed": "no",
            "hpc_tags": "1",
            "hpc_role": "gpu",
            "hpc_switch": "0000:18:00.0",
            "hpc_root": "pci0000:17",
            "hpc_numa": "0",
            "hpc_socket": "0",
        }
    ]
    assert spec.omitted == ()


def test_the_tags_read_back():
    spec = device_spec.build_device_spec(
        node(gpu("0000:19:00.0")),
        ROLES,
        declaration.Declaration(
            resource_classes={"gpu": "CUSTOM_H100"}, traits={"gpu": frozenset({"CUSTOM_HBM3"})}
        ),
    )
    entry = entries(spec)[0]
    assert tags.parse_tags(entry) == tags.Tags(
        location=Location(numa=0, socket=0, root="pci0000:17", switches=("0000:18:00.0",)),
        role="gpu",
        resource_class="CUSTOM_H100",
        traits=frozenset({"CUSTOM_HBM3"}),
    )
    assert entry["resource_class"] == entry["hpc_resource_class"]
    assert entry["traits"] == entry["hpc_traits"]


def test_a_physical_function_is_never_an_exact_address():
    """Nova would match its virtual functions, too."""
    spec = device_spec.build_device_spec(node(gpu("0000:19:00.0", total_vfs=16)), ROLES)
    assert [entry["address"] for entry in entries(spec)] == [
        {"domain": "0000", "bus": "19", "slot": "00", "function": "[0]"}
    ]


def test_virtual_functions_are_one_entry():
    parts = adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"], [51, 52])
    spec = device_spec.build_device_spec(node(*parts), ROLES)
    assert [(e["address"], e["product_id"]) for e in entries(spec)] == [("0000:1a:00.0", "101e")]
    assert spec.offers[0].functions == ("0000:1a:00.1", "0000:1a:00.2")
    assert spec.offers[0].dev_type == "type-VF"
    assert [(o.address, o.reason) for o in spec.omitted] == [
        ("0000:1a:00.0", "its virtual functions are offered instead")
    ]


def test_virtual_functions_with_the_ids_of_their_physical_function():
    parts = adapter(
        "0000:1a:00.0",
        ["0000:1a:00.1", "0000:1a:00.2", "0000:1a:01.0", "0000:1a:02.0", "0000:1b:00.0"],
        vf_product="1021",
    )
    spec = device_spec.build_device_spec(node(*parts), ROLES)
    assert [entry["address"] for entry in entries(spec)] == [
        {"domain": "0000", "bus": "1a", "slot": "00", "function": "[12]"},
        {"domain": "0000", "bus": "1a", "slot": "01|02", "function": "[0]"},
        {"domain": "0000", "bus": "1b", "slot": "00", "function": "[0]"},
    ]
    tagged = [{k: v for k, v in e.items() if k.startswith("hpc_")} for e in entries(spec)]
    assert tagged[0] == tagged[1] == tagged[2]


def test_a_virtual_function_that_cannot_be_offered_makes_the_others_exact():
    pf, one, two = adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"])
    broken = attrs.evolve(two, unknown="the class cannot be read")
    spec = device_spec.build_device_spec(node(pf, one, broken), ROLES)
    assert [entry["address"] for entry in entries(spec)] == [
        {"domain": "0000", "bus": "1a", "slot": "00", "function": "[1]"}
    ]
    assert (broken.address, "the class cannot be read") in [
        (o.address, o.reason) for o in spec.omitted
    ]


def test_a_physical_function_without_virtual_functions_is_offered():
    (pf,) = adapter("0000:1a:00.0", [])
    spec = device_spec.build_device_spec(node(pf), ROLES)
    assert [(o.provider, o.dev_type, o.tags.role) for o in spec.offers] == [
        ("0000:1a:00.0", "type-PF", "pf")
    ]


@pytest.mark.parametrize("whole", ["0000:1a:00.0", declaration.EVERY])
def test_a_physical_function_given_whole(whole):
    parts = adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"])
    spec = device_spec.build_device_spec(
        node(*parts), ROLES, declaration.Declaration(whole=frozenset({whole}))
    )
    assert [o.provider for o in spec.offers] == ["0000:1a:00.0"]
    assert [o.dev_type for o in spec.offers] == ["type-PF"]
    assert {o.reason for o in spec.omitted} == {"its physical function 0000:1a:00.0 is given whole"}


def test_an_iommu_group_of_several_is_one_unit():
    parts = adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"], [7, 7])
    spec = device_spec.build_device_spec(
        node(gpu("0000:19:00.0", 7), gpu("0000:1b:00.0", 8), *parts), ROLES
    )
    assert {offer.provider: offer.tags.group for offer in spec.offers} == {
        "0000:19:00.0": "0000:19:00.0",
        "0000:1a:00.0": "0000:19:00.0",
        "0000:1b:00.0": None,
    }


def test_what_is_not_offered_makes_no_unit():
    audio = gpu("0000:19:00.1", 7, class_code="040300")
    spec = device_spec.build_device_spec(node(gpu("0000:19:00.0", 7), audio), ROLES)
    assert [offer.tags.group for offer in spec.offers] == [None]


def test_virtual_functions_in_different_shared_groups_are_not_offered():
    """Nova takes any of them, so they cannot be told apart by tags."""
    parts = adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"], [7, 8])
    spec = device_spec.build_device_spec(node(gpu("0000:19:00.0", 7), *parts), ROLES)
    assert [(o.provider, o.tags.group) for o in spec.offers] == [("0000:19:00.0", None)]
    assert {o.address for o in spec.omitted if "different IOMMU groups" in o.reason} == {
        "0000:1a:00.1",
        "0000:1a:00.2",
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unknown": "config is cut short"}, "config is cut short"),
        ({"vendor_id": None}, "its ids are not known"),
        ({"product_id": None}, "its ids are not known"),
        ({"address": "10000:01:00.0"}, "domains up to ffff"),
        ({"switches": tuple(f"0000:{n:02x}:00.0" for n in range(20))}, "hpc_switch would have"),
    ],
)
def test_what_nova_cannot_give_is_omitted(changes, reason):
    spec = device_spec.build_device_spec(node(attrs.evolve(gpu("0000:19:00.0"), **changes)), ROLES)
    assert spec.offers == ()
    assert len(spec.omitted) == 1
    assert reason in spec.omitted[0].reason


@pytest.mark.parametrize("field", ["product_id", "class_code"])
def test_unlike_virtual_functions_are_no_provider(field):
    table = roles.parse_roles(
        ['{"role": "ib", "class": "0207"}', '{"role": "eth", "class": "0200"}']
    )
    pf, one, two = adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"])
    two = attrs.evolve(two, **{field: {"product_id": "101c", "class_code": "020000"}[field]})
    spec = device_spec.build_device_spec(
        node(attrs.evolve(pf, class_code="ff0000"), one, two), table
    )
    assert spec.offers == ()
    assert [o.address for o in spec.omitted] == ["0000:1a:00.1", "0000:1a:00.2"]


def test_places_that_differ_are_those_of_the_physical_function():
    pf, one, two = adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"])
    spec = device_spec.build_device_spec(node(pf, one, attrs.evolve(two, numa_node=None)), ROLES)
    assert spec.offers[0].tags.location == pf.location
    orphan = device_spec.build_device_spec(node(one, attrs.evolve(two, numa_node=None)), ROLES)
    assert orphan.offers[0].tags.location == Location()


@pytest.mark.parametrize("name", ["PGPU", "CUSTOM_H100", "CUSTOM_" + "A" * 248])
def test_resource_classes(name):
    assert declaration.check_resource_class(name) == name


@pytest.mark.parametrize("name", ["H100", "CUSTOM_h100", "CUSTOM_", "", "CUSTOM_" + "A" * 249])
def test_bad_resource_classes_and_traits(name):
    with pytest.raises(declaration.DeclarationError, match="write CUSTOM_"):
        declaration.check_resource_class(name)
    with pytest.raises(declaration.DeclarationError, match="write CUSTOM_"):
        declaration.check_trait(name)


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"whole": frozenset({"0000:19:00.0"})}, "is no physical function"),
        ({"whole": frozenset({"0000:ff:00.0"})}, "is no physical function"),
        ({"whole": frozenset({"0000:1c:00.0"})}, "vendor 15b3, product 1021, class ff00"),
    ],
)
def test_terms_without_anything_to_act_on(terms, why):
    machine = node(
        gpu("0000:19:00.0"),
        attrs.evolve(adapter("0000:1c:00.0", [])[0], class_code="ff0000"),
    )
    with pytest.raises(declaration.DeclarationError, match=why):
        declaration.Declaration(**terms).check(machine, ROLES)


def test_what_manages_the_links_of_all_stays_with_the_host():
    table = roles.parse_roles(['{"role": "nvswitch", "class": "0680"}', *ROLE_ENTRIES])
    switch = gpu("0000:c0:00.0", class_code="068000", product_id="22a3", group=7)
    machine = node(gpu("0000:19:00.0", group=7), switch)
    spec = device_spec.build_device_spec(machine, table)
    (offer,) = spec.offers
    assert (offer.provider, offer.tags.group) == ("0000:19:00.0", None)
    (omitted,) = spec.omitted
    assert omitted.address == switch.address
    assert "decide now who runs the NVSwitches" in omitted.reason
    assert spec.undecided == (switch.address,)
    asked = device_spec.build_device_spec(machine, table, declaration.Declaration(switches=True))
    assert [each.provider for each in asked.offers] == ["0000:19:00.0", switch.address]
    assert not asked.omitted
    assert not asked.undecided
    said = device_spec.build_device_spec(machine, table, declaration.Declaration(switches=False))
    assert ["it stays with the host" in each.reason for each in said.omitted] == [True]
    assert not said.undecided


def test_a_device_that_is_left_out_takes_its_virtual_functions_along():
    machine = node(gpu("0000:19:00.0"), *adapter("0000:1c:00.0", ["0000:1c:00.1"]))
    terms = declaration.Declaration(left_out=frozenset({"0000:1c:00.0"}))
    terms.check(machine, ROLES)
    spec = device_spec.build_device_spec(machine, ROLES, terms)
    assert [each.provider for each in spec.offers] == ["0000:19:00.0"]
    assert [each.address for each in spec.omitted] == ["0000:1c:00.0", "0000:1c:00.1"]


# --- any machine ---------------------------------------------------------------


@given(machines())
def test_every_function_with_a_role_is_offered_once_or_omitted_once(machine):
    spec = device_spec.build_device_spec(machine, ROLES)
    given_away = [address for offer in spec.offers for address in offer.functions]
    left = [item.address for item in spec.omitted]
    expected = [f.address for f in machine.functions if ROLES.role_of(f)]
    assert sorted(given_away + left) == sorted(expected)
    assert device_spec.build_device_spec(machine, ROLES) == spec


@given(machines())
def test_units_are_exactly_the_groups_with_several_offered_functions(machine):
    spec = device_spec.build_device_spec(machine, ROLES)
    offered = {address: offer for offer in spec.offers for address in offer.functions}
    for address, offer in offered.items():
        group = machine.function(address).iommu_group
        mates = [
            other
            for other in offered
            if group is not None and machine.function(other).iommu_group == group
        ]
        expected = min(mates, key=address_key) if len(mates) > 1 else None
        assert offer.tags.group == expected
