# SPDX-License-Identifier: Apache-2.0
"""How ports become members, in real Neutron on a real database; the agent is the test."""

import time
import uuid

import pytest

from tests.fabric.bare_fabric import wait_until
from tests.fabric.neutron_stage import BLUE, HASTY, PATIENT, RED
from tests.fabric.test_mechanism_networks import made, reason

GUID = "0x0002c90000200001"
#: By hand, with what Neutron has of it.
DELETE_PORT = (
    "DELETE standardattributes FROM standardattributes JOIN ports "
    "ON ports.standard_attr_id = standardattributes.id WHERE ports.id = %s"
)
#: Of the second adapter.
OTHER_SLOT = "0000:c1:00.2"


@pytest.fixture
def network(neutron):
    return made(neutron.network(0x101))["id"]


@pytest.fixture
def port(neutron, network):
    return made(neutron.port(network))["id"]


def members(neutron):
    """Port, GUID, P_Key, wanted, status of each row."""
    return [
        (one["port_id"], one["guid"], one["pkey"], one["wanted"], one["port_status"])
        for one in neutron.desired()["members"]
    ]


def rows(neutron):
    return [one["row"] for one in neutron.desired()["members"]]


def wait_for_status(neutron, port, status, seconds=60.0):
    deadline = time.monotonic() + seconds
    while (found := neutron.get_port(port)["status"]) != status:
        assert time.monotonic() < deadline, f"{port} is {found}, not {status}"
        time.sleep(0.1)


def wait_for_event(neutron, port, event, times=1, seconds=60.0):
    deadline = time.monotonic() + seconds
    while neutron.events(port).count(event) < times:
        assert time.monotonic() < deadline, neutron.events(port)
        time.sleep(0.1)


PLUGGED, FAILED = ("network-vif-plugged", "completed"), ("network-vif-plugged", "failed")


# -- bind ------------------------------------------------------------------------------


def test_a_block_of_ovn_does_not_keep_a_member_down(neutron, port):
    """Before: ERROR in a devstack. OVN has a block for each port on a host, and never ends it."""
    assert neutron.bind(port, api=1)[0] == 200
    neutron.rows(
        "INSERT INTO provisioningblocks (standard_attr_id, entity) "
        "SELECT standard_attr_id, 'L2' FROM ports WHERE id = %s",
        port,
    )
    with neutron.agent():
        wait_for_status(neutron, port, "ACTIVE")


def test_the_answer_to_a_bind_says_active(neutron, port):
    with neutron.agent():
        status, document = neutron.bind(port)
    found = document["port"]
    assert (status, found["status"]) == (200, "ACTIVE")
    assert found["binding:vif_type"] == "hostdev_physical"
    details = found["binding:vif_details"]
    assert (details["pkey"], details["guid"]) == ("0x0101", GUID)
    assert details["service_level"] == 1
    assert members(neutron) == [(port, GUID, 0x101, True, "ACTIVE")]
    assert neutron.desired()["policies"] == [
        {"pkey": 0x101, "service_level": 1, "rate": None, "mtu": None}
    ]
    assert neutron.rows("SELECT entity FROM provisioningblocks") == ()


def test_a_port_that_is_made_with_a_host_is_bound_the_same(neutron, network):
    bound = {
        "binding:host_id": "cn0",
        "device_owner": "compute:nova",
        "device_id": str(uuid.uuid4()),
        "binding:profile": {"pci_slot": "0000:81:00.2"},
    }
    with neutron.agent():
        found = made(neutron.port(network, role="nova", **bound))
    assert found["status"] == "ACTIVE"
    assert members(neutron) == [(found["id"], GUID, 0x101, True, "ACTIVE")]


