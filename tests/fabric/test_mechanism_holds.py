# SPDX-License-Identifier: Apache-2.0
"""A bound port keeps its GUID for its network until it is unbound, in real Neutron on a database.

Each test looks at ports that are switched off, too: their physical port still leads to a server.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fabric.bare_fabric import wait_until
from tests.fabric.neutron_stage import RED, write_inventory
from tests.fabric.test_mechanism_networks import made, reason
from tests.fabric.test_mechanism_ports import (
    DELETE_PORT,
    GUID,
    OTHER_SLOT,
    members,
    share,
    wait_for_status,
)


@pytest.fixture
def network(neutron):
    return made(neutron.network(0x101, project_id=RED))["id"]


@pytest.fixture
def port(neutron, network):
    """A port of one project, ACTIVE."""
    found = made(neutron.port(network, role="red"))["id"]
    with neutron.agent():
        assert neutron.bind(found)[1]["port"]["status"] == "ACTIVE"
    return found


@pytest.fixture
def stranger(neutron):
    """A port of another project's network."""
    return made(neutron.port(made(neutron.network(0x102))["id"]))["id"]


def put(neutron, kind, name, role="red", api=0, **values):
    body = {kind: values}
    return neutron.processes[api].http(role, "PUT", f"/{kind}s/{name}", body)


def owners(neutron):
    """GUID -> network of each GUID that a network has."""
    return dict(neutron.rows("SELECT guid, network_id FROM hpc_partition_guids"))


#: What takes the membership of a bound port, and leaves its server where it is.
TAKES = {
    "port off": lambda neutron, network, port: put(
        neutron, "port", port, role="red", admin_state_up=False
    ),
    "network off": lambda neutron, network, port: put(
        neutron, "network", network, role="red", admin_state_up=False
    ),
}


@pytest.mark.parametrize("how", TAKES)
def test_a_port_without_membership_keeps_its_physical_port(neutron, network, port, stranger, how):
    assert TAKES[how](neutron, network, port)[0] == 200
    neutron.agent_round()
    assert members(neutron) == []
    assert neutron.get_port(port)["status"] == "DOWN"
    # Another function of the same physical port; refused at once, and nothing is half done.
    for api in (0, 1):
        status, why = reason(neutron.bind(stranger, slot="0000:81:00.3", api=api))
        assert (status, "two networks never share a port" in why) == (409, True)
    found = neutron.get_port(stranger)
    assert (found["binding:host_id"], found["binding:vif_type"]) == ("", "unbound")
    assert owners(neutron) == {GUID: network}
    # The other adapter is free; the first one is when the server has left it.
    with neutron.agent():
        assert neutron.bind(stranger, slot=OTHER_SLOT)[1]["port"]["status"] == "ACTIVE"
        assert neutron.unbind(port)[0] == 200
        assert neutron.bind(stranger)[1]["port"]["status"] == "ACTIVE"
    assert [one[:3] for one in members(neutron)] == [(stranger, GUID, 0x102)]


def test_a_port_that_is_off_when_it_is_bound_has_its_physical_port(neutron, network, stranger):
    port = made(neutron.port(network, role="red", admin_state_up=False))["id"]
    neutron.bind(port)
    assert members(neutron) == []
    assert reason(neutron.bind(stranger, slot="0000:81:00.3"))[0] == 409
    with neutron.agent():
        put(neutron, "port", port, admin_state_up=True)
        wait_for_status(neutron, port, "ACTIVE")
    assert [one[:4] for one in members(neutron)] == [(port, GUID, 0x101, True)]


@pytest.mark.parametrize("way", ["unbind", "host"])
def test_a_port_that_is_off_leaves_nothing_behind(neutron, network, port, stranger, way):
    put(neutron, "port", port, admin_state_up=False)
    neutron.agent_round()
    if way == "unbind":
        assert neutron.unbind(port)[0] == 200
    else:
        assert neutron.bind(port, host="cn1")[0] == 200
    assert GUID not in owners(neutron)
    with neutron.agent():
        assert neutron.bind(stranger)[1]["port"]["status"] == "ACTIVE"


