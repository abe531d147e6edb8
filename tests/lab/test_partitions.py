# SPDX-License-Identifier: Apache-2.0
"""Two projects' clusters on one InfiniBand fabric, from their creation to the last leak check.

Nova, Neutron, the driver, the agent and the subnet manager are real, the fabric is simulated: a
port of it stands for each adapter that a node keeps for ports.
"""

import json
import re
from pathlib import Path

import attrs
import pytest
import yaml

from nova_hpc_common.level import Level, common_level
from nova_hpc_lab import compare, evidence, observe
from nova_hpc_lab.fabric import net as nets
from nova_hpc_lab.fabric import partition_services
from nova_hpc_lab.node import qemu
from nova_hpc_lab.node.shape import Adapter, Gpu, Shape
from nova_hpc_lab.services import connect
from nova_hpc_lab.state import Paths
from tests.fabric.bare_fabric import BareFabric
from tests.fabric.matrix import (
    FULL,
    LIMITED_DEFAULT,
    FabricView,
    bound_ports,
    broken_invariants,
    file_members,
    guid_text,
    wrong_tables,
)

SHAPE = Path(__file__).with_name("two-rails.yaml")
#: With a GPU beside the adapters of each rail.
RAIL_SHAPE = SHAPE.with_name("gpu-rails.yaml")

pytestmark = pytest.mark.slow


def _on_node(shape):
    """A lab with one node of that shape, and a fabric."""
    return pytest.mark.parametrize(
        "lab", [pytest.param((shape, 1, True), id="fabric")], indirect=True
    )


#: Project -> physical network and P_Key of its network.
PROJECTS = {"red": ("ibrail0", 101), "blue": ("ibrail1", 102)}
FLAVOR = "lab.partition"
PROPERTIES = {"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048"}
PATIENCE = ("--timeout", "900")
CONFIGURE = "/opt/nova-hpc/venv/bin/nova-hpc configure --write /etc/nova/nova.conf.d --part compute"
#: Rail -> P_Key of the network on it.
RAILS = {0: 103, 1: 104}
#: As the page has it, small: pairs of a GPU and a port below one switch.
RAIL_PROPERTIES = {
    **PROPERTIES,
    "hw:pci_numa_affinity_policy": "required",
    "hpc:affinity": "switch",
    "hpc:group": "gpu:1,port:1",
    "hpc:guest_topology": "mirror",
}
RAIL_FLAVORS = {1: "lab.rail", 2: "lab.rails"}
GPU, VF = ":".join(qemu.GPU_IDS), ":".join(qemu.VF_IDS)
TABLES = ("hpc_partition_members", "hpc_partition_guids", "hpc_partition_keys")


class LabPlane(BareFabric):
    """The fabric of a lab, as the matrix reads it."""

    lab = None

    @property
    def admin(self):
        return self

    def call(self, method, path):
        """What Neutron answers."""
        answer = self.lab.connection.network.request(path, method)
        return answer.status_code, answer.json()


@pytest.fixture
def plane(lab):
    paths = Paths.from_environment(lab.environ)
    inventory = yaml.safe_load(partition_services.inventory_file(paths).read_text())
    net = nets.FabricNet(
        tuple(
            nets.NetPort(
                *(f"{one['host']}-{place}", int(one["guid"], 16), one["host"]),
                *(one["address"], tuple(one["functions"])),
            )
            for place, one in enumerate(inventory["ports"])
        )
    )
    found = LabPlane(paths, lab.settings, net)
    found.lab = lab
    return found


@pytest.fixture
def view(plane):
    found = FabricView(plane)
    yield found
    found.close()


def _as(lab, project, *words, status=0):
    """What a member of a project types."""
    done = lab.client("--os-project-name", project, *words)
    said = done.stdout + done.stderr
    print(f"$ openstack --os-project-name {project} {' '.join(words)}\n{said}", flush=True)
    assert done.returncode == status, said
    return done.stdout