def test_no_agent_reads_back_and_the_answer_comes_all_the_same(neutron, port):
    begun = time.monotonic()
    _, document = neutron.bind(port, api=1)
    assert time.monotonic() - begun >= HASTY
    assert document["port"]["status"] == "DOWN"
    (row,) = rows(neutron)
    assert neutron.rows("SELECT entity FROM provisioningblocks") == ((f"HPC_PARTITION_{row}",),)
    assert neutron.events(port) == []
    # What changes nothing of a membership waits for none.
    begun = time.monotonic()
    neutron.processes[0].http("nova", "PUT", f"/ports/{port}", {"port": {"name": "a"}})
    assert time.monotonic() - begun < PATIENT
    neutron.report(present=[row])
    wait_for_status(neutron, port, "ACTIVE")
    wait_for_event(neutron, port, PLUGGED)


def test_a_report_that_was_lost_half_way_is_said_again(neutron, port):
    """The block is gone, the status is not written: a server has ended between the two."""
    neutron.bind(port, api=1)
    neutron.rows("DELETE FROM provisioningblocks")
    assert neutron.get_port(port)["status"] == "DOWN"
    neutron.report(present=rows(neutron))
    wait_for_status(neutron, port, "ACTIVE")


def test_the_event_is_said_again(neutron, port):
    with neutron.agent():
        neutron.bind(port)
    wait_for_event(neutron, port, PLUGGED)
    neutron.report(repeat=rows(neutron))
    wait_for_event(neutron, port, PLUGGED, times=2)
    neutron.unbind(port)
    neutron.report(repeat=rows(neutron))
    time.sleep(2)
    assert neutron.events(port).count(PLUGGED) == 2


def test_a_port_that_cannot_be_isolated_is_in_error_and_heals(neutron, port):
    neutron.bind(port, api=1)
    neutron.report(failed=[[rows(neutron)[0], "GUID is not on the fabric"]])
    assert neutron.get_port(port)["status"] == "ERROR"
    wait_for_event(neutron, port, FAILED)
    assert "GUID is not on the fabric" in neutron.log("second")
    neutron.report(present=rows(neutron))
    wait_for_status(neutron, port, "ACTIVE")
    # Neutron says nothing of a port that leaves ERROR: the driver does.
    wait_for_event(neutron, port, PLUGGED)


def test_a_silent_agent_ends_in_error_within_the_bound(neutron, port):
    neutron.bind(port, api=1)
    assert neutron.processes[1].call("fail_overdue_ports") == 0
    neutron.rows("UPDATE hpc_partition_members SET since = since - INTERVAL 60 SECOND")
    neutron.heartbeat(age=600)
    assert neutron.processes[1].call("fail_overdue_ports") == 1
    assert neutron.get_port(port)["status"] == "ERROR"
    assert "the fabric agent of main is not alive" in neutron.log("second")
    assert neutron.processes[1].call("fail_overdue_ports") == 0


# -- who is refused --------------------------------------------------------------------


@pytest.mark.parametrize("age", [None, 600])
def test_without_a_live_agent_nothing_is_bound(neutron, port, age):
    neutron.rows("DELETE FROM agents")
    if age:
        neutron.heartbeat(age=age)
    status, why = reason(neutron.bind(port))
    assert status == 503
    assert "no fabric agent is alive" in why
    found = neutron.get_port(port)
    assert (found["binding:host_id"], found["binding:vif_type"]) == ("", "unbound")
    assert members(neutron) == []


def test_an_agent_of_another_fabric_is_none(neutron, port):
    neutron.rows("DELETE FROM agents")
    neutron.heartbeat("other")
    assert neutron.bind(port)[0] == 503


def test_a_key_that_became_the_administrators_is_not_bound(neutron, port):
    neutron.heartbeat(foreign_pkeys=[0x101])
    assert neutron.bind(port)[0] == 409
    assert members(neutron) == []


@pytest.mark.parametrize(
    ("host", "profile"),
    [("cn9", {"pci_slot": "0000:81:00.2"}), ("cn0", {"pci_slot": "0000:99:00.0"}), ("cn0", {})],
)
def test_a_device_that_the_inventory_lacks_is_refused(neutron, port, host, profile):
    status, why = reason(neutron.bind(port, host, **{"binding:profile": profile}))
    assert status == 409
    assert "inventory" in why
    assert host not in why
    assert neutron.get_port(port)["binding:host_id"] == ""
    assert f"host {host}" in neutron.log("first")