def test_a_bind_to_the_same_host_moves_the_hold(neutron, network, port, stranger):
    put(neutron, "port", port, admin_state_up=False)
    neutron.agent_round()
    assert neutron.bind(port, slot=OTHER_SLOT)[0] == 200
    assert list(owners(neutron)) == ["0x0002c90000200011"]
    with neutron.agent():
        assert neutron.bind(stranger)[1]["port"]["status"] == "ACTIVE"
        assert reason(neutron.bind(stranger, slot="0000:c1:00.3"))[0] == 409


def test_a_bind_that_fails_leaves_the_port_to_the_server_that_has_it(
    neutron, network, port, stranger
):
    """Nova binds again on the host, and the commit is refused: the guest may still run there."""
    with neutron.agent():
        neutron.bind(stranger, slot=OTHER_SLOT)
    neutron.unbind(stranger)
    # The stranger's key is still there, and no agent takes it.
    assert reason(neutron.bind(port, slot="0000:c1:00.3", api=1))[0] == 409
    found = neutron.get_port(port)
    assert (found["binding:host_id"], found["binding:vif_type"]) == ("cn0", "unbound")
    neutron.agent_round()
    assert members(neutron) == []
    assert reason(neutron.bind(stranger, slot="0000:81:00.3"))[0] == 409
    with neutron.agent():
        assert neutron.bind(port)[1]["port"]["status"] == "ACTIVE"
        assert neutron.bind(stranger, slot=OTHER_SLOT)[1]["port"]["status"] == "ACTIVE"


def test_a_server_that_lost_its_rows_gets_its_holds_back(neutron, network, port, stranger):
    """Ports that a release without holds has bound; one of them is off."""
    second = made(neutron.port(network, role="red"))["id"]
    neutron.bind(second, slot=OTHER_SLOT, api=1)
    put(neutron, "port", second, admin_state_up=False)
    neutron.agent_round()
    neutron.rows("DELETE FROM hpc_partition_holders")
    neutron.rows("DELETE FROM hpc_partition_guids WHERE guid LIKE %s", "%11")
    neutron.processes[1].call("look_at_members")
    for slot in ("0000:81:00.3", "0000:c1:00.3"):
        assert reason(neutron.bind(stranger, slot=slot))[0] == 409
    assert [one[:4] for one in members(neutron)] == [(port, GUID, 0x101, True)]


def test_a_port_that_went_without_the_driver_holds_nothing(neutron, network, port, stranger):
    put(neutron, "port", port, admin_state_up=False)
    neutron.agent_round()
    neutron.rows(DELETE_PORT, port)
    neutron.processes[1].call("look_at_members")
    assert owners(neutron) == {}


# -- networks that are off ---------------------------------------------------------------


def test_a_network_that_is_off_has_no_members(neutron, network, port):
    second = made(neutron.port(network, role="red"))["id"]
    with neutron.agent():
        neutron.bind(second, slot=OTHER_SLOT)
    (first_row, second_row) = [one["row"] for one in neutron.desired()["members"]]
    assert put(neutron, "network", network, admin_state_up=False)[0] == 200
    assert [one[3:] for one in members(neutron)] == [(False, "DOWN")] * 2
    # A report from before says nothing of it.
    neutron.report(present=[first_row, second_row])
    assert [neutron.get_port(one)["status"] for one in (port, second)] == ["DOWN"] * 2
    neutron.agent_round()
    assert members(neutron) == []
    # A port that is bound meanwhile is none, and one that is off stays off.
    third = made(neutron.port(network, role="red"))["id"]
    assert neutron.bind(third, host="cn1")[1]["port"]["status"] == "DOWN"
    put(neutron, "port", second, admin_state_up=False)
    assert members(neutron) == []
    assert put(neutron, "network", network, api=1, admin_state_up=True)[0] == 200
    assert sorted(one[0] for one in members(neutron)) == sorted([port, third])
    with neutron.agent():
        for one in (port, third):
            wait_for_status(neutron, one, "ACTIVE")
    assert neutron.get_port(second)["status"] == "DOWN"