@pytest.fixture
def networks(lab):
    """Project -> the ID of its network; the operator makes both."""
    lab.openstack("flavor", "create", FLAVOR, "--vcpus", "1", "--ram", "384", "--disk", "1")
    for name, value in PROPERTIES.items():
        lab.openstack("flavor", "set", FLAVOR, "--property", f"{name}={value}")
    found = {}
    for project, (physical, pkey) in PROJECTS.items():
        lab.openstack("project", "create", project)
        lab.openstack("role", "add", "--project", project, "--user", "admin", "member")
        made = lab.openstack(
            *("network", "create", "--project", project, "--provider-network-type", "vlan"),
            *("--provider-physical-network", physical, "--provider-segment", str(pkey)),
            *("-f", "json", project),
        )
        found[project] = json.loads(made)["id"]
        lab.openstack(
            *("subnet", "create", "--project", project, "--network", found[project]),
            *("--subnet-range", f"198.51.{pkey}.0/24", "--no-dhcp", project),
        )
    yield found
    for project, network in found.items():
        lab.client("--os-project-name", project, "hpc", "cluster", "delete", project)
        lab.openstack("network", "delete", network, check=False)
        lab.openstack("project", "delete", project)
    lab.openstack("flavor", "delete", FLAVOR)


@_on_node(SHAPE)
def test_two_projects_on_one_fabric(lab, plane, view, networks):
    for project, network in networks.items():
        _as(
            *(lab, project, "hpc", "cluster", "create", project, "--members", "2"),
            *("--flavor", FLAVOR, "--image", "hpc-guest"),
            *("--nic", f"net-id={network},vnic-type=direct", *PATIENCE),
        )
        _as(lab, project, "hpc", "cluster", "show", project)
    everybody = json.loads(lab.openstack("server", "list", "--all-projects", "-f", "json"))
    servers = [one["ID"] for one in everybody]
    hosts = {one["Name"]: lab.show(one["ID"])["OS-EXT-SRV-ATTR:host"] for one in everybody}
    print(f"RESULT: {hosts}")
    assert len(servers) == 4

    # What is true of the fabric.
    bound = bound_ports(plane)
    assert [one.status for one in bound] == ["ACTIVE"] * 4
    assert broken_invariants(plane, view) == []
    members = {
        name: sorted(one.guid for one in bound if one.pkey == key)
        for name, (_, key) in PROJECTS.items()
    }
    stranger = guid_text(plane.net.spare_ports()[1].guid)
    print("RESULT: the P_Key of the path from each port to each other one")
    names = {guid: name for name, guids in members.items() for guid in guids}
    names |= {stranger: "stranger", view.manager: "manager"}
    for source, name in names.items():
        paths = {
            guid: view.path_in_time(source, guid)
            if peer in (name, "manager") and guid != source
            else view.path(source, guid)
            for guid, peer in names.items()
            if guid != source
        }
        if name == "manager":
            continue
        cells = [hex(key) if key else "none" for key in paths.values()]
        print(f"RESULT: {name:9} {source}:", *(f"{cell:>7}" for cell in cells))
        for guid, key in paths.items():
            peer = names[guid]
            if peer == "manager":
                assert key == LIMITED_DEFAULT
            elif peer == name != "stranger":
                assert key == PROJECTS[name][1] | FULL
            else:
                assert key is None

    # Deleted, and nothing is left.
    for project in networks:
        _as(lab, project, "hpc", "cluster", "delete", project)
    lab.until(lambda: not lab.servers(), "all servers are deleted")
    lab.until(lambda: not file_members(plane), "no key is left in the file", 60)
    for network in networks.values():
        lab.openstack("network", "delete", network)
    left = _leaks(lab, plane, view, servers, networks)
    print(f"RESULT: left: {left}")
    assert not any(left.values()), left


def _leaks(lab, plane, view, servers, networks):
    """Everything that a member may leave in Neutron, Nova, Placement and on the fabric."""
    with connect(lab.settings, "neutron") as connection, connection.cursor() as cursor:
        rows = {}
        for table in TABLES:
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            (rows[table],) = cursor.fetchone()
    return {
        "ports": [
            one.id for one in lab.connection.network.ports() if one.network_id in networks.values()
        ],
        "rows of the driver": {name: count for name, count in rows.items() if count},
        "servers": [one["Name"] for one in lab.servers()],
        "devices in Nova": [
            str(attrs.asdict(record))
            for server in servers
            for record in observe.pci_records(lab.settings, server)
        ],
        "allocations": [server for server in servers if observe.allocation(lab.connection, server)],
        "members in the file": sorted(file_members(plane)),
        "tables": wrong_tables(view, []),
    }