def test_two_networks_never_share_a_physical_port(neutron, network, port):
    other = made(neutron.network(0x102))["id"]
    stranger = made(neutron.port(other))["id"]
    with neutron.agent():
        neutron.bind(port)
        # Another function of the same physical port.
        status, why = reason(neutron.bind(stranger, slot="0000:81:00.3", api=1))
        assert status == 409
        assert "two networks never share a port" in why
        for secret in (network, port, GUID, "cn0", "0000:81"):
            assert secret not in why
        found = neutron.get_port(stranger)
        assert (found["binding:host_id"], found["binding:vif_type"]) == ("", "unbound")
        assert f"is network {network}'s" in neutron.log("second")
        # The other adapter is free, and so is the same slot of another host.
        assert neutron.bind(stranger, slot=OTHER_SLOT)[1]["port"]["status"] == "ACTIVE"
        assert neutron.bind(stranger, host="cn1")[1]["port"]["status"] == "ACTIVE"


def test_ports_of_one_network_share_a_physical_port(neutron, network, port):
    second = made(neutron.port(network))["id"]
    with neutron.agent():
        neutron.bind(port)
        assert neutron.bind(second, slot="0000:81:00.3")[1]["port"]["status"] == "ACTIVE"
        neutron.unbind(port)
        # The one that stays keeps the GUID from others.
        stays = [(second, GUID, 0x101, True, "ACTIVE")]
        wait_until(lambda: members(neutron) == stays, "only the second port is a member")
    stranger = made(neutron.port(made(neutron.network(0x102))["id"]))["id"]
    assert neutron.bind(stranger)[0] == 409


def test_a_port_waits_until_the_last_server_is_rid_of_the_device(neutron, port):
    stranger = made(neutron.port(made(neutron.network(0x102))["id"]))["id"]
    with neutron.agent():
        neutron.bind(port)
    neutron.unbind(port)
    begun = time.monotonic()
    status, why = reason(neutron.bind(stranger, api=1))
    assert status == 409
    assert "not rid of it yet" in why
    assert time.monotonic() - begun >= HASTY
    # As Neutron leaves a port whose commit was refused; the same request heals it.
    assert neutron.get_port(stranger)["binding:vif_type"] == "unbound"
    with neutron.agent():
        assert neutron.bind(stranger)[1]["port"]["status"] == "ACTIVE"
    assert [one[:3] for one in members(neutron)] == [(stranger, GUID, 0x102)]


def test_a_second_binding_is_refused(neutron, port):
    with neutron.agent():
        neutron.bind(port)
    profile = {"pci_slot": "0000:81:00.2"}
    body = {"binding": {"host": "cn1", "vnic_type": "direct", "profile": profile}}
    status, _ = neutron.processes[0].http("nova", "POST", f"/ports/{port}/bindings", body)
    assert status >= 400
    assert "no live migration" in neutron.log("first")
    assert neutron.get_port(port)["status"] == "ACTIVE"
    assert [one[0] for one in members(neutron)] == [port]


def test_a_port_of_no_device_is_not_bound(neutron, network):
    """Routers and DHCP have such ports."""
    bound = {"binding:vnic_type": "normal", "binding:host_id": "net0"}
    found = made(neutron.port(network, role="nova", device_owner="network:dhcp", **bound))
    assert found["binding:vif_type"] == "binding_failed"
    assert members(neutron) == []


# -- changes ---------------------------------------------------------------------------


