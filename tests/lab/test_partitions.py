# SPDX-License-Identifier: Apache-2.0
"""Two projects' clusters on one InfiniBand fabric, from their creation to the last leak check.

Nova, Neutron, the driver, the agent and the subnet manager are real, the fabric is simulated: a
port of it stands for each adapter that a node keeps for ports.
"""

import json
from pathlib import Path

import attrs
import pytest
import yaml

from nova_hpc_lab import observe
from nova_hpc_lab.fabric import net as nets
from nova_hpc_lab.fabric import partition_services
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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 1, True), id="fabric")], indirect=True),
]

#: Project -> physical network and P_Key of its network.
PROJECTS = {"red": ("ibrail0", 101), "blue": ("ibrail1", 102)}
FLAVOR = "lab.partition"
PROPERTIES = {"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048"}
PATIENCE = ("--timeout", "900")
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
