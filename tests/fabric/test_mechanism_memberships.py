# SPDX-License-Identifier: Apache-2.0
"""Full and limited members, managers' ports and the most keys of a port, in real Neutron."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fabric.neutron_stage import BLUE, PATIENT, RED, write_inventory
from tests.fabric.test_mechanism_holds import put
from tests.fabric.test_mechanism_networks import made, reason
from tests.fabric.test_mechanism_ports import (
    GUID,
    OTHER_SLOT,
    members,
    membership,
    share,
    tag,
    wait_for_status,
)

SECOND_SLOT = "0000:81:00.3"


@pytest.fixture
def network(neutron):
    return made(neutron.network(0x101, project_id=RED))["id"]


def new_port(neutron, network, *, limited=False, role="red", **more):
    port = made(neutron.port(network, role=role, **more))["id"]
    if limited:
        assert tag(neutron, role, "ports", port) in (200, 201)
    return port


def untag(neutron, role, kind, name):
    return neutron.processes[0].http(role, "DELETE", f"/{kind}/{name}/tags/hpc-limited")[0]


def look(neutron, api=1):
    neutron.processes[api].call("look_at_members")


def memberships(neutron):
    """Port -> how it is to be a member."""
    return {one["port_id"]: one["membership"] for one in neutron.desired()["members"]}


@pytest.mark.parametrize("kind", ["port", "network"])
def test_a_port_that_is_off_is_not_active_for_long(neutron, network, kind):
    """A report of the agent set it ACTIVE just after its membership was withdrawn."""
    port, other = new_port(neutron, network), new_port(neutron, network)
    with neutron.agent():
        neutron.bind(port)
        neutron.bind(other, slot=OTHER_SLOT)
    put(neutron, kind, port if kind == "port" else network, admin_state_up=False)
    off = [port] if kind == "port" else [port, other]
    for each in off:
        neutron.rows("UPDATE ports SET status = 'ACTIVE' WHERE id = %s", each)
        assert neutron.get_port(each)["status"] == "ACTIVE"
    look(neutron)
    assert [neutron.get_port(each)["status"] for each in off] == ["DOWN"] * len(off)
    if kind == "port":
        assert neutron.get_port(other)["status"] == "ACTIVE"


# -- one physical port has one membership ------------------------------------------------


@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("first_limited", [False, True])
def test_one_physical_port_is_not_full_and_limited(neutron, network, first_limited, off):
    first = new_port(neutron, network, limited=first_limited)
    second = new_port(neutron, network, limited=not first_limited)
    with neutron.agent():
        neutron.bind(first)
        before = memberships(neutron)
        if off:
            put(neutron, "port", first, admin_state_up=False)
        status, why = reason(neutron.bind(second, slot=SECOND_SLOT, api=1))
        assert status == 409
        assert "full and a limited member" in why
        for secret in (first, network, GUID, "cn0", "0000:81"):
            assert secret not in why
        found = neutron.get_port(second)
        assert (found["binding:host_id"], found["binding:vif_type"]) == ("", "unbound")
        put(neutron, "port", first, admin_state_up=True)
        wait_for_status(neutron, first, "ACTIVE")
        assert memberships(neutron) == before
        # Elsewhere it is free, and beside its like.
        assert neutron.bind(second, slot=OTHER_SLOT)[1]["port"]["status"] == "ACTIVE"
        third = new_port(neutron, network, limited=first_limited)
        assert neutron.bind(third, slot=SECOND_SLOT)[1]["port"]["status"] == "ACTIVE"


def test_a_guest_of_a_limited_network_does_not_demote_its_owner(neutron, network):
    share(neutron, network, BLUE)
    tag(neutron, "red", "networks", network)
    own = new_port(neutron, network)
    guest = new_port(neutron, network, role="blue")
    with neutron.agent():
        neutron.bind(own)
        assert reason(neutron.bind(guest, slot=SECOND_SLOT))[0] == 409
    assert [one[0] for one in members(neutron)] == [own]
    assert neutron.get_port(own)["status"] == "ACTIVE"


def test_two_binds_at_once_do_not_mix_memberships(neutron, network):
    for host in range(4):
        ports = [new_port(neutron, network, limited=limited) for limited in (False, True)]
        slots = ("0000:81:00.2", SECOND_SLOT)

        def bind(number, ports=ports, host=host, slots=slots):
            return neutron.bind(ports[number], f"cn{host}", slots[number], api=number)[0]

        with neutron.agent(), ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(bind, range(2))) == [200, 409]


# -- tags and options while ports are bound ----------------------------------------------


def test_a_tag_holds_for_a_bound_port_at_the_next_look(neutron, network):
    port = new_port(neutron, network)
    with neutron.agent():
        neutron.bind(port)
    tag(neutron, "red", "ports", port)
    look(neutron)
    # A new row: what is known of the full member says nothing of the limited one.
    assert members(neutron) == [(port, GUID, 0x101, True, "DOWN")]
    assert membership(neutron, port) == "limited"
    neutron.agent_round()
    assert neutron.get_port(port)["status"] == "ACTIVE"
    # Of a port that is off, too, and nothing is done twice.
    put(neutron, "port", port, admin_state_up=False)
    untag(neutron, "red", "ports", port)
    look(neutron)
    assert [one[3] for one in members(neutron)] == [False]
    put(neutron, "port", port, api=1, admin_state_up=True)
    assert membership(neutron, port) == "full"
    row = neutron.desired()["members"]
    look(neutron)
    assert neutron.desired()["members"] == row


def test_a_tag_of_a_shared_network_holds_for_bound_guests(neutron, network):
    share(neutron, network, BLUE)
    own, guest = new_port(neutron, network), new_port(neutron, network, role="blue")
    with neutron.agent():
        neutron.bind(own)
        neutron.bind(guest, host="cn1")
        tag(neutron, "red", "networks", network)
        look(neutron)
        assert memberships(neutron) == {own: "full", guest: "limited"}
        untag(neutron, "red", "networks", network)
        look(neutron)
        assert memberships(neutron) == {own: "full", guest: "full"}


def test_limited_pkeys_hold_for_bound_guests(neutron, network):
    share(neutron, network, BLUE)
    own, guest = new_port(neutron, network), new_port(neutron, network, role="blue")
    with neutron.agent():
        neutron.bind(own)
        neutron.bind(guest, host="cn1")
    conf = neutron.write_conf("limited", bind_wait=PATIENT, limited_pkeys="0x0101")
    process = neutron.start(conf, "limited")
    try:
        look(neutron, neutron.processes.index(process))
        assert memberships(neutron) == {own: "full", guest: "limited"}
    finally:
        neutron.end(process)


def test_a_tag_that_would_mix_a_physical_port_waits_and_is_named(neutron, network):
    first, second = new_port(neutron, network), new_port(neutron, network)
    with neutron.agent():
        neutron.bind(first)
        neutron.bind(second, slot=SECOND_SLOT)
    before = members(neutron)
    tag(neutron, "red", "ports", second)
    look(neutron)
    look(neutron)
    assert members(neutron) == before
    assert set(memberships(neutron).values()) == {"full"}
    said = [line for line in neutron.log("second").splitlines() if second in line and GUID in line]
    assert len(said) == 1
    assert first in said[0]
    # Switched off and on it is what its neighbour is.
    put(neutron, "port", second, admin_state_up=False)
    put(neutron, "port", second, admin_state_up=True, api=1)
    assert set(memberships(neutron).values()) == {"full"}
    tag(neutron, "red", "ports", first)
    look(neutron)
    assert memberships(neutron) == {first: "limited", second: "limited"}


# -- subnet managers ---------------------------------------------------------------------


def test_a_port_of_a_subnet_manager_is_not_bound(neutron, network):
    neutron.heartbeat(manager_guids=[GUID, "0x0002c900ffff0001"])
    # The one that stands by reports, too.
    neutron.heartbeat(host="sm1", manager_guids=["0x0002c90000200011"], age=600)
    port = new_port(neutron, network)
    for slot in ("0000:81:00.2", SECOND_SLOT, OTHER_SLOT):
        status, why = reason(neutron.bind(port, slot=slot))
        assert status == 409
        assert "managers are not compute nodes" in why
        assert "cn0" not in why
        assert neutron.get_port(port)["binding:host_id"] == ""
    assert members(neutron) == []
    with neutron.agent():
        assert neutron.bind(port, host="cn1")[1]["port"]["status"] == "ACTIVE"


def test_a_bound_port_of_a_host_that_became_a_manager_stays(neutron, network):
    port = new_port(neutron, network)
    with neutron.agent():
        neutron.bind(port)
    neutron.heartbeat(manager_guids=[GUID])
    look(neutron)
    assert [one[:4] for one in members(neutron)] == [(port, GUID, 0x101, True)]
    stranger = new_port(neutron, made(neutron.network(0x102, project_id=RED))["id"])
    assert reason(neutron.bind(stranger, slot=SECOND_SLOT))[0] == 409


@pytest.mark.parametrize("guids", ["0x0002c90000200001", 7, {"a": 1}, None])
def test_managers_that_cannot_be_read_refuse_nothing(neutron, network, guids):
    neutron.heartbeat(manager_guids=guids)
    said = neutron.log("first").count("manager_guids")
    ports = [new_port(neutron, network) for _ in range(2)]
    with neutron.agent():
        for port, slot in zip(ports, ("0000:81:00.2", OTHER_SLOT), strict=True):
            assert neutron.bind(port, slot=slot)[1]["port"]["status"] == "ACTIVE"
    assert neutron.log("first").count("manager_guids") - said == 1


def test_one_manager_that_cannot_be_read_hides_no_other(neutron, network):
    neutron.heartbeat(manager_guids=["none", GUID])
    assert reason(neutron.bind(new_port(neutron, network)))[0] == 409


# -- the most keys of a port -------------------------------------------------------------


def test_a_port_whose_own_partitions_leave_no_room_is_not_bound(neutron, network):
    neutron.heartbeat(full_guids=[GUID])
    port = new_port(neutron, network)
    status, why = reason(neutron.bind(port))
    assert status == 409
    assert "31 partitions" in why
    assert neutron.get_port(port)["binding:host_id"] == ""
    with neutron.agent():
        assert neutron.bind(port, slot=OTHER_SLOT)[1]["port"]["status"] == "ACTIVE"


def test_a_physical_port_has_31_networks(neutron):
    """With a manager that separates functions; some of its ports are off."""
    functions = "\n".join(
        [
            "version: 1",
            "ports:",
            "- host: cn0",
            '  address: "0000:81:00.0"',
            f'  guid: "{GUID}"',
            "  functions:",
            *(f'  - "0000:81:{number // 8 + 1:02x}.{number % 8}"' for number in range(40)),
        ]
    )
    neutron.inventory.write_text(functions + "\n")
    conf = neutron.write_conf("apart", bind_wait=2.0, subnet_manager="ufm")
    process = neutron.start(conf, "apart")
    api = neutron.processes.index(process)

    def bind(number, pkey):
        if number % 8 == 0:
            neutron.heartbeat()
        network = keys.get(pkey) or made(neutron.network(pkey, api=api))["id"]
        keys[pkey] = network
        port = made(neutron.port(network, api=api, admin_state_up=number % 5 != 0))["id"]
        slot = f"0000:81:{number // 8 + 1:02x}.{number % 8}"
        return port, neutron.bind(port, slot=slot, api=api)

    keys = {}
    try:
        with neutron.agent():
            ports = []
            for number in range(31):
                port, answer = bind(number, 0x301 + number)
                assert answer[0] == 200
                ports.append(port)
            status, why = reason(bind(31, 0x330)[1])
            assert status == 409
            assert "31 partitions" in why
            # One more port of a network that is there needs no key.
            assert bind(32, 0x301)[1][0] == 200
            neutron.unbind(ports[1], api=api)
            assert bind(33, 0x331)[1][0] == 200
    finally:
        neutron.end(process)
        neutron.clear()
        write_inventory(neutron.inventory)
