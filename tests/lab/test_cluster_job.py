# SPDX-License-Identifier: Apache-2.0
"""From ``create`` to ``mpirun``: members of a real cluster know each other, also later ones.

Nova, its metadata service, libvirt, QEMU, sshd and Open MPI are real. The tests are in an order.
"""

import json
import threading
from pathlib import Path

import pytest

from tests.lab import cluster_guest, guest_network, nested_guest
from tests.lab.guest_network import GuestAwayError

SHAPE = Path(__file__).with_name("three-members.yaml")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param(SHAPE, id="three-members")], indirect=True),
]

FLAVOR = "lab.job"
KEY = "lab-job"
PROPERTIES = (
    *("--property", "hw:cpu_policy=dedicated"),
    *("--property", "hw:mem_page_size=2048"),
)
WANTED = ("--flavor", FLAVOR, "--image", cluster_guest.IMAGE, "--network", "lab", "--key-name", KEY)
PATIENCE = 900
MINUTE = 60


class Cluster:
    """The members, as the login user of each sees them."""

    def __init__(self, lab, network):
        self.lab = lab
        self.network = network

    def run(self, name, command, seconds=PATIENCE):
        """Status and output of a shell's command of the user's in a member."""
        (server,) = self.lab.connection.compute.servers(name=f"^{name}$")
        (port,) = self.lab.connection.network.ports(device_id=server.id)
        words = ("setpriv", "--reuid=debian", "--regid=debian", "--init-groups", "sh", "-c")
        told = f"cd; export HOME=/home/debian USER=debian; {command}"
        address = guest_network.address_of(port)
        status, said, wrong = self.network.run(address, *words, told, seconds=seconds)
        print(f"$ [{name}] {command}\n{said}{wrong}status {status}", flush=True)
        return status, said

    def knows(self, name, others):
        """Whether a member reaches all others by ssh, without a question."""
        self.network.sync()
        try:
            return all(self.run(name, f"ssh {each} true", 60)[0] == 0 for each in others)
        except GuestAwayError:
            return False


@pytest.fixture(scope="module")
def cluster(lab):
    lab.openstack("keypair", "create", KEY)
    cluster_guest.upload_guest(lab)
    lab.openstack(
        *("flavor", "create", FLAVOR, "--vcpus", "2", "--ram", "512", "--disk", "1", *PROPERTIES)
    )
    try:
        with guest_network.open_network(lab) as network:
            yield Cluster(lab, network)
    finally:
        for each in json.loads(lab.openstack("hpc", "cluster", "list", "-f", "json")):
            lab.openstack("hpc", "cluster", "delete", each["ID"], check=False)
        lab.openstack("flavor", "delete", FLAVOR, check=False)
        lab.openstack("keypair", "delete", KEY, check=False)
        nested_guest.delete_guest(lab, cluster_guest.IMAGE)


def _change(cluster, *words):
    """A command of the user's; meanwhile ports come up."""
    end = threading.Event()

    def serve():
        while not end.wait(5):
            cluster.network.sync()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        print(cluster.lab.openstack("hpc", "cluster", *words, "--timeout", "900"), flush=True)
    finally:
        end.set()
        thread.join()


def test_a_job_runs_after_create(lab, cluster):
    _change(cluster, "create", "train", "--members", "2", *WANTED)
    for name, other in (("train-1", "train-2"), ("train-2", "train-1")):
        lab.until(
            lambda name=name, other=other: cluster.knows(name, [other]), f"{name} knows", PATIENCE
        )
    status, said = cluster.run("train-1", "mpirun -hostfile /etc/nova-hpc/hosts hostname")
    assert (status, sorted(said.split())) == (0, ["train-1"] * 2 + ["train-2"] * 2)
    status, said = cluster.run("train-2", "mpirun -rankfile /etc/nova-hpc/rankfile hostname")
    assert (status, len(said.split())) == (0, 4)


def test_a_later_member_answers_all_others_within_a_minute(lab, cluster):
    _change(cluster, "scale", "train", "--members", "3")
    others = ["train-1", "train-2"]
    lab.until(lambda: cluster.knows("train-3", others), "train-3 is up", PATIENCE)
    for name in others:
        lab.until(lambda name=name: cluster.knows(name, ["train-3"]), f"{name} knows", MINUTE)
    status, said = cluster.run("train-1", "mpirun -hostfile /etc/nova-hpc/hosts hostname")
    assert (status, len(set(said.split()))) == (0, 3)


def test_no_other_host_key_is_taken(cluster):
    wrong = "sed s/AAAAI...../AAAAIAAAAA/ /etc/nova-hpc/known_hosts >wrong"
    assert cluster.run("train-1", wrong)[0] == 0
    assert cluster.run("train-1", "ssh -o GlobalKnownHostsFile=wrong train-2 true")[0] == 255
