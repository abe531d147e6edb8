# SPDX-License-Identifier: Apache-2.0
"""Ports that are deleted while they are bound, in real Neutron on a database.

Nova then takes the function from the server, and a guest may keep it. The physical port stays its
network's until Nova reports the server as gone, or gives the function to another one.
"""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fabric.neutron_stage import BLUE, RED
from tests.fabric.nova_events import HANGS
from tests.fabric.test_mechanism_holds import owners, put
from tests.fabric.test_mechanism_networks import made, reason
from tests.fabric.test_mechanism_ports import GUID, OTHER_SLOT, members, share

#: The first server's function, and another one of the same physical port.
SLOT, BESIDE = "0000:81:00.2", "0000:81:00.3"


@pytest.fixture
def server():
    return str(uuid.uuid4())


@pytest.fixture
def network(neutron):
    return made(neutron.network(0x101, project_id=RED))["id"]


@pytest.fixture
def port(neutron, network, server):
    """A port of a running server, deleted while it was bound; its key is gone."""
    found = made(neutron.port(network, role="red"))["id"]
    with neutron.agent():
        assert neutron.bind(found, device_id=server)[1]["port"]["status"] == "ACTIVE"
        neutron.set_nova(**{server: 200})
        assert delete_as_user(neutron, found) == 204
    neutron.agent_round()
    assert members(neutron) == []
    return found


@pytest.fixture
def stranger(neutron):
    """A port of another project's network."""
    return made(neutron.port(made(neutron.network(0x102))["id"]))["id"]


@pytest.fixture
def guest(neutron):
    """Blue's network, a port of red's there, and one of blue's."""
    network = made(neutron.network(0x101, project_id=BLUE))["id"]
    share(neutron, network, RED)
    return (network, *(made(neutron.port(network, role=one))["id"] for one in ("red", "blue")))


def throw_out(neutron, port, server):
    """Blue deletes the port of red's server, which runs on."""
    neutron.set_nova(**{server: 200})
    put(neutron, "port", port, device_owner="")
    assert delete(neutron, port, "blue") == 204


def delete_as_user(neutron, port):
    """As a project can do it in all releases of Neutron."""
    put(neutron, "port", port, device_owner="")
    return delete(neutron, port, "red")


def delete(neutron, port, role="nova", api=0):
    return neutron.processes[api].http(role, "DELETE", f"/ports/{port}")[0]


def bind(neutron, port, slot=BESIDE, api=1, server=None, **more):
    """As Nova does it for another server."""
    server = server or str(uuid.uuid4())
    return neutron.bind(port, slot=slot, api=api, device_id=server, **more)


def test_a_running_server_keeps_the_physical_port_of_its_deleted_port(
    neutron, network, server, port, stranger
):
    status, why = reason(bind(neutron, stranger))
    assert status == 409
    assert "Delete or move that server" in why
    # The log names both; Nova shows the text to users of other projects.
    assert f"port {port} of server {server}" in neutron.log("second")
    assert port not in why
    assert server not in why
    assert owners(neutron) == {GUID: network}
    assert neutron.get_port(stranger)["binding:vif_type"] == "unbound"
    neutron.unbind(stranger)
    with neutron.agent():
        # The other adapter is free; the first one is when the server is gone.
        assert bind(neutron, stranger, OTHER_SLOT)[1]["port"]["status"] == "ACTIVE"
        neutron.unbind(stranger)
        neutron.set_nova()
        assert bind(neutron, stranger)[1]["port"]["status"] == "ACTIVE"
        neutron.unbind(stranger)
    neutron.agent_round()
    assert owners(neutron) == {}


def test_a_server_that_ends_in_the_meantime_lets_the_bind_go_on(
    neutron, network, server, port, stranger
):
    """Nova deletes the ports that it made before it forgets their server."""
    with neutron.agent(), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bind, neutron, stranger, api=0)
        while not neutron.processes[0].call("count_waiting"):
            assert not asked.done(), asked.result()
        neutron.set_nova()
        assert asked.result()[1]["port"]["status"] == "ACTIVE"
    assert [one[:3] for one in members(neutron)] == [(stranger, GUID, 0x102)]


