# SPDX-License-Identifier: Apache-2.0
"""The rules of the mechanism driver, without Neutron."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutron_drivers import fabric_heartbeats, fabrics, network_rules, port_rules
from neutron_drivers.errors import FabricUnavailableError, PartitionInUseError, WrongWishError
from neutron_drivers.network_rules import FabricKey
from nova_hpc.fabric.partitions.backends.base import Capabilities
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import PartitionPolicy

WHOLE = Capabilities(separates_functions=False)
APART = Capabilities(separates_functions=True)
SETTINGS = fabrics.FabricSettings({"ib0": "main", "ib1": "main", "far": "other"}, WHOLE)
KEY = FabricKey("main", 0x101)


def options(**more):
    return SimpleNamespace(
        **{
            "physical_networks": {"ib0": "main"},
            "reserved_pkeys": ["0x0001"],
            "limited_pkeys": [],
            "service_levels": {},
            "rates": {},
            "mtus": {},
            "direct_vif_type": "hostdev_physical",
            "bind_wait": 5.0,
            "member_timeout": 30.0,
            **more,
        }
    )


def segment(physical="ib0", pkey=0x101, kind="vlan"):
    return {"physical_network": physical, "segmentation_id": pkey, "network_type": kind}


def port(**more):
    return {
        "id": "p",
        "project_id": "red",
        "admin_state_up": True,
        "mac_address": "fa:16:3e:01:02:03",
        "binding:vnic_type": "direct",
        "binding:host_id": "cn0",
        "binding:profile": {"pci_slot": "0000:81:00.2"},
        "binding:vif_type": "hostdev_physical",
        "binding:vif_details": {"guid": "0x0002c90000200001"},
        **more,
    }


NETWORK = {"id": "n", "project_id": "red"}


class Ports:
    def find_port_guid(self, host, address):
        return 0x2C90000200001 if (host, address) == ("cn0", "0000:81:00.2") else None


# -- options ---------------------------------------------------------------------------


def test_the_options_are_read():
    found = fabrics.read_fabric_settings(
        options(
            reserved_pkeys=["0x8001", "99"],
            service_levels={"0x0101": "1"},
            rates={"0x0101": "3", "258": "0x10"},
            mtus={"0x0101": "4096", "0x0103": "256"},
        ),
        WHOLE,
    )
    assert found.reserved_pkeys == {1, 99}
    assert found.policies == {
        0x101: PartitionPolicy(1, 3, mtu=5),
        0x102: PartitionPolicy(None, 16),
        0x103: PartitionPolicy(mtu=1),
    }
    assert found.names_of_fabrics() == {"main"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"physical_networks": {"ib0": ""}}, "physical_networks"),
        ({"physical_networks": {"ib0": "x" * 65}}, "physical_networks.*64"),
        ({"reserved_pkeys": ["one"]}, "reserved_pkeys.*one"),
        ({"reserved_pkeys": ["0x0000"]}, "reserved_pkeys.*no P_Key"),
        ({"limited_pkeys": ["-4"]}, "limited_pkeys"),
        ({"service_levels": {"0x0101": "16"}}, "service_levels.*0 to 15"),
        ({"service_levels": {"0x7fff": "1"}}, "service_levels.*at most 0x0ffe"),
        ({"rates": {"0x0101": "fast"}}, "rates.*fast"),
        ({"mtus": {"0x0101": "5"}}, "mtus.*0x0101:5.*256, 512, 1024, 2048 or 4096 bytes"),
        ({"mtus": {"0x0101": "4k"}}, "mtus.*4k"),
        ({"mtus": {"0x1000": "2048"}}, "mtus.*at most 0x0ffe"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(more, said):
    with pytest.raises(fabrics.FabricOptionError, match=said):
        fabrics.read_fabric_settings(options(**more), WHOLE)


def test_service_levels_that_a_manager_does_not_know_are_refused():
    manager = attrs.evolve(WHOLE, service_levels=False)
    with pytest.raises(fabrics.FabricOptionError, match="service_levels"):
        fabrics.read_fabric_settings(options(service_levels={"0x0101": "1"}), manager)


# -- networks --------------------------------------------------------------------------


def test_a_network_elsewhere_is_none_of_ours():
    assert network_rules.find_fabric_key([segment("physnet1", 7, "flat")], SETTINGS) is None
    assert network_rules.find_fabric_key([], SETTINGS) is None


@pytest.mark.parametrize("physical", ["ib0", "ib1"])
def test_the_segmentation_id_is_the_key(physical):
    assert network_rules.find_fabric_key([segment(physical)], SETTINGS) == KEY


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ([segment(kind="flat", pkey=None)], "of type vlan"),
        ([segment(), segment("ib1", 0x102)], "one segment"),
        ([segment(), segment("physnet1", 5)], "one segment"),
        ([segment(pkey=None)], "no P_Key"),
        ([segment(pkey=4095)], "no P_Key"),
    ],
)
def test_a_network_that_cannot_be_a_partition_is_refused(segments, said):
    with pytest.raises(WrongWishError, match=said):
        network_rules.find_fabric_key(segments, SETTINGS)


def test_keys_of_others_are_refused():
    network_rules.check_free_key(KEY, SETTINGS, {0x102})
    with pytest.raises(WrongWishError, match="administrator"):
        network_rules.check_free_key(KEY, SETTINGS, {0x101})
    reserved = attrs.evolve(SETTINGS, reserved_pkeys=frozenset({0x101}))
    with pytest.raises(WrongWishError, match="operator"):
        network_rules.check_free_key(KEY, reserved, ())


# -- GUIDs -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["direct", "direct-physical"])
def test_the_guid_is_the_physical_ports_where_functions_are_not_kept_apart(kind):
    asked = port(**{"binding:vnic_type": kind})
    assert port_rules.choose_guid(asked, "cn0", SETTINGS, Ports(), 5) == 0x2C90000200001


@pytest.mark.parametrize(
    ("host", "profile"),
    [
        ("cn1", {"pci_slot": "0000:81:00.2"}),
        ("cn0", {}),
        ("cn0", None),
        ("cn0", {"pci_slot": 7}),
        ("cn0", {"pci_slot": "0" * 99}),
    ],
)
def test_a_device_that_nobody_knows_has_no_guid(host, profile):
    with pytest.raises(PartitionInUseError, match="inventory") as caught:
        port_rules.choose_guid(port(**{"binding:profile": profile}), host, SETTINGS, Ports(), 5)
    assert host in caught.value.detail
    assert host not in str(caught.value)


def test_a_function_that_is_kept_apart_has_a_guid_of_its_own():
    settings = attrs.evolve(SETTINGS, capabilities=APART)
    asked = port(**{"binding:profile": {}})
    first, second = (
        port_rules.choose_guid(asked, "cn0", settings, Ports(), drawn)
        for drawn in (0, (1 << 64) - 1)
    )
    # Locally administered, and no multicast: nobody's adapter is made with such a one.
    assert (first, second) == (0x0200000000000000, 0xFEFFFFFFFFFFFFFF)
    whole = port(**{"binding:vnic_type": "direct-physical"})
    assert port_rules.choose_guid(whole, "cn0", settings, Ports(), 5) == 0x2C90000200001


def test_ebrctl_makes_the_guid_of_the_mac():
    settings = attrs.evolve(SETTINGS, capabilities=APART, direct_vif_type="ib_hostdev")
    assert port_rules.choose_guid(port(), "cn0", settings, Ports(), 5) == 0xFA163E0000010203
    with pytest.raises(PartitionInUseError, match="six bytes"):
        port_rules.derive_function_guid("80:00:02:08:fe:80:00:00")


_MACS = st.binary(min_size=6, max_size=6).filter(any)


@given(_MACS, _MACS)
def test_two_macs_never_make_one_guid(first, second):
    one, two = (port_rules.derive_function_guid(mac.hex(":")) for mac in (first, second))
    assert (one == two) == (first == second)


def test_vif_types():
    mellanox = attrs.evolve(SETTINGS, direct_vif_type="ib_hostdev")
    assert port_rules.choose_vif_type(port(), SETTINGS) == "hostdev_physical"
    assert port_rules.choose_vif_type(port(), mellanox) == "ib_hostdev"
    whole = port(**{"binding:vnic_type": "direct-physical"})
    assert port_rules.choose_vif_type(whole, mellanox) == "hostdev_physical"


# -- membership ------------------------------------------------------------------------


def test_a_bound_port_has_a_guid():
    found = port_rules.held_of_binding(port(), NETWORK, KEY, SETTINGS)
    guid = 0x2C90000200001
    assert found == port_rules.WantedMember(
        KEY, guid, guid, Membership.FULL, "cn0", "0000:81:00.2", "n"
    )
    assert port_rules.held_of_binding(port(), NETWORK, KEY, SETTINGS, 5) == attrs.evolve(
        found, physical_guid=5
    )
    # Switched off it has the same GUID.
    off = port(admin_state_up=False)
    assert port_rules.held_of_binding(off, NETWORK, KEY, SETTINGS) == found


@pytest.mark.parametrize(("port_up", "network_up"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_members_are_on_in_networks_that_are_on(port_up, network_up):
    network = {**NETWORK, "admin_state_up": bool(network_up)}
    found = port_rules.is_switched_on(port(admin_state_up=bool(port_up)), network)
    assert found is bool(port_up and network_up)


@pytest.mark.parametrize(
    "more",
    [
        {"binding:host_id": ""},
        {"binding:vif_type": "unbound"},
        {"binding:vif_type": "binding_failed"},
        {"binding:vif_type": "hw_veb"},
        {"binding:vif_details": {}},
        {"binding:vif_details": None},
        {"binding:vnic_type": "normal"},
    ],
)
def test_any_other_port_has_none(more):
    assert port_rules.held_of_binding(port(**more), NETWORK, KEY, SETTINGS) is None


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ({}, False),
        ({"name": "a", "status": "DOWN"}, False),
        (
            {
                "binding:vif_details": {
                    "guid": "0x0002c90000200001",
                    "bound_drivers": {"0": "hpc_partitions"},
                }
            },
            False,
        ),
        ({"binding:vif_details": {"guid": "0x0002c90000200002"}}, True),
        ({"binding:vif_details": {}}, True),
        ({"binding:host_id": "cn1"}, True),
        ({"admin_state_up": False}, True),
        ({"binding:vnic_type": "normal"}, True),
    ],
)
def test_what_of_a_port_decides(more, changed):
    assert port_rules.has_changed(port(**more), port(), port_rules.DECIDING) is changed
    assert port_rules.has_changed(port(**more), None, port_rules.DECIDING)


@pytest.mark.parametrize(
    ("of_port", "of_network", "limited_pkeys", "project", "limited"),
    [
        ((), (), (), "red", False),
        ((), (), (), "blue", False),
        (("hpc-limited",), (), (), "red", True),
        (("hpc-limited",), (), (), "blue", True),
        ((), ("hpc-limited",), (), "red", False),
        ((), ("hpc-limited",), (), "blue", True),
        ((), (), (0x101,), "red", False),
        ((), (), (0x101,), "blue", True),
        ((), (), (0x102,), "blue", False),
    ],
)
def test_who_is_limited(of_port, of_network, limited_pkeys, project, limited):
    settings = attrs.evolve(SETTINGS, limited_pkeys=frozenset(limited_pkeys))
    found = port_rules.choose_membership(
        port(project_id=project, tags=list(of_port)),
        {**NETWORK, "tags": list(of_network)},
        KEY,
        settings,
    )
    assert found is (Membership.LIMITED if limited else Membership.FULL)


@given(
    st.sets(st.sampled_from(["hpc-limited", "hpc-full", "x"])),
    st.sets(st.sampled_from(["hpc-limited", "hpc-full", "x"])),
    st.sampled_from(["red", "blue"]),
    st.booleans(),
)
def test_no_tag_gives_more(of_port, of_network, project, operator):
    settings = attrs.evolve(SETTINGS, limited_pkeys=frozenset({0x101} if operator else ()))

    def choose(port_tags, network_tags):
        return port_rules.choose_membership(
            port(project_id=project, tags=list(port_tags)),
            {**NETWORK, "tags": list(network_tags)},
            KEY,
            settings,
        )

    if choose((), ()) is Membership.LIMITED:
        assert choose(of_port, of_network) is Membership.LIMITED


def test_a_manager_without_limited_members_makes_no_full_ones_of_them():
    settings = attrs.evolve(SETTINGS, capabilities=attrs.evolve(WHOLE, limited_members=False))
    with pytest.raises(PartitionInUseError, match="limited"):
        port_rules.choose_membership(port(tags=["hpc-limited"]), NETWORK, KEY, settings)


# -- heartbeats ------------------------------------------------------------------------


def heartbeat(**more):
    return {
        "host": "sm0",
        "alive": True,
        "admin_state_up": True,
        "configurations": {"fabric": "main", "foreign_pkeys": [0x30, "0x8031"]},
        **more,
    }


def test_a_heartbeat_says_who_lives_and_which_keys_are_taken():
    found = fabric_heartbeats.parse_heartbeat(heartbeat())
    assert fabric_heartbeats.has_live_agent([found], "main")
    assert not fabric_heartbeats.has_live_agent([found], "other")
    assert fabric_heartbeats.foreign_pkeys_of([found], "main") == {0x30, 0x31}
    assert fabric_heartbeats.foreign_pkeys_of([found], "other") == frozenset()


@pytest.mark.parametrize(
    "more",
    [
        {"alive": False},
        {"alive": None},
        {"admin_state_up": False},
        {"configurations": None},
        {"configurations": []},
        {"configurations": {"fabric": ["main"]}},
    ],
)
def test_who_is_not_known_to_live_does_not(more):
    found = fabric_heartbeats.parse_heartbeat(heartbeat(**more))
    assert not fabric_heartbeats.has_live_agent([found], "main")


@pytest.mark.parametrize("foreign", [None, "0x30", [None], ["x"], [-1], {}])
def test_keys_that_cannot_be_read_are_unknown(foreign):
    found = fabric_heartbeats.parse_heartbeat(
        heartbeat(configurations={"fabric": "main", "foreign_pkeys": foreign})
    )
    assert found.foreign_pkeys is None
    with pytest.raises(FabricUnavailableError, match="P_Keys"):
        fabric_heartbeats.foreign_pkeys_of([found], "main")
    dead = attrs.evolve(found, alive=False)
    assert fabric_heartbeats.foreign_pkeys_of([dead], "main") == frozenset()
