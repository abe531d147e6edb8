# SPDX-License-Identifier: Apache-2.0
"""Where ``ebrctl`` makes GUIDs of MACs, and the subnet manager keeps functions apart."""

import pytest

from tests.fabric.neutron_stage import PATIENT, RED
from tests.fabric.test_mechanism_networks import made, reason
from tests.fabric.test_mechanism_ports import members

MAC = "fa:16:3e:0a:0b:0c"


@pytest.fixture(scope="module")
def apart(neutron_processes):
    """The number of a third process, with such options."""
    conf = neutron_processes.write_conf(
        "third", bind_wait=PATIENT, subnet_manager="ufm", direct_vif_type="ib_hostdev"
    )
    process = neutron_processes.start(conf, "third")
    yield neutron_processes.processes.index(process)
    neutron_processes.end(process)


def test_a_project_does_not_choose_its_guid(neutron, apart):
    network = made(neutron.network(0x120, project_id=RED))["id"]
    for kind in ("direct", "normal"):
        wish = {"mac_address": MAC, "binding:vnic_type": kind}
        status, why = reason(neutron.port(network, role="red", api=apart, **wish))
        assert status == 400
        assert "gets its MAC address from the cloud" in why
    assert neutron.port(network, role="red", api=apart)[0] == 201
    body = [{"network_id": network}, {"network_id": network, "mac_address": MAC}]
    answer = neutron.processes[apart].http("red", "POST", "/ports", {"ports": body})
    assert answer[0] == 400
    # Of a network that a project cannot see it hears nothing.
    assert neutron.port(network, role="blue", api=apart, mac_address=MAC)[0] == 404
    # Elsewhere a MAC is nobody's GUID, and administrators know what they do.
    assert neutron.port(network, role="red", mac_address=MAC)[0] == 201


def test_functions_of_one_port_are_in_two_networks(neutron, apart):
    ports = []
    for number, slot in enumerate(("0000:81:00.2", "0000:81:00.3")):
        network = made(neutron.network(0x121 + number))["id"]
        mac = f"fa:16:3e:00:00:0{number}"
        port = made(neutron.port(network, mac_address=mac, api=apart))["id"]
        with neutron.agent():
            found = neutron.bind(port, slot=slot, api=apart)[1]["port"]
        assert (found["binding:vif_type"], found["status"]) == ("ib_hostdev", "ACTIVE")
        ports.append((port, f"0xfa163e000000000{number}", 0x121 + number, True, "ACTIVE"))
    assert members(neutron) == ports


def test_one_mac_in_two_networks_is_one_guid_once(neutron, apart):
    """Neutron keeps MACs apart in one network alone."""
    first, second = (
        made(neutron.port(made(neutron.network(0x130 + n))["id"], mac_address=MAC))["id"]
        for n in range(2)
    )
    with neutron.agent():
        assert neutron.bind(first, api=apart)[1]["port"]["status"] == "ACTIVE"
        assert neutron.bind(second, host="cn1", api=apart)[0] == 409
    assert [one[0] for one in members(neutron)] == [first]


def test_a_message_to_the_agents_that_is_lost_does_no_harm(neutron):
    script = (
        "import neutron, logging\n"
        "from neutron_drivers.agent_client import FabricAgentClient\n"
        "logging.basicConfig(format='%(message)s')\n"
        "FabricAgentClient().wake('main')\n"
        "print('went on')\n"
    )
    assert neutron.run_python(script).strip() == "went on"