@pytest.mark.parametrize(
    "status", [HANGS, 503, *(pytest.param(code, marks=pytest.mark.slow) for code in (401, 500))]
)
def test_nova_that_does_not_answer_frees_nothing(neutron, network, server, port, stranger, status):
    neutron.set_nova(**{server: status})
    found, why = reason(bind(neutron, stranger))
    assert (found, "its server has not left the host" in why) == (409, True)
    assert owners(neutron) == {GUID: network}
    why = "Nova answers" if status else "Nova does not answer"
    assert f"port {port}, server {server}, host cn0 {SLOT}: {why}" in neutron.log("second")


def test_a_user_without_all_servers_of_nova_is_no_witness(neutron, network, server, port, stranger):
    """Nova reports other projects' servers as missing to users that are no administrators."""
    neutron.set_nova(**{server: 404, "os-services": 403})
    assert reason(bind(neutron, stranger))[0] == 409
    assert owners(neutron) == {GUID: network}
    assert "as an administrator" in neutron.log("second")


def test_the_same_function_is_free_when_nova_gives_it_again(
    neutron, network, server, port, stranger
):
    """Whatever Nova reports: nothing is asked."""
    neutron.set_nova(**{server: HANGS})
    with neutron.agent():
        begun = time.monotonic()
        assert bind(neutron, stranger, SLOT, api=0)[1]["port"]["status"] == "ACTIVE"
        assert time.monotonic() - begun < 10
        neutron.unbind(stranger)
    neutron.agent_round()
    assert owners(neutron) == {}


def test_the_same_function_of_another_host_frees_nothing(neutron, network, port, stranger):
    with neutron.agent():
        assert bind(neutron, stranger, SLOT, host="cn1")[1]["port"]["status"] == "ACTIVE"
        neutron.unbind(stranger)
    assert reason(bind(neutron, stranger))[0] == 409


def test_the_servers_own_port_is_not_refused_and_frees_nothing(
    neutron, network, server, port, stranger
):
    """It has both functions; when it has given one back, it may still have the other one."""
    second = made(neutron.network(0x103, project_id=RED))["id"]
    own = made(neutron.port(second, role="red"))["id"]
    with neutron.agent():
        assert bind(neutron, own, api=0, server=server)[1]["port"]["status"] == "ACTIVE"
        neutron.unbind(own)
    neutron.agent_round()
    assert owners(neutron) == {GUID: second}
    assert reason(bind(neutron, stranger))[0] == 409


def test_the_network_itself_is_not_refused(neutron, network, server, port, stranger):
    share(neutron, network, "2" * 32)
    with neutron.agent():
        for role in ("red", "blue"):
            # A member of another kind as well: the deleted port is no member of any kind.
            other = made(neutron.port(network, role=role))["id"]
            assert bind(neutron, other)[1]["port"]["status"] == "ACTIVE"
            assert neutron.unbind(other)[0] == 200
    neutron.agent_round()
    # It has left nothing of the hold.
    assert reason(bind(neutron, stranger))[0] == 409


def test_a_server_that_another_project_threw_out_is_no_member_again(neutron, server, guest):
    """The owner of a shared network deletes the port; its next server would renew the key."""
    network, port, own = guest
    with neutron.agent():
        assert neutron.bind(port, device_id=server)[1]["port"]["status"] == "ACTIVE"
        throw_out(neutron, port, server)
        neutron.agent_round()
        assert reason(bind(neutron, own, api=1))[0] == 409
        assert members(neutron) == []
        neutron.unbind(own)
        # The server itself, and everybody when it is gone.
        again = made(neutron.port(network, role="red"))["id"]
        assert bind(neutron, again, server=server)[1]["port"]["status"] == "ACTIVE"
        neutron.unbind(again)
        neutron.agent_round()
        assert reason(bind(neutron, own, api=1))[0] == 409
        neutron.unbind(own)
        neutron.set_nova()
        assert bind(neutron, own)[1]["port"]["status"] == "ACTIVE"