@pytest.fixture
def rails(lab):
    """Rail -> the ID of its network; a flavor for each number of pairs."""
    for pairs, name in RAIL_FLAVORS.items():
        properties = {**RAIL_PROPERTIES, "pci_passthrough:alias": f"gpu:{pairs}"}
        words = [
            part for key, text in properties.items() for part in ("--property", f"{key}={text}")
        ]
        size = ("--vcpus", "1", "--ram", "448", "--disk", "1")
        lab.openstack("flavor", "create", name, *size, *words)
    found = {}
    for rail, pkey in RAILS.items():
        made = lab.openstack(
            *("network", "create", "--provider-network-type", "vlan"),
            *("--provider-physical-network", f"ibrail{rail}", "--provider-segment", str(pkey)),
            *("-f", "json", f"rail{rail}"),
        )
        found[rail] = json.loads(made)["id"]
        lab.openstack(
            *("subnet", "create", "--network", found[rail], "--no-dhcp", "--gateway", "none"),
            *("--subnet-range", f"198.51.{pkey}.0/24", f"rail{rail}"),
        )
    yield found
    for one in lab.servers():
        lab.openstack("server", "delete", "--wait", one["ID"], check=False)
    for one in lab.connection.network.ports():
        if one.network_id in found.values():
            lab.openstack("port", "delete", one.id, check=False)
    for network in found.values():
        lab.openstack("network", "delete", network, check=False)
    for name in RAIL_FLAVORS.values():
        lab.openstack("flavor", "delete", name)


@_on_node(RAIL_SHAPE)
def test_ports_are_on_their_rails_beside_the_gpus(lab, plane, view, rails):
    _check_node(lab)

    # GPU 0 is free, and not beside rail 1.
    one = _rail_server(lab, "one", 1)
    assert lab.show(one)["status"] == "ACTIVE", f"{lab.show(one).get('fault')}\n{lab.tail()}"
    assert _check_server(lab, plane, view, one, [1]) == ["gpu1"]
    refused = lab.show(_rail_server(lab, "refused", 1))
    print(f"RESULT: refused: {refused['fault']['message']}")
    assert refused["status"] == "ERROR"
    assert "under one switch" in refused["fault"]["message"]
    for name in ("one", "refused"):
        lab.openstack("server", "delete", "--wait", name)
        lab.openstack("port", "delete", f"{name}-rail1")
    lab.until(lambda: not file_members(plane), "no key is left in the file", 60)

    both = _rail_server(lab, "both", 0, 1)
    assert lab.show(both)["status"] == "ACTIVE", f"{lab.show(both).get('fault')}\n{lab.tail()}"
    assert _check_server(lab, plane, view, both, [0, 1]) == ["gpu0", "gpu1"]
    lab.openstack("server", "delete", "--wait", both)
    for rail in RAILS:
        lab.openstack("port", "delete", f"both-rail{rail}")
    lab.until(lambda: not file_members(plane), "no key is left in the file", 60)
    for network in rails.values():
        lab.openstack("network", "delete", network)
    left = _leaks(lab, plane, view, [one, both], rails)
    print(f"RESULT: left: {left}")
    assert not any(left.values()), left


def _check_node(lab):
    """The declaration has rails, its entries have network and tags, and nothing is left to do."""
    declared = yaml.safe_load(lab.inside("cat /etc/nova-hpc/node.yaml"))
    said = lab.inside(CONFIGURE)
    print(f"RESULT: {declared['rails']}\nRESULT: {said}")
    assert declared["rails"]["physical_network"] == "ibrail{n}"
    assert "Nothing to do.\n" in said
    text = lab.inside("cat /etc/nova/nova.conf.d/*.conf")
    entries = [
        json.loads(found) for found in re.findall(r"^device_spec = (.*)$", text, re.MULTILINE)
    ]
    inventory, _ = _devices(lab)
    functions = {one["address"]: one for one in inventory["functions"]}
    on_rails = {}
    for entry in entries:
        if network := entry.get("physical_network"):
            on_rails[entry["address"]] = network
            switch = "/".join(functions[entry["address"]]["switches"])
            assert (entry["hpc_role"], entry["hpc_switch"]) == ("vf", switch), entry
    assert on_rails == {
        address: f"ibrail{rail}"
        for rail, addresses in enumerate(declared["rails"]["adapters"])
        for address in addresses
    }