def test_members_are_as_the_network_is_at_the_next_look(neutron, network, port):
    """A bind and a network that is switched off at once: the later look finds what was missed."""
    neutron.rows("UPDATE networks SET admin_state_up = 0 WHERE id = %s", network)
    neutron.processes[1].call("look_at_members")
    assert [one[3:] for one in members(neutron)] == [(False, "DOWN")]
    neutron.rows("UPDATE networks SET admin_state_up = 1 WHERE id = %s", network)
    neutron.processes[1].call("look_at_members")
    assert [one[3:] for one in members(neutron)] == [(True, "DOWN")]
    row = neutron.desired()["members"][0]["row"]
    neutron.processes[1].call("look_at_members")
    assert neutron.desired()["members"][0]["row"] == row


def test_a_hundred_and_twenty_members(neutron, network):
    """Sixty hosts of two adapters: all are members, none is while the network is off."""
    write_inventory(neutron.inventory, hosts=60)
    places = [(f"cn{host}", f"0000:{bus}:00.2") for host in range(60) for bus in ("81", "c1")]

    def bind(number):
        host, slot = places[number]
        port = made(neutron.port(network, role="red", api=number % 2))["id"]
        if number % 16 == 0:
            neutron.heartbeat()
        return neutron.bind(port, host=host, slot=slot, api=number % 2)[0]

    try:
        with neutron.agent(), ThreadPoolExecutor(8) as pool:
            assert list(pool.map(bind, range(120))) == [200] * 120
            wait_until(
                lambda: [one[3:] for one in members(neutron)] == [(True, "ACTIVE")] * 120,
                "all are members",
                120,
            )
        assert len({one[1] for one in members(neutron)}) == 120
        assert put(neutron, "network", network, admin_state_up=False)[0] == 200
        assert [one[3:] for one in members(neutron)] == [(False, "DOWN")] * 120
        assert put(neutron, "network", network, admin_state_up=True)[0] == 200
        assert [one[3:] for one in members(neutron)] == [(True, "DOWN")] * 120
        assert len(owners(neutron)) == 120
    finally:
        neutron.clear()
        write_inventory(neutron.inventory)


# -- two servers at once -----------------------------------------------------------------


def test_no_moment_of_a_toggle_lets_another_network_in(neutron, network, port, stranger):
    """One project switches its port without pause, another one binds, over two processes."""
    ended, answers = threading.Event(), []

    def toggle():
        up = False
        while not ended.is_set():
            put(neutron, "port", port, api=1, admin_state_up=up)
            up = not up

    with neutron.agent(), ThreadPoolExecutor(1) as pool:
        toggling = pool.submit(toggle)
        for number in range(12):
            answers.append(neutron.bind(stranger, slot="0000:81:00.3", api=number % 2)[0])
            assert owners(neutron) == {GUID: network}
        ended.set()
        toggling.result()
    assert answers == [409] * 12


def test_networks_that_bind_ports_which_are_off(neutron):
    """Six of them want one physical port over two processes; one has it."""
    ports = []
    for number in range(6):
        network = made(neutron.network(0x230 + number))["id"]
        ports.append(made(neutron.port(network, admin_state_up=False))["id"])
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: neutron.bind(ports[n], api=n % 2)[0], range(6)))
    assert sorted(found) == [200, 409, 409, 409, 409, 409]
    assert len(owners(neutron)) == 1


def test_a_port_of_a_shared_network_holds_for_the_network(neutron, network, port):
    """Functions of one adapter may be of two projects in one network, off or on."""
    share(neutron, network, "2" * 32)
    guest = made(neutron.port(network, role="blue"))["id"]
    put(neutron, "port", port, admin_state_up=False)
    neutron.agent_round()
    with neutron.agent():
        assert neutron.bind(guest, slot="0000:81:00.3")[1]["port"]["status"] == "ACTIVE"
    neutron.unbind(guest)
    neutron.agent_round()
    # The one that is off still has it.
    assert owners(neutron) == {GUID: network}