def test_a_neighbour_keeps_its_place_beside_a_server_that_was_thrown_out(neutron, server, guest):
    """Off and on again is no new bind."""
    network, port, own = guest
    with neutron.agent():
        for one, slot, its in ((port, SLOT, server), (own, BESIDE, None)):
            assert bind(neutron, one, slot, server=its)[1]["port"]["status"] == "ACTIVE"
        throw_out(neutron, port, server)
        for is_up in (False, True):
            assert put(neutron, "port", own, role="blue", admin_state_up=is_up)[0] == 200
        neutron.agent_round()
        assert neutron.get_port(own)["status"] == "ACTIVE"
        third = made(neutron.port(network, role="blue"))["id"]
        assert reason(bind(neutron, third, "0000:81:00.4"))[0] == 409


def test_the_hold_does_not_move_to_a_network_that_its_server_visits(
    neutron, network, server, port, stranger
):
    """The server may have the first function still when it has left the other network."""
    shared = made(neutron.network(0x103, project_id=BLUE))["id"]
    share(neutron, shared, RED)
    visit = made(neutron.port(shared, role="red"))["id"]
    with neutron.agent():
        assert bind(neutron, visit, api=0, server=server)[1]["port"]["status"] == "ACTIVE"
        neutron.unbind(visit)
        assert delete(neutron, visit, "red") == 204
        neutron.agent_round()
        own = made(neutron.port(shared, role="blue"))["id"]
        assert reason(bind(neutron, own, api=1))[0] == 409
        assert members(neutron) == []


@pytest.mark.parametrize(("services", "answer"), [({}, 200), ({"os-services": "is-down"}, 409)])
def test_a_server_that_has_moved_frees_the_hosts_that_it_left(
    neutron, network, server, stranger, services, answer
):
    """One small server would hold the adapters of all hosts; an evacuated one may still run."""
    hosts = ("cn0", "cn1", "cn2")
    for host in hosts:
        port = made(neutron.port(network, role="red"))["id"]
        with neutron.agent():
            got = bind(neutron, port, SLOT, host=host, server=server)
            assert got[1]["port"]["status"] == "ACTIVE"
        assert delete_as_user(neutron, port) == 204
    neutron.agent_round()
    neutron.set_nova(**{server: "cn2", **services})
    answers = []
    with neutron.agent():
        for host in hosts:
            answers.append(bind(neutron, stranger, BESIDE, host=host)[0])
            neutron.unbind(stranger)
    assert answers == [answer, answer, 409]


def test_the_hold_outlives_its_network(neutron, network, server, port, stranger):
    assert neutron.processes[0].http("red", "DELETE", f"/networks/{network}")[0] == 204
    # The next network with the key is not the one that has the physical port.
    again = made(neutron.port(made(neutron.network(0x101))["id"]))["id"]
    for other in (again, stranger):
        assert reason(bind(neutron, other))[0] == 409
        neutron.unbind(other)
    neutron.set_nova()
    with neutron.agent():
        assert bind(neutron, again)[1]["port"]["status"] == "ACTIVE"


def test_a_network_gets_another_key_beside_the_hold(neutron, network, port, stranger):
    assert (
        put(neutron, "network", network, "admin", **{"provider:segmentation_id": 0x104})[0] == 200
    )
    assert reason(bind(neutron, stranger))[0] == 409
    other = made(neutron.port(network, role="red"))["id"]
    with neutron.agent():
        assert bind(neutron, other)[1]["port"]["status"] == "ACTIVE"


def test_a_port_that_is_off_holds_as_well(neutron, network, server, stranger):
    port = made(neutron.port(network, role="red"))["id"]
    with neutron.agent():
        neutron.bind(port, device_id=server)
    neutron.set_nova(**{server: 200})
    put(neutron, "port", port, admin_state_up=False)
    neutron.agent_round()
    assert delete_as_user(neutron, port) == 204
    assert reason(bind(neutron, stranger))[0] == 409


@pytest.mark.parametrize("change", [{"device_id": ""}, {"device_id": str(uuid.uuid4())}])
def test_a_project_does_not_choose_the_server_of_a_bound_port(
    neutron, network, server, stranger, change
):
    """The hold would be free at once, and the server still runs."""
    port = made(neutron.port(network, role="red"))["id"]
    with neutron.agent():
        neutron.bind(port, device_id=server)
    status, why = reason(put(neutron, "port", port, role="red", **change))
    assert (status, "openstack server remove port" in why) == (409, True)
    assert neutron.get_port(port)["device_id"] == server
    # What is not bound is the project's.
    neutron.unbind(port)
    assert put(neutron, "port", port, role="red", **change)[0] == 200


