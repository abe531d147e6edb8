# SPDX-License-Identifier: Apache-2.0
"""Entries and aliases of anybody, as Nova's own parser and its report to Placement take them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from nova.compute import pci_placement_translator
from nova.pci import devspec

from nova_hpc.topology import sysfs
from nova_hpc_tools.readers import pci_settings
from nova_hpc_tools.site import entry_losses, identity, nova_rules, spec_entries
from nova_hpc_tools.site.nova_rules import PciSettings
from tests.unit.adopt.machines import adapter, gpu, machines, node

several = hypothesis_settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
#: Its files are not looked at: the node says what Nova asks.
NOWHERE = Path("/nonexistent")

WORDS = st.sampled_from(["true", "no", "yes", "False"])
SAID = st.fixed_dictionaries(
    {},
    optional={
        "physical_network": st.sampled_from(["physnet1", None]),
        "resource_class": st.sampled_from(["PGPU", "custom_a", "big one", "CUSTOM_B"]),
        "traits": st.sampled_from(["CUSTOM_A", "a,b", "HW_NIC_ACCEL_TLS", "hw_nic_accel_tls"]),
        "live_migratable": WORDS,
        "one_time_use": WORDS,
        "managed": WORDS,
        "trusted": WORDS,
    },
)
PLACES = st.fixed_dictionaries(
    {},
    optional={
        "vendor_id": st.sampled_from(["10de", "15b3", "*"]),
        "product_id": st.sampled_from(["2330", "1021", "101e", "*"]),
        "address": st.sampled_from(
            ["0000:00:00.0", "0000:40:00.0", "*:40:*.*", "40:00.", "*:*:*.1", "0000:40:01.*"]
        ),
    },
)
ENTRIES = st.lists(st.tuples(PLACES, SAID).map(lambda pair: {**pair[0], **pair[1]}), max_size=4)


def asked(machine, entries, aliases=(), in_placement=False):
    told = PciSettings(
        tuple(map(json.dumps, entries)), tuple(map(json.dumps, aliases)), True, in_placement
    )
    return pci_settings.list_refused_settings(told, machine, NOWHERE)


@several
@given(machines(), ENTRIES)
def test_the_rules_that_configure_knows_are_novas(machine, entries):
    """The same providers are refused, whatever the entries say, and no others."""
    lines = tuple(map(json.dumps, entries))
    assert {each.what for each in nova_rules.placement_refusals_of(lines, machine)} == {
        each.what for each in asked(machine, entries)
    }


@pytest.mark.parametrize(
    "name", ["PGPU", "pgpu", "big one", "CUSTOM_x", "a--b__c", "custom_y z", "VCPU", "ünder"]
)
def test_classes_are_named_as_nova_does(name):
    want = pci_placement_translator.get_resource_class(name, "10de", "2330")
    assert identity.class_as_nova_has_it(name) == want


@pytest.mark.parametrize(
    "names",
    [
        "CUSTOM_A,b",
        "a, b",
        "HW_NIC_ACCEL_TLS",
        "hw_nic_accel_tls",
        "custom_c d",
        "x-y,x_y",
        "",
        None,
    ],
)
def test_traits_are_named_as_nova_does(names):
    want = pci_placement_translator.get_traits(names)
    assert identity.traits_as_nova_has_them(names) == want


@several
@given(machines(), ENTRIES, ENTRIES)
def test_what_nobody_calls_lost_nova_still_says(machine, before, after):
    """Where no loss is named, Nova has each device with all tags that it had."""
    entries = [json.dumps(each) for each in before], [json.dumps(each) for each in after]
    lost = {each.address for each in entry_losses.losses_of_functions(*entries, machine)}
    for function in machine.functions:
        old = spec_entries.first_matching_entry(before, function)
        if old is None or function.address in lost:
            continue
        new = spec_entries.first_matching_entry(after, function)
        assert new is not None
        for key, value in devspec.PciDeviceSpec(without_once(old)).get_tags().items():
            now = devspec.PciDeviceSpec(without_once(new)).get_tags().get(key)
            if key == "traits":
                get = pci_placement_translator.get_traits
                assert get(value) <= get(now)
            elif key == "resource_class":
                ids = function.vendor_id, function.product_id
                get_class = pci_placement_translator.get_resource_class
                assert get_class(value, *ids) == get_class(now, *ids)
            elif key in ("managed", "live_migratable"):
                assert (now or ("true" if key == "managed" else "false")) == value
            else:
                assert now == value


def without_once(entry):
    """Nova parses one_time_use with its own configuration in mind."""
    return {key: value for key, value in entry.items() if key != "one_time_use"}


MACHINE = node(gpu("0000:19:00.0", total_vfs=16), *adapter("0000:1a:00.0", ["0000:1a:00.1"]))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"devname": "eth0"}, "does not support 'devname'"),
        ({"address": "0000:1a:00.0"}, "Configuring both 0000:1a:00.1 and 0000:1a:00.0"),
        ({"address": "0:1:2:3.4"}, "incorrect format"),
        ({"vendor_id": "xyz"}, "does not parse as a hex number"),
        ({"vendor_id": 4318}, "no attribute 'strip'"),
        ({"address": "0000:19:00.0", "managed": "perhaps"}, "Cannot parse tag 'managed'"),
        ({"address": "0000:1a:00.1", "one_time_use": "true"}, "one_time_use"),
        ([{"vendor_id": "10de"}, "nonsense"], "Expecting dict"),
    ],
)
def test_what_nova_refuses_is_said_in_its_words(entry, why):
    found = asked(MACHINE, [entry, {"vendor_id": "10de"}])
    assert len(found) == 1
    assert why in found[0].text
    assert asked(MACHINE, [{"vendor_id": "10de"}]) == []


@pytest.mark.parametrize(
    ("alias", "in_placement", "why"),
    [
        ({"name": "a", "device_type": "type-XX"}, False, "is not one of"),
        ({"name": "a", "vendor_id": "10de"}, True, "does not have vendor_id and product_id"),
        ({"name": "a", "resource_class": "PGPU"}, False, "does not have vendor_id and product_id"),
        ({"name": "a", "resource_class": "PGPU"}, True, None),
    ],
)
def test_aliases_are_read_by_nova(alias, in_placement, why):
    found = asked(MACHINE, [], [alias], in_placement)
    assert [each.option for each in found] == ([] if why is None else ["alias"])
    assert why is None or why in found[0].text


def test_the_configuration_in_force_is_left_alone(synthetic):
    from nova.pci import request

    before = devspec.CONF, request.CONF, devspec.utils.is_physical_function
    machine = sysfs.read_sysfs_node(synthetic("hgx-h100"))
    told = PciSettings(('{"vendor_id": "10de", "one_time_use": "yes"}',), (), report=True)
    assert pci_settings.list_refused_settings(told, machine, synthetic("hgx-h100")) == []
    assert (devspec.CONF, request.CONF, devspec.utils.is_physical_function) == before
