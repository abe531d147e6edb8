# SPDX-License-Identifier: Apache-2.0
"""A lease of Blazar becomes a running cluster, and ends with it.

Blazar and Nova are real, with two virtual nodes. Nova's records, libvirt's domains and a guest have
to agree on the devices.
"""

import datetime
import json
import re
import sys
from pathlib import Path

import pytest

from nova_hpc_lab import evidence, observe
from nova_hpc_lab.node import qemu
from tests.lab.blazar_services import FREEPOOL, BlazarServices

SHAPE = Path(__file__).with_name("two-nodes.yaml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 2), id="two-nodes")], indirect=True),
]

NODES = ("hpc1", "hpc2")
FLAVOR = "lab.leased"
#: Each member takes all GPUs of a node, so a cluster of two has both nodes.
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "preferred",
    "pci_passthrough:alias": "gpu:2",
    "hpc:affinity": "host",
    "hpc:fabric": "leaf",
}
PROJECT, USER, PASSWORD = "climate", "climate-user", "climate-password"
GPU = ":".join(qemu.GPU_IDS)
#: Minutes from the creation of the lease to its begin, and from there to its end.
AHEAD, LONG = 2, 9


@pytest.fixture(scope="module")
def blazar(lab, tmp_path_factory):
    """Both nodes in one leaf and in Blazar's freepool, and a project of its own."""
    words = [part for key in PROPERTIES for part in ("--property", f"{key}={PROPERTIES[key]}")]
    lab.openstack("flavor", "create", FLAVOR, "--vcpus", "1", "--ram", "384", "--disk", "1", *words)
    lab.openstack("project", "create", PROJECT)
    lab.openstack("user", "create", USER, "--password", PASSWORD)
    lab.openstack("role", "add", "--project", PROJECT, "--user", USER, "member")
    path = tmp_path_factory.mktemp("map") / "map.yaml"
    path.write_text(
        "nova_hpc_fabric: 1\nname: lab\ndomains:\n"
        f"  - {{spine: s1, leaf: l1, hosts: [{', '.join(NODES)}]}}\n"
    )
    done = lab.run("fabric", "sync", str(path), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    services = BlazarServices(lab)
    try:
        services.start()
        yield services
    finally:
        services.stop()
    lab.openstack("flavor", "delete", FLAVOR)
    lab.openstack("user", "delete", USER)
    lab.openstack("project", "delete", PROJECT)
    for each in json.loads(lab.openstack("aggregate", "list", "-f", "json")):
        for node in NODES:
            lab.openstack("aggregate", "remove", "host", each["Name"], node, check=False)
        lab.openstack("aggregate", "delete", each["Name"])
    # Other tests know of one node.
    lab.up("--nodes", "1")
    for each in lab.connection.compute.services(host=NODES[1]):
        lab.openstack("compute", "service", "delete", each.id)


def _environ_of_user(lab):
    """What the commands of the project's user need."""
    kept = {key: value for key, value in lab.client_environ.items() if not key.startswith("OS_")}
    return kept | {
        "OS_AUTH_URL": f"http://127.0.0.1:{lab.settings.ports['identity']}/v3",
        "OS_USERNAME": USER,
        "OS_PASSWORD": PASSWORD,
        "OS_PROJECT_NAME": PROJECT,
        "OS_USER_DOMAIN_ID": "default",
        "OS_PROJECT_DOMAIN_ID": "default",
        "OS_REGION_NAME": "RegionOne",
        "OS_IDENTITY_API_VERSION": "3",
        "OS_COMPUTE_API_VERSION": "2.96",
    }


def _type(lab, environ, *words):
    """The ``openstack`` command of the project's user, however it ends."""
    done = lab._run([Path(sys.prefix, "bin", "openstack"), *words], environ)
    print(f"$ openstack {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)
    return done


def _lease(flavor, begin, end, amount, name):
    reservation = f"resource_type=hpc:flavor:instance,flavor_id={flavor},amount={amount}"
    dates = ("--start-date", begin, "--end-date", end)
    return ("lease", "create", *dates, "--reservation", reservation, name)


def _used(lab):
    """The addresses of devices that servers have, by Placement."""
    providers = observe.providers(lab.connection)
    return sorted(f"{one.host} {one.address}" for one in providers if one.used)


def _time():
    return f"{datetime.datetime.now(datetime.UTC):%H:%M:%S}"


def _assert_has_gpus(lab, server):
    """Nova's records and the guest's domain have both GPUs of the node."""
    records = observe.pci_records(lab.settings, server["id"])
    host = server["OS-EXT-SRV-ATTR:host"]
    xml = lab.inside(f"virsh -c qemu:///system dumpxml {server['id']}", host)
    given = sorted(evidence.parse_domain(xml).hostdevs)
    print(f"RESULT: {_time()} {server['name']} on {host}: {given}")
    assert [(one.ids, one.status) for one in records] == [(GPU, "allocated")] * 2
    assert given == [one.address for one in records]


def _list_blazar_providers(lab):
    providers = lab.connection.placement.get("/resource_providers").json()["resource_providers"]
    return sorted(each["name"] for each in providers if each["name"].startswith("blazar_"))


def test_lease_becomes_a_running_cluster(lab, blazar):
    admin, user = lab.client_environ, _environ_of_user(lab)
    for node in NODES:
        assert blazar.type_reservation(admin, "host", "create", node).returncode == 0
    flavor = json.loads(lab.openstack("flavor", "show", FLAVOR, "-f", "json"))["id"]

    # Hosts of Blazar are for leases only.
    words = ("--flavor", FLAVOR, "--image", "hpc-guest", "--nic", "none", "--wait")
    assert _type(lab, user, "server", "create", "plain", *words).returncode != 0
    plain = json.loads(_type(lab, user, "server", "show", "plain", "-f", "json").stdout)
    assert "No valid host" in str(plain["fault"])
    assert _type(lab, user, "server", "delete", "--wait", "plain").returncode == 0

    first = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=AHEAD)
    last = first + datetime.timedelta(minutes=LONG)
    begin, end = f"{first:%Y-%m-%d %H:%M}", f"{last:%Y-%m-%d %H:%M}"
    lease = blazar.reservation(user, *_lease(flavor, begin, end, 2, "climate"))
    print(f"RESULT: {_time()} leased from {begin} to {end}")
    # All devices are leased at that time, and the refusal has the next one.
    refused = blazar.type_reservation(user, *_lease(flavor, begin, end, 1, "late"))
    assert refused.returncode != 0
    assert f"lease them from {end} to" in refused.stdout + refused.stderr

    def is_leased():
        shown = blazar.reservation(user, "lease", "show", "climate")
        return shown["status"] == "ACTIVE" and shown

    shown = lab.until(is_leased, "the lease has begun", 60 * AHEAD + 120)
    print(f"RESULT: {_time()} the lease has begun")
    (own,) = set(re.findall(r'"id": "([0-9a-f-]{36})"', shown["reservations"])) - {lease["id"]}
    words = ("--members", "2", "--image", "hpc-guest", "--network", "none", "--timeout", "900")
    made = _type(lab, user, "hpc", "cluster", "create", "climate", "--flavor", own, *words)
    assert made.returncode == 0, made.stderr
    servers = json.loads(lab.openstack("server", "list", "--all-projects", "-f", "json"))
    members = [lab.show(each["ID"]) for each in servers]
    assert {each["OS-EXT-SRV-ATTR:host"] for each in members} == set(NODES)
    assert {each["status"] for each in members} == {"ACTIVE"}
    for each in members:
        _assert_has_gpus(lab, each)
    assert len(_used(lab)) == 4
    ids = [one.ids for one in lab.report(members[0]["id"]).functions]
    print(f"RESULT: {_time()} the guest of {members[0]['name']} has {ids}")
    assert ids.count(GPU) == 2

    def is_over():
        return not json.loads(lab.openstack("server", "list", "--all-projects", "-f", "json"))

    lab.until(is_over, "Blazar deletes the servers", 60 * LONG + 300)
    print(f"RESULT: {_time()} Blazar has deleted the servers")
    lab.until(lambda: not _used(lab), "all devices are free")
    print(f"RESULT: {_time()} all devices are free")

    def has_ended():
        shown = blazar.reservation(user, "lease", "show", "climate")
        return shown["status"] == "TERMINATED"

    lab.until(has_ended, "the lease has ended")
    print(f"RESULT: {_time()} the lease has ended")
    for node in NODES:
        assert not lab.inside("virsh -c qemu:///system list --all --name", node).split()
    freepool = json.loads(lab.openstack("aggregate", "show", FREEPOOL, "-f", "json"))
    assert sorted(freepool["hosts"]) == sorted(NODES)
    assert _type(lab, user, "flavor", "show", own).returncode != 0

    # The operator takes the hosts back.
    assert _list_blazar_providers(lab) == [f"blazar_{node}" for node in NODES]
    for number in ("1", "2"):
        assert blazar.type_reservation(admin, "host", "delete", number).returncode == 0
    assert not _list_blazar_providers(lab)
    freepool = json.loads(lab.openstack("aggregate", "show", FREEPOOL, "-f", "json"))
    assert not freepool["hosts"]