def test_both_processes_bind_after_the_server(neutron, network, server, port):
    neutron.set_nova()
    strangers = [made(neutron.port(made(neutron.network(0x210 + n))["id"]))["id"] for n in range(4)]
    with neutron.agent(), ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: bind(neutron, strangers[n], api=n % 2)[0], range(4)))
    assert sorted(answers) == [200, 409, 409, 409]
    (member,) = members(neutron)
    assert member[0] == strangers[answers.index(200)]
    assert len(owners(neutron)) == 1


def test_a_port_that_is_deleted_and_unbound_at_once(neutron, network, server, stranger):
    """Deleted in both processes, or unbound by Nova at the same moment: one of the two wins."""
    neutron.set_nova(**{server: 200})
    for number in range(6):
        port = made(neutron.port(network, role="red"))["id"]
        with neutron.agent():
            assert neutron.bind(port, device_id=server)[0] == 200
            with ThreadPoolExecutor(3) as pool:
                asked = [pool.submit(delete, neutron, port, api=api) for api in (0, 1)]
                asked.append(pool.submit(lambda p=port: neutron.unbind(p, api=1)[0]))
                answers = [one.result() for one in asked]
        assert sorted(answers[:2])[0] == 204, answers
        assert set(answers) <= {200, 204, 404, 409}, answers
        neutron.agent_round()
        held = [one for (one,) in neutron.rows("SELECT port_id FROM hpc_partition_former_holders")]
        assert held in ([], [port]), number
        assert list(owners(neutron)) == [GUID] * bool(held)
    assert neutron.rows("SELECT port_id FROM hpc_partition_holders") == ()


def test_a_port_without_a_server_leaves_nothing(neutron, network, stranger):
    """Bound by an administrator's hand: Nova has no server that could have the function."""
    port = made(neutron.port(network))["id"]
    with neutron.agent():
        assert neutron.bind(port, device_id="", device_owner="")[0] == 200
        assert delete(neutron, port) == 204
        assert bind(neutron, stranger, api=0)[1]["port"]["status"] == "ACTIVE"


def test_a_delete_that_began_before_the_bind_leaves_the_hold(neutron, network, server, stranger):
    """Neutron reads a port that it deletes twice, and the bind comes in between."""
    port = made(neutron.port(network, role="red"))["id"]
    neutron.set_nova(**{server: 200})
    neutron.processes[1].call("begin_deletes_early", seconds=6.0)
    try:
        with neutron.agent(), ThreadPoolExecutor(1) as pool:
            asked = pool.submit(delete, neutron, port, "red", 1)
            time.sleep(1.5)
            assert neutron.bind(port, device_id=server)[0] == 200
            assert asked.result() == 204
    finally:
        neutron.processes[1].call("begin_deletes_early", seconds=0)
    neutron.agent_round()
    with neutron.agent():
        status, why = reason(neutron.bind(stranger, slot=BESIDE, api=1))
    assert status == 409, why
    assert members(neutron) == []


def test_a_server_that_is_gone_needs_no_bind_to_be_noticed(neutron, network, port, server):
    """Places for requests that wait may be taken, or there may be none at all."""
    (held,) = neutron.rows("SELECT guid FROM hpc_partition_former_holders")
    neutron.set_nova(**{server: 404, "os-services": "is-down"})
    neutron.processes[1].call("release_next_server", after="")
    assert neutron.rows("SELECT guid FROM hpc_partition_former_holders") == (held,)
    assert f"server {server}, host cn0 {SLOT}: nova-compute of its host cn0 is down" in (
        neutron.log("second")
    )
    neutron.set_nova(**{server: 404})
    assert neutron.processes[1].call("release_next_server", after=port) == ""
    assert neutron.processes[1].call("release_next_server", after="") == port
    assert neutron.rows("SELECT guid FROM hpc_partition_former_holders") == ()
    assert owners(neutron) == {}
