# SPDX-License-Identifier: Apache-2.0
"""A node of the cloud dies: its owner's cluster heals, and the operator evacuates its servers.

The node's QEMU is killed, as a host loses its power. The tests are in an order.
"""

import json
import threading
import time
from pathlib import Path

import psutil
import pytest

from nova_hpc_lab.services import control_plane
from nova_hpc_lab.state import Paths

SHAPE = Path(__file__).with_name("two-nodes.yaml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 2), id="two-nodes")], indirect=True),
]

FLAVOR = "lab.dead"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:affinity": "root",
}
CLUSTER = "ill"
FIRST, SECOND, ALONE = f"{CLUSTER}-1", f"{CLUSTER}-2", "alone"
#: Seconds within which the owner has to learn of a dead host.
TOLD = 60
#: Nova counts a service as down that has not reported for so many seconds; it reports every ten.
DOWN_TIME = 45


@pytest.fixture(scope="module")
def members(lab):
    """Two members, one on each node; Nova notices a dead node within a minute."""
    paths = Paths.from_environment(lab.environ)
    config = paths.config / "nova" / "nova.conf"
    lines = config.read_text().splitlines()
    changed = [
        f"service_down_time = {DOWN_TIME}" if line.startswith("service_down_time") else line
        for line in lines
    ]
    assert changed != lines
    config.write_text("\n".join(changed) + "\n")
    services = control_plane(paths, lab.settings)
    for name in ("nova-api", "nova-scheduler", "nova-conductor"):
        services[name].process.stop()
        services[name].start(threading.Event())
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    words = (f"--property={key}={value}" for key, value in PROPERTIES.items())
    size = ("--vcpus", "1", "--ram", "384", "--disk", "1")
    lab.openstack("flavor", "create", FLAVOR, *size, *words)
    image = ("--flavor", FLAVOR, "--image", "hpc-guest", "--nic", "net-id=lab")
    _cluster(lab, "create", CLUSTER, "--members", "2", *image)
    assert sorted(_hosts(lab).values()) == ["hpc1", "hpc2"]
    yield
    lab.openstack("hpc", "cluster", "delete", CLUSTER, "--timeout", "900", check=False)
    lab.openstack("server", "delete", "--wait", ALONE, check=False)
    lab.openstack("flavor", "delete", FLAVOR)


def _cluster(lab, *words, status=0):
    done = lab.client("hpc", "cluster", *words, "--timeout", "900")
    print(f"$ openstack hpc cluster {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def _drain(lab, *words, status):
    config = lab.state / "etc" / "nova" / "nova.conf"
    done = lab.run("drain", *words, "--config-file", str(config))
    print(f"$ nova-hpc drain {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def _hosts(lab):
    """Name of a server -> its host."""
    return {one.name: one.compute_host for one in lab.connection.compute.servers(details=True)}


def _ids(lab):
    return {one["Name"]: one["ID"] for one in lab.servers()}


def _kill_node(lab, name):
    """End a node's supervisor and its QEMU without a warning."""
    (status,) = (one for one in lab.status()["nodes"] if one["name"] == name)
    for pid in (status["supervisor_pid"], status["qemu_pid"]):
        psutil.Process(pid).kill()
    return time.monotonic()


def _until_down(lab, name):
    def is_down():
        rows = json.loads(lab.openstack("compute", "service", "list", "--host", name, "-f", "json"))
        return [row["State"] for row in rows] == ["down"]

    lab.until(is_down, f"{name} is down", 4 * TOLD)


def test_a_node_that_dies_is_told_and_its_member_healed(lab, members):
    hosts, ids = _hosts(lab), _ids(lab)
    (lost,) = (name for name, host in hosts.items() if host == "hpc2")
    (kept,) = hosts.keys() - {lost}
    began = _kill_node(lab, "hpc2")

    def faults():
        shown = lab.openstack("hpc", "cluster", "show", CLUSTER, "-f", "json")
        return json.loads(shown)["faults"]

    lab.until(lambda: faults() == {lost: ["host"]}, "the owner reads it", 4 * TOLD)
    passed = time.monotonic() - began
    print(f"RESULT: a dead node: told after {passed:.0f} s", flush=True)
    assert passed < TOLD
    began = time.monotonic()
    _cluster(lab, "heal", CLUSTER, "--force")
    print(f"RESULT: {lost} healed after {time.monotonic() - began:.0f} s", flush=True)
    assert _hosts(lab) == {lost: "hpc1", kept: "hpc1"}
    after = _ids(lab)
    assert after[kept] == ids[kept]
    assert after[lost] != ids[lost]
    lab.report(lost)
    assert faults() == {}


def test_a_dead_hosts_server_without_a_place_stays_and_moves_when_there_is_one(lab, members):
    lab.up("--nodes", "2", "--shape", str(SHAPE))
    config = ("--flavor", FLAVOR, "--image", "hpc-guest", "--network", "lab", "--wait")
    lab.openstack("server", "create", *config, ALONE)
    server = _ids(lab)[ALONE]
    assert _hosts(lab)[ALONE] == "hpc2"
    lab.report(ALONE)
    assert "is up" in _drain(lab, "hpc2", "--dead", status=2)
    _kill_node(lab, "hpc2")
    _until_down(lab, "hpc2")

    # The other node is full.
    said = _drain(lab, "hpc2", "--dead", "--yes", status=1)
    assert "stays:" in said
    shown = lab.show(ALONE)
    assert (shown["status"], _hosts(lab)[ALONE]) == ("ACTIVE", "hpc2")

    _cluster(lab, "delete", CLUSTER)
    began = time.monotonic()
    said = _drain(lab, "hpc2", "--dead", "--yes", status=0)
    print(f"RESULT: evacuated after {time.monotonic() - began:.0f} s", flush=True)
    assert "1 server has left hpc2" in said
    lab.until(lambda: lab.show(ALONE)["status"] == "ACTIVE", "it runs")
    assert (_ids(lab)[ALONE], _hosts(lab)[ALONE]) == (server, "hpc1")
    print(f"RESULT: the evacuated server has {lab.report(ALONE).functions}", flush=True)
    # The node comes back, and Nova removes the old guest.
    lab.up("--nodes", "2", "--shape", str(SHAPE))
    command = "virsh -c qemu:///system list --name --all"
    lab.until(lambda: not lab.inside(command, "hpc2").strip(), "the old guest is gone")
    assert _hosts(lab)[ALONE] == "hpc1"
