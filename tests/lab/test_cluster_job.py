# SPDX-License-Identifier: Apache-2.0
"""A cluster's life as its user has it: from ``create`` to ``mpirun``, off for the night, shelved.

Two nodes below one leaf, members with a GPU each, and a head. Nova, its metadata service, libvirt,
QEMU, sshd and Open MPI are real. The tests are in an order.
"""

import collections
import json
import threading
from pathlib import Path

import pytest

from tests.lab import cluster_guest, guest_network, nested_guest
from tests.lab.guest_network import GuestAwayError

SHAPE = Path(__file__).with_name("two-nodes-of-members.yaml")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 2), id="two-nodes")], indirect=True),
]

NODES = ("hpc1", "hpc2")
FLAVOR, HEAD = "lab.job", "lab.head"
KEY = "lab-job"
OTHER = "lab-other"
SIZE = ("--vcpus", "1", "--ram", "512", "--disk", "1")
PROPERTIES = {"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048"}
MEMBER = {
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:affinity": "root",
    "hpc:fabric": "leaf",
}
WANTED = ("--flavor", FLAVOR, "--image", cluster_guest.IMAGE, "--network", "lab", "--key-name", KEY)
LEAF = "nova_hpc_fabric: 1\nname: lab\ndomains:\n- {spine: s1, leaf: l1, hosts: 'hpc[1-2]'}\n"
PATIENCE = 900
MINUTE = 60
#: Looks in a row at a guest that has to be up, until it is started again.
FROZEN = 12