def _devices(lab):
    """The node's inventory, and its assignable functions by address."""
    inventory = json.loads(lab.inside("/opt/nova-hpc/venv/bin/nova-hpc inventory --format json"))
    return inventory, evidence.devices_of(inventory, json.loads(lab.inside("ip -json link show")))


def _rail_server(lab, name, *on):
    """A server with a GPU and a port for each of these rails; its ID."""
    ports = []
    for rail in on:
        port = f"{name}-rail{rail}"
        lab.openstack("port", "create", "--network", f"rail{rail}", "--vnic-type", "direct", port)
        ports += ["--port", port]
    lab.openstack(
        *("server", "create", "--flavor", RAIL_FLAVORS[len(on)], "--image", "hpc-guest"),
        *("--use-config-drive", *ports, "--wait", name),
        check=False,
    )
    return lab.show(name)["id"]


def _check_server(lab, plane, view, server, on):
    """Every account of a server with a pair on each of these rails; the names of its GPUs.

    Which device a server has is told by what the guest sees, and its place by the shape.
    """
    shape = [device for _, device in Shape.load(RAIL_SHAPE).devices()]
    gpus = {
        evidence.identity([one.bar_bytes], []): one.name for one in shape if isinstance(one, Gpu)
    }
    adapters = {
        evidence.identity([], [mac]): one
        for one in shape
        if isinstance(one, Adapter)
        for mac in one.vf_macs(1)
    }
    # The fabric first, the guest needs a while.
    bound = bound_ports(plane)
    assert sorted(one.pkey for one in bound) == [RAILS[rail] for rail in on]
    assert broken_invariants(plane, view) == []
    tables = view.tables([one.guid for one in bound])
    for one in bound:
        print(f"RESULT: {one.port} {one.status} {one.guid}: {tables[one.guid]}")

    # The guest, by what only hardware can tell it.
    report = lab.report(server)
    places = compare.guest_places(report)
    pairs = {}
    for each in report.functions:
        if each.ids in (GPU, VF):
            name = evidence.identity(each.bars, each.macs)
            known = gpus.get(name) or f"rail{adapters[name].rail}"
            pairs.setdefault(places[each.address].domain(Level.SWITCH), set()).add(known)
    print(f"RESULT: the guest's switches: {pairs}; {report.check}")
    assert sorted(map(sorted, pairs.values())) == [[f"gpu{rail}", f"rail{rail}"] for rail in on]
    promised = f"As promised: {2 * len(on)} devices, 1 NUMA nodes, topology mirror."
    assert (report.check_status, report.check[-1]) == (0, promised)

    # libvirt and Nova: just these devices, and on the node each pair below its switch.
    _, devices = _devices(lab)
    domain = evidence.parse_domain(lab.inside(f"virsh -c qemu:///system dumpxml {server}"))
    records = observe.pci_records(lab.settings, server)
    assert set(domain.hostdevs) == {one.address for one in records}
    given = {devices[address].identity: devices[address] for address in domain.hostdevs}
    rail_of = {name: adapters[name].rail for name in given if name in adapters}
    assert sorted(rail_of.values()) == on
    for name, rail in rail_of.items():
        (gpu,) = (one for one in given if gpus.get(one) == f"gpu{rail}")
        pair = given[name], given[gpu]
        print(f"RESULT: rail {rail}: {[(one.address, one.location.switches) for one in pair]}")
        assert common_level(one.location for one in pair) is Level.SWITCH
    decision = observe.stored_decision(lab.settings, server)
    assert (decision.asked, decision.reached) == (Level.SWITCH, Level.SWITCH)

    # Neutron: each port on the function that is on its rail.
    for port in lab.connection.network.ports(device_id=server):
        profile = port.binding_profile
        rail = rail_of[devices[profile["pci_slot"]].identity]
        print(f"RESULT: {port.name} {port.status} {port.binding_vif_type} {profile}")
        assert (port.status, port.name.rpartition("-")[2]) == ("ACTIVE", f"rail{rail}")
        assert profile["physical_network"] == f"ibrail{rail}"
    return sorted(gpus[name] for name in given if name in gpus)