def test_unbind_and_delete_return_at_once_and_leave_a_row(neutron, port):
    with neutron.agent():
        neutron.bind(port)
    begun = time.monotonic()
    assert neutron.unbind(port)[0] == 200
    assert time.monotonic() - begun < PATIENT
    assert members(neutron) == [(port, GUID, 0x101, False, "DOWN")]
    assert neutron.processes[0].http("red", "DELETE", f"/ports/{port}")[0] == 404
    assert neutron.processes[0].http("nova", "DELETE", f"/ports/{port}")[0] == 204
    assert members(neutron) == [(port, GUID, 0x101, False, None)]
    # A report on what is wanted takes nothing away.
    (row,) = rows(neutron)
    neutron.rows("UPDATE hpc_partition_members SET wanted = 1")
    neutron.report(gone=[row])
    assert rows(neutron) == [row]
    neutron.rows("UPDATE hpc_partition_members SET wanted = 0")
    neutron.report(gone=[row, row + 1000])
    assert rows(neutron) == []
    assert neutron.rows("SELECT * FROM hpc_partition_guids") == ()


def test_another_host_takes_the_port_down_and_up(neutron, port):
    with neutron.agent():
        neutron.bind(port)
    (first,) = rows(neutron)
    _, document = neutron.bind(port, host="cn1", api=1)
    assert document["port"]["status"] == "DOWN"
    assert [one[1:] for one in members(neutron)] == [
        (GUID, 0x101, False, "DOWN"),
        ("0x0002c90000200101", 0x101, True, "DOWN"),
    ]
    # A late report on the former membership says nothing of this one.
    neutron.report(present=[first])
    assert neutron.get_port(port)["status"] == "DOWN"
    neutron.agent_round()
    wait_for_status(neutron, port, "ACTIVE")
    assert [one[1] for one in members(neutron)] == ["0x0002c90000200101"]
    wait_for_event(neutron, port, ("network-vif-unplugged", "completed"))


def test_a_port_that_is_switched_off_is_no_member(neutron, port):
    with neutron.agent():
        neutron.bind(port)

    def switch(up):
        body = {"port": {"admin_state_up": up}}
        return neutron.processes[0].http("nova", "PUT", f"/ports/{port}", body)[1]["port"]

    (first,) = rows(neutron)
    assert switch(False)["status"] == "DOWN"
    assert members(neutron) == [(port, GUID, 0x101, False, "DOWN")]
    neutron.report(present=[first])
    assert neutron.get_port(port)["status"] == "DOWN"
    neutron.agent_round()
    assert members(neutron) == []
    with neutron.agent():
        switch(True)
        wait_for_status(neutron, port, "ACTIVE")
    assert [one[1:] for one in members(neutron)] == [(GUID, 0x101, True, "ACTIVE")]


def test_switching_off_and_on_does_not_fill_the_table(neutron, port):
    neutron.bind(port, api=1)
    for up in (False, True, False, True):
        body = {"port": {"admin_state_up": up}}
        neutron.processes[1].http("nova", "PUT", f"/ports/{port}", body)
    assert members(neutron) == [(port, GUID, 0x101, True, "DOWN")]


def test_a_port_that_went_without_the_driver_leaves_no_member(neutron, port):
    with neutron.agent():
        neutron.bind(port)
    neutron.processes[1].call("look_at_members")
    assert members(neutron) == [(port, GUID, 0x101, True, "ACTIVE")]
    neutron.rows(DELETE_PORT, port)
    neutron.processes[1].call("look_at_members")
    assert members(neutron) == [(port, GUID, 0x101, False, None)]


def test_a_port_that_is_off_when_it_is_bound_is_no_member(neutron, network):
    port = made(neutron.port(network, admin_state_up=False))["id"]
    begun = time.monotonic()
    found = neutron.bind(port)[1]["port"]
    assert time.monotonic() - begun < PATIENT
    assert (found["binding:vif_type"], found["status"]) == ("hostdev_physical", "DOWN")
    assert members(neutron) == []


def test_a_whole_adapter_has_its_own_guid(neutron, network):
    port = made(neutron.port(network, **{"binding:vnic_type": "direct-physical"}))["id"]
    with neutron.agent():
        found = neutron.bind(port, slot="0000:c1:00.0")[1]["port"]
    assert found["binding:vif_details"]["guid"] == "0x0002c90000200011"
    assert (found["binding:vif_type"], found["status"]) == ("hostdev_physical", "ACTIVE")
    assert neutron.unbind(port)[0] == 200


