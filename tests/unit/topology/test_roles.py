# SPDX-License-Identifier: Apache-2.0
import json
import logging

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oslo_config import cfg

from nova_hpc import conf
from nova_hpc.topology import roles
from nova_hpc.topology.model import BridgeKind, PciFunction


def function(**values):
    return PciFunction(address="0000:17:00.0", **values)


H100 = function(vendor_id="10de", product_id="2330", class_code="030200", total_vfs=16)
CX7_VF = function(
    vendor_id="15b3", product_id="101e", class_code="020700", physical_function="0000:16:00.0"
)


@pytest.fixture(scope="module")
def defaults():
    options = cfg.ConfigOpts()
    conf.register_all_options(options)
    options([], default_config_files=[], default_config_dirs=[])
    return roles.parse_roles(options.hpc.device_role)


@pytest.mark.parametrize(
    ("values", "role"),
    [
        ({"vendor_id": "10de", "product_id": "2330", "class_code": "030200"}, "gpu"),
        ({"vendor_id": "10de", "product_id": "1ad0", "class_code": "030000"}, "gpu"),
        ({"vendor_id": "10de", "product_id": "22a3", "class_code": "068000"}, "nvswitch"),
        ({"vendor_id": "10de", "product_id": "10f8", "class_code": "040300"}, None),
        ({"vendor_id": "1002", "product_id": "74a1", "class_code": "120000"}, "gpu"),
        ({"vendor_id": "8086", "product_id": "0bd5", "class_code": "038000"}, "gpu"),
        ({"vendor_id": "15b3", "product_id": "1021", "class_code": "020700"}, "nic"),
        (
            {"vendor_id": "15b3", "product_id": "1021", "class_code": "020000", "total_vfs": 8},
            "ethpf",
        ),
        (
            {
                "vendor_id": "15b3",
                "product_id": "101e",
                "class_code": "020000",
                "physical_function": "0000:16:00.0",
            },
            "ethvf",
        ),
        ({"vendor_id": "15b3", "product_id": "101e", "class_code": "028000"}, None),
        ({"vendor_id": "8086", "product_id": "1521", "class_code": "020000"}, None),
        ({}, None),
    ],
)
def test_default_roles(defaults, values, role):
    assert defaults.role_of(function(**values)) == role


def test_default_names_come_in_order(defaults):
    assert defaults.names == (
        *("nvswitch", "gpu", "vf", "pf", "nic"),
        *("ethvf", "ethpf", "ethnic"),
    )


def test_first_match_wins():
    table = roles.parse_roles(
        [
            '{"role": "big", "vendor_id": "10de", "product_id": "233?"}',
            '{"role": "gpu", "vendor_id": "10DE"}',
        ]
    )
    assert table.role_of(H100) == "big"
    assert table.role_of(attrs.evolve(H100, product_id="20b0")) == "gpu"


def test_a_bridge_has_no_role():
    table = roles.parse_roles(['{"role": "any", "class": "*"}'])
    assert table.role_of(H100) == "any"
    assert table.role_of(attrs.evolve(H100, bridge=BridgeKind.ROOT_PORT)) is None


def test_unknown_ids_match_only_a_star():
    broken = function(vendor_id="10de")
    assert roles.parse_roles(['{"role": "gpu", "vendor_id": "10de"}']).role_of(broken) == "gpu"
    narrow = roles.parse_roles(['{"role": "gpu", "vendor_id": "10de", "class": "03*"}'])
    assert narrow.role_of(broken) is None


def test_dev_type_tells_a_vf_from_its_pf():
    table = roles.parse_roles(['{"role": "vf", "vendor_id": "15b3", "dev_type": "type-VF"}'])
    assert table.role_of(CX7_VF) == "vf"
    assert table.role_of(attrs.evolve(CX7_VF, physical_function=None)) is None


BAD = [
    ("gpu", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ('["gpu"]', "not a JSON object"),
    ('{"role": "gpu", "vendor": "10de"}', "unknown key 'vendor'"),
    ('{"role": "gpu", "vendor_id": 4318}', "must be a string"),
    ('{"vendor_id": "10de"}', "needs a 'role'"),
    ('{"role": "gpu:1", "vendor_id": "10de"}', "needs a 'role'"),
    ('{"role": "gpu\\n", "vendor_id": "10de"}', "needs a 'role'"),
    ('{"role": "gpu"}', "match every function"),
    ('{"role": "gpu", "vendor_id": "0x10de"}', "without 0x"),
    ('{"role": "gpu", "vendor_id": "10d"}', "four hex digits"),
    ('{"role": "gpu", "class": "[03]*"}', "four hex digits"),
    ('{"role": "gpu", "class": ""}', "four hex digits"),
    ('{"role": "gpu", "dev_type": "VF"}', "matches none of type-PCI, type-PF, type-VF"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_strict_names_the_entry_and_the_cure(text, why):
    with pytest.raises(roles.RoleError) as caught:
        roles.parse_roles(['{"role": "gpu", "vendor_id": "10de"}', text])
    message = str(caught.value)
    assert why in message
    assert "[hpc]device_role, entry 2" in message
    assert repr(text[:200])[:-1] in message
    assert len(message) < 600


@pytest.mark.parametrize(("text", "why"), BAD)
def test_lenient_skips_and_logs(text, why, caplog):
    with caplog.at_level(logging.ERROR):
        table = roles.parse_good_roles([text, '{"role": "gpu", "vendor_id": "10de"}'])
    assert table.role_of(H100) == "gpu"
    assert len(table.patterns) == 1
    assert why in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=5,
)


@given(st.text() | json_values.map(json.dumps))
def test_no_text_raises_anything_else(text):
    try:
        table = roles.parse_roles([text])
    except roles.RoleError:
        assert roles.parse_good_roles([text]) == roles.Roles()
    else:
        assert roles.parse_good_roles([text]) == table
        assert table.role_of(H100) in (None, *table.names)