class Cluster:
    """The members, as the login user of each sees them."""

    def __init__(self, lab, network):
        self.lab = lab
        self.network = network
        self.silent = collections.Counter()

    def run(self, name, command, seconds=PATIENCE):
        """Status and output of a shell's command of the user's in a member."""
        (server,) = self.lab.connection.compute.servers(name=f"^{name}$")
        (port,) = self.lab.connection.network.ports(device_id=server.id)
        words = ("setpriv", "--reuid=debian", "--regid=debian", "--init-groups", "sh", "-c")
        told = f"export HOME=/home/debian USER=debian; cd; {command}"
        address = guest_network.address_of(port)
        status, said, wrong = self.network.run(address, *words, told, seconds=seconds)
        print(f"$ [{name}] {command}\n{said}{wrong}status {status}", flush=True)
        return status, said

    def knows(self, name, others):
        """Whether a member reaches all others by ssh, without a question."""
        self.network.sync()
        for each in others:
            try:
                status, _ = self.run(name, f"ssh {each} true", 60)
            except GuestAwayError:
                return False
            if status:
                self._restart_frozen(each)
                return False
        return True

    def _restart_frozen(self, name):
        """Once a guest has frozen, as some do in emulation, no wait helps: its agent is silent."""
        try:
            self.run(name, "true", 60)
        except GuestAwayError:
            self.silent[name] += 1
            if self.silent[name] % FROZEN == 0:
                print(f"RESULT: {name} is silent: rebooted", flush=True)
                self.lab.openstack("server", "reboot", "--hard", name)

    def change(self, *words, status=0):
        """A command of the user's; meanwhile ports come up."""
        end = threading.Event()

        def serve():
            while not end.wait(5):
                self.network.sync()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            done = self.lab.client("hpc", "cluster", *words, "--timeout", str(PATIENCE))
        finally:
            end.set()
            thread.join()
        print(f"$ openstack hpc cluster {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)
        assert done.returncode == status
        return done

    def assert_job_runs(self, members):
        """One ssh to the head, and Open MPI runs on all members."""
        self.lab.until(lambda: self.knows("train-head", members), "the head knows all", PATIENCE)
        status, said = self.run("train-head", "mpirun -hostfile /etc/nova-hpc/hosts hostname")
        assert (status, sorted(said.split())) == (0, sorted(members))


@pytest.fixture(scope="module")
def cluster(lab, tmp_path_factory):
    path = tmp_path_factory.mktemp("map") / "map.yaml"
    path.write_text(LEAF)
    assert lab.run("fabric", "sync", str(path), "--yes").returncode == 0
    lab.openstack("keypair", "create", KEY)
    lab.openstack("project", "create", OTHER)
    lab.openstack("role", "add", "--project", OTHER, "--user", "admin", "member")
    cluster_guest.upload_guest(lab)
    for name, properties in ((FLAVOR, PROPERTIES | MEMBER), (HEAD, PROPERTIES)):
        words = (f"--property={key}={value}" for key, value in properties.items())
        lab.openstack("flavor", "create", name, *SIZE, *words)
    try:
        with guest_network.open_network(lab) as network:
            yield Cluster(lab, network)
    finally:
        for each in json.loads(lab.openstack("hpc", "cluster", "list", "-f", "json")):
            lab.openstack("hpc", "cluster", "delete", each["ID"], check=False)
        for server in lab.connection.compute.servers(all_projects=True):
            lab.openstack("server", "delete", "--wait", server.id, check=False)
        for name in (FLAVOR, HEAD):
            lab.openstack("flavor", "delete", name, check=False)
        lab.openstack("keypair", "delete", KEY, check=False)
        lab.openstack("project", "delete", OTHER, check=False)
        nested_guest.delete_guest(lab, cluster_guest.IMAGE)
        for each in json.loads(lab.openstack("aggregate", "list", "-f", "json")):
            for node in NODES:
                lab.openstack("aggregate", "remove", "host", each["Name"], node, check=False)
            lab.openstack("aggregate", "delete", each["Name"])


def test_a_job_runs_after_create(cluster):
    cluster.change("create", "train", "--members", "2", "--head", HEAD, *WANTED)
    hosts = {each.name: each.compute_host for each in cluster.lab.connection.compute.servers()}
    print(f"RESULT: {hosts}")
    assert set(hosts.values()) == set(NODES)
    cluster.assert_job_runs(["train-1", "train-2"])


def test_a_later_member_answers_all_others_within_a_minute(cluster):
    cluster.change("scale", "train", "--members", "3")
    old = ["train-head", "train-1", "train-2"]
    cluster.lab.until(lambda: cluster.knows("train-3", old), "train-3 is up", PATIENCE)
    for name in old:
        cluster.lab.until(lambda name=name: cluster.knows(name, ["train-3"]), f"{name}", MINUTE)
    cluster.assert_job_runs(["train-1", "train-2", "train-3"])
    ranks = "mpirun -rankfile /etc/nova-hpc/rankfile hostname"
    status, said = cluster.run("train-2", ranks)
    assert (status, len(said.split())) == (0, 3)


def test_no_other_host_key_is_taken(cluster):
    wrong = "sed s/AAAAI...../AAAAIAAAAA/ /etc/nova-hpc/known_hosts >wrong"
    assert cluster.run("train-1", wrong)[0] == 0
    assert cluster.run("train-1", "ssh -o GlobalKnownHostsFile=wrong train-2 true")[0] == 255


def test_the_job_runs_again_after_a_night(cluster):
    cluster.change("stop", "train")
    states = {each.name: each.status for each in cluster.lab.connection.compute.servers()}
    assert set(states.values()) == {"SHUTOFF"}
    cluster.change("start", "train")
    cluster.assert_job_runs(["train-1", "train-2", "train-3"])


def test_a_shelved_cluster_comes_back_whole_or_not_at_all(cluster):
    lab = cluster.lab
    if not list(lab.connection.compute.servers()):
        # This test alone.
        cluster.change("create", "train", "--members", "3", "--head", HEAD, *WANTED)
    cluster.change("shelve", "train")
    # Another project takes two of the four GPUs.
    stranger = ("--flavor", FLAVOR, "--image", cluster_guest.IMAGE, "--nic", "none")
    for name in ("other-1", "other-2"):
        done = lab.client(
            *("--os-project-name", OTHER, "server", "create", name, "--wait", *stranger)
        )
        assert done.returncode == 0, done.stderr
    refused = cluster.change("unshelve", "train", status=1)
    assert "cluster train does not fit into its leaf l-" in refused.stderr
    assert "2 of 3 members fit" in refused.stderr
    states = {each.name: each.status for each in lab.connection.compute.servers()}
    assert set(states.values()) == {"SHELVED_OFFLOADED"}
    for server in lab.connection.compute.servers(all_projects=True, name="^other-"):
        lab.openstack("server", "delete", "--wait", server.id)
    cluster.change("unshelve", "train")
    cluster.assert_job_runs(["train-1", "train-2", "train-3"])


def test_a_cluster_from_a_snapshot_has_its_disks(cluster):
    """One member and a head: each image is a disk that goes through Glance twice."""
    lab = cluster.lab
    for each in json.loads(lab.openstack("hpc", "cluster", "list", "-f", "json")):
        cluster.change("delete", each["ID"])
    cluster.change("create", "old", "--members", "1", "--head", HEAD, *WANTED)
    lab.until(lambda: cluster.knows("old-head", ["old-1"]), "old-1 is up", PATIENCE)
    assert cluster.run("old-1", "echo kept >mine; sync")[0] == 0
    made = json.loads(cluster.change("snapshot", "old", "-f", "json").stdout)
    states = {each.name: each.status for each in lab.connection.compute.servers()}
    assert states == {"old-1": "ACTIVE", "old-head": "ACTIVE"}
    (row,) = json.loads(lab.openstack("hpc", "snapshot", "list", "-f", "json"))
    assert (row["ID"], row["State"], row["Members"]) == (made["id"], "COMPLETE", "1")
    cluster.change("delete", "old")
    again = ("--from-snapshot", made["id"], "--head", HEAD, "--head-image", cluster_guest.IMAGE)
    cluster.change("create", "new", *again)
    lab.until(lambda: cluster.knows("new-head", ["new-1"]), "new-1 is up", PATIENCE)
    assert cluster.run("new-1", "cat mine") == (0, "kept\n")
    assert cluster.run("new-head", "cat mine")[0] != 0
    cluster.change("delete", "new")
    lab.openstack("hpc", "snapshot", "delete", made["id"])
    left = [each.name for each in lab.connection.image.images(visibility="private")]
    assert not [name for name in left if "snapshot" in name]


def test_servers_of_another_tool_become_a_cluster_and_are_let_go(cluster):
    lab = cluster.lab
    group = lab.connection.compute.create_server_group(name="stack", policy="soft-affinity")
    for name in ("web-0", "web-1"):
        lab.openstack(
            *("server", "create", name, "--wait", "--flavor", HEAD, "--image", "hpc-guest"),
            *("--nic", "none", "--hint", f"group={group.id}"),
        )
    before = {each.id: (each.metadata, each.tags) for each in lab.connection.compute.servers()}
    cluster.change("adopt", "stack", "--no-user-data")
    (row,) = json.loads(lab.openstack("hpc", "cluster", "list", "-f", "json"))
    assert (row["Name"], row["State"], row["Members"]) == ("web", "ACTIVE", "2/2")
    cluster.change("stop", "web")
    states = {each.name: each.status for each in lab.connection.compute.servers()}
    assert states == {"web-0": "SHUTOFF", "web-1": "SHUTOFF"}
    cluster.change("adopt", "--undo", "stack")
    after = {each.id: (each.metadata, each.tags) for each in lab.connection.compute.servers()}
    assert after == before
    for server in list(lab.connection.compute.servers()):
        lab.openstack("server", "delete", "--wait", server.id)
    lab.connection.compute.delete_server_group(group)