@pytest.mark.parametrize("place", ["mac_address", "device_mac_address"])
def test_an_adapter_with_an_ipoib_interface_cannot_be_bound(neutron, network, place):
    """Nova takes the address of the interface from the host: 20 bytes, which Neutron refuses."""
    port = made(neutron.port(network, **{"binding:vnic_type": "direct-physical"}))["id"]
    long = "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:00:00:20:00:31"
    more = (
        {"mac_address": long}
        if place == "mac_address"
        else {"binding:profile": {"pci_slot": "0000:c1:00.0", place: long}}
    )
    status, _ = neutron.bind(port, slot="0000:c1:00.0", **more)
    assert status == (400 if place == "mac_address" else 500)
    assert neutron.get_port(port)["binding:vif_type"] == "unbound"
    assert members(neutron) == []


# -- rights ----------------------------------------------------------------------------


def share(neutron, network, project):
    body = {
        "object_type": "network",
        "object_id": network,
        "action": "access_as_shared",
        "target_tenant": project,
    }
    made(neutron.processes[0].http("nova", "POST", "/rbac-policies", {"rbac_policy": body}))


def membership(neutron, port):
    (found,) = [one for one in neutron.desired()["members"] if one["port_id"] == port]
    return found["membership"]


def tag(neutron, role, kind, name):
    path = f"/{kind}/{name}/tags/hpc-limited"
    return neutron.processes[0].http(role, "PUT", path)[0]


def test_ports_of_other_projects_on_a_shared_network(neutron):
    network = made(neutron.network(0x110, project_id=RED))["id"]
    assert neutron.port(network, role="blue")[0] == 404
    share(neutron, network, BLUE)
    guest = made(neutron.port(network, role="blue"))["id"]
    own = made(neutron.port(network, role="red"))["id"]
    with neutron.agent():
        assert neutron.bind(guest)[1]["port"]["status"] == "ACTIVE"
        assert membership(neutron, guest) == "full"
        # The owner of the network limits the others; they cannot take that back.
        assert tag(neutron, "blue", "networks", network) in (403, 404)
        assert tag(neutron, "red", "networks", network) in (200, 201)
        neutron.bind(guest, host="cn1")
        assert membership(neutron, guest) == "limited"
        neutron.bind(own, host="cn2")
        assert membership(neutron, own) == "full"


def test_a_project_limits_its_own_port(neutron):
    network = made(neutron.network(0x111, project_id=RED))["id"]
    port = made(neutron.port(network, role="red"))["id"]
    assert tag(neutron, "blue", "ports", port) in (403, 404)
    assert tag(neutron, "red", "ports", port) in (200, 201)
    with neutron.agent():
        neutron.bind(port)
    assert membership(neutron, port) == "limited"


@pytest.mark.parametrize(
    "wish",
    [
        {"binding:profile": {"guid": GUID}},
        {"binding:host_id": "cn0"},
        {"mac_address": "fa:16:3e:00:00:77"},
    ],
)
def test_a_project_cannot_set_what_a_guid_comes_from(neutron, wish):
    network = made(neutron.network(0x112, project_id=RED))["id"]
    port = made(neutron.port(network, role="red"))["id"]
    status, _ = neutron.processes[0].http("red", "PUT", f"/ports/{port}", {"port": wish})
    assert status == 403
    _, seen = neutron.processes[0].http("red", "GET", f"/ports/{port}")
    assert "binding:vif_details" not in seen["port"]


# -- the agent's calls -----------------------------------------------------------------


def test_a_fabric_that_no_option_names_is_refused(neutron):
    with pytest.raises(Exception, match="physical_networks of Neutron's server names no such"):
        neutron.desired("mian")
    with pytest.raises(Exception, match="names no such"):
        neutron.report("mian", present=[1])


def test_fabrics_have_rows_of_their_own(neutron, port):
    with neutron.agent():
        neutron.bind(port)
    assert neutron.desired("other")["members"] == []
    neutron.rows("UPDATE hpc_partition_members SET wanted = 0")
    neutron.report("other", gone=rows(neutron))
    assert len(rows(neutron)) == 1
