# SPDX-License-Identifier: Apache-2.0
"""A new cluster of three guests: its bad member is replaced, a slow one healed; quick in a guest.

Nova, libvirt, QEMU, ssh, sshd and sysbench are real. The bad member is what a host that was set up
wrongly makes of a server: both of its CPUs are one CPU of the host. The ways of pages cost nothing
in emulation, where each access goes through the same table, and are tried elsewhere. Servers
are in a network that the test leads to over the node's own sshd. The tests are in an order.
"""

import contextlib
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import attrs
import pytest

from nova_hpc_common.wire import member_verdict
from nova_hpc_lab import cloud
from tests.lab import accept_guest, guest_network, nested_guest
from tests.lab.guest_network import GuestAwayError

SHAPE = Path(__file__).with_name("three-members.yaml")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param(SHAPE, id="three-members")], indirect=True),
]

NETWORK = "lab"
FLAVOR = "lab.measured"
KEY = "lab-measured"
PROPERTIES = (
    *("--property", "hw:cpu_policy=dedicated"),
    *("--property", "hw:mem_page_size=2048"),
)
CLUSTER, BAD = "train", "train-2"
MEMBERS = ["train-1", "train-2", "train-3"]
#: Seconds for two measurements of guests that are emulated by an emulated machine.
PATIENCE = 5400
#: Within which quick has to end in a guest here.
QUICK = 600
#: Seconds between two looks at the ports; each look is work that disturbs what is measured.
PAUSE = 10
#: CPUs that are emulated by emulated CPUs differ by some percent from run to run: with 0.95 some
#: twenty rounds are needed, and one CPU for two gives a half. One of the bad member's CPUs alone
#: loses a quarter to what its sibling does.
FLOORS = {"cpu_one": 0.5, "cpu_all": 0.75, "mem_stream": 0.5, "mem_random": 0.4}
#: Of a machine against itself: after twelve rounds a good one had 0.92 to 1.03, and 0.88 to 1.02.
FLOORS_ALONE = {"cpu_one": 0.75, "mem_stream": 0.75}
VIRSH = "virsh -c qemu:///system"
CAUSE = "vcpus-share-cpu"


@attrs.define
class Host:
    """What goes on at the node while the cluster's user waits: ports come up, one server is bad."""

    lab: object
    network: object
    #: Servers whose CPUs are one CPU of the host.
    spoiled: list = attrs.Factory(list)
    #: Name of the server that is to be spoiled when it runs; None: none.
    wanted: str | None = None
    _end: threading.Event = attrs.Factory(threading.Event)
    #: The program in the node answers one at a time.
    _lock: threading.Lock = attrs.Factory(threading.Lock)

    def run(self, address, *words, seconds):
        """A command in a guest: its status, and what it said on either output."""
        with self._lock:
            return self.network.run(address, *words, seconds=seconds)

    def serve(self):
        """Until :meth:`end`; what fails is tried again."""
        while not self._end.wait(PAUSE):
            with contextlib.suppress(GuestAwayError, AssertionError):
                with self._lock:
                    self.network.sync()
                if self.wanted and (server := self._find_server(self.wanted)):
                    self.spoil(server)
                    self.wanted = None

    def end(self):
        self._end.set()

    def _find_server(self, name):
        """The id of a server that runs."""
        for server in self.lab.connection.compute.servers(name=name):
            if self.lab.inside(f"{VIRSH} domstate {server.id}").strip() == "running":
                return server.id
        return None

    def spoil(self, server):
        """Pin all CPUs of a server to the host's CPU that its first one has."""
        pins = self.lab.inside(f"{VIRSH} vcpupin {server}")
        first = re.search(r"^ *0 +(\d+)$", pins, re.MULTILINE)[1]
        self.lab.inside(f"{VIRSH} vcpupin {server} 1 {first} --live")
        self.spoiled.append(server)
        print(f"RESULT: both CPUs of {server} are CPU {first} of the host", flush=True)


@pytest.fixture(scope="module")
def host(lab, tmp_path_factory):
    """Image, flavor and key pair, and a node whose guests have a network; and the private key."""
    key = tmp_path_factory.mktemp("accept") / "key"
    key.write_text(lab.openstack("keypair", "create", KEY))
    key.chmod(0o600)
    key.with_name("floors").write_text(json.dumps(FLOORS))
    begun = time.monotonic()
    accept_guest.upload_guest(lab)
    print(f"\nRESULT: the image is there after {time.monotonic() - begun:.0f} s")
    lab.openstack(
        *("flavor", "create", FLAVOR, "--vcpus", "2", "--ram", "512", "--disk", "1", *PROPERTIES)
    )
    try:
        with guest_network.open_network(lab) as network:
            made = Host(lab, network)
            thread = threading.Thread(target=made.serve)
            thread.start()
            try:
                yield made, key
            finally:
                made.end()
                thread.join()
    finally:
        for each in json.loads(lab.openstack("hpc", "cluster", "list", "-f", "json")):
            lab.openstack("hpc", "cluster", "delete", each["ID"], check=False)
        lab.openstack("flavor", "delete", FLAVOR)
        lab.openstack("keypair", "delete", KEY)
        nested_guest.delete_guest(lab, accept_guest.IMAGE)


def _reach(lab, key):
    """How a user of the lab reaches members: as root, through the node."""
    (node,) = cloud.existing(nested_guest.paths_of(lab)).nodes()
    words = node.ssh_argv()
    proxy = shlex.join([*words[:-1], "-W", "%h:%p", words[-1]])
    options = {
        **{"IdentityFile": key, "IdentitiesOnly": "yes", "ProxyCommand": proxy},
        # A guest that is emulated by an emulated node takes its time for the keys.
        "ConnectTimeout": 60,
    }
    given = (("--ssh-option", f"{name}={value}") for name, value in options.items())
    return ["--login", "root", *(word for pair in given for word in pair)]


def _cluster(lab, *words, seconds=PATIENCE):
    """What ``openstack hpc cluster`` says, and its status."""
    begun = time.monotonic()
    done = subprocess.run(
        [Path(sys.prefix, "bin", "openstack"), "hpc", "cluster", *words],
        env=lab.client_environ,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    print(f"$ openstack hpc cluster {' '.join(words[:4])} ...\n{done.stdout}{done.stderr}")
    print(f"RESULT: status {done.returncode} after {time.monotonic() - begun:.0f} s", flush=True)
    return done


def _wait_for_guests(lab, room, seconds=600):
    """Wait until each server answers ssh."""
    until = time.monotonic() + seconds
    waiting = {guest_network.address_of(port) for port in lab.connection.network.ports()}
    while waiting:
        assert time.monotonic() < until, waiting
        for address in sorted(waiting):
            with contextlib.suppress(GuestAwayError, AssertionError):
                if room.run(address, "true", seconds=60)[0] == 0:
                    waiting.remove(address)
        time.sleep(PAUSE)


def _show(lab, name):
    return json.loads(lab.openstack("hpc", "cluster", "show", name, "-f", "json"))


def test_a_bad_member_is_named_and_replaced(lab, host):
    room, key = host
    room.wanted = BAD
    done = _cluster(
        *(lab, "create", CLUSTER, "--members", "3", "--flavor", FLAVOR),
        *("--image", accept_guest.IMAGE, "--nic", f"net-id={NETWORK}", "--timeout", "900"),
        *("--key-name", KEY, "--accept", "quick", "--accept-budget", "1800", *_reach(lab, key)),
        *("--floors", str(key.with_name("floors"))),
    )
    assert done.returncode == 0, f"{done.stderr}\n{lab.tail()}"
    (bad,) = room.spoiled
    # What was printed before the member was replaced: it, its cause, and no other.
    rejected, _, _ = done.stderr.partition("a rejected member is replaced, once")
    assert f"cluster {CLUSTER} is not accepted: slow" in rejected
    # The experiment is of three runs, too few to prove it of a guest that is emulated twice.
    named = rf"^{BAD}: slow: {CAUSE} \((proved|indicated)\)"
    assert re.search(named, rejected, re.MULTILINE), rejected
    assert not re.search("^train-[13]:", rejected, re.MULTILINE), rejected
    verdicts = ", ".join(f"{name}='accepted'" for name in MEMBERS)
    assert re.search(rf"^\| verdicts +\| {verdicts} ", done.stdout, re.MULTILINE)
    shown = _show(lab, CLUSTER)
    assert (shown["state"], shown["members"]) == ("ACTIVE", MEMBERS)
    assert shown["verdicts"] == dict.fromkeys(MEMBERS, "accepted")
    servers = {each["Name"]: lab.show(each["ID"]) for each in lab.servers()}
    assert sorted(servers) == MEMBERS
    assert servers[BAD]["id"] != bad
    for server in servers.values():
        verdict = member_verdict.read_member_verdict(server["properties"][member_verdict.KEY])
        assert (verdict.verdict, verdict.tier) == ("accepted", "quick")


def test_a_member_that_becomes_slow_is_told_and_healed(lab, host, tmp_path):
    room, key = host
    if not lab.servers():  # this test alone
        new = ("--members", "3", "--flavor", FLAVOR, "--image", accept_guest.IMAGE)
        net = ("--nic", f"net-id={NETWORK}", "--key-name", KEY, "--timeout", "900")
        assert _cluster(lab, "create", CLUSTER, *new, *net).returncode == 0
        _wait_for_guests(lab, room)
    before = {each["Name"]: each["ID"] for each in lab.servers()}
    room.spoil(before[BAD])
    # One CPU for two gives a half, far below this.
    floors = tmp_path / "floors"
    floors.write_text(json.dumps({**FLOORS, "cpu_all": 0.85}))
    words = (
        *("accept", CLUSTER, "--tier", "quick", "--accept-budget", "700", *_reach(lab, key)),
        *("--ssh-option", f"UserKnownHostsFile={tmp_path / 'known_hosts'}"),
        *("--ssh-option", "StrictHostKeyChecking=accept-new", "--floors", str(floors)),
    )
    for _ in range(10):
        begun = time.monotonic()
        done = _cluster(lab, *words)
        if done.returncode != 2:  # ssh of a guest that starts is not there yet
            break
        time.sleep(PAUSE)
    assert done.returncode == 1, done.stderr
    assert _show(lab, CLUSTER)["faults"] == {BAD: ["slow"]}
    print(f"RESULT: slow: told {time.monotonic() - begun:.0f} s after the measurement began")
    begun = time.monotonic()
    healed = _cluster(lab, "heal", CLUSTER, "--force")
    print(f"RESULT: {BAD} healed after {time.monotonic() - begun:.0f} s", flush=True)
    assert healed.returncode == 0, healed.stderr
    after = {each["Name"]: each["ID"] for each in lab.servers()}
    assert {name for name in after if after[name] != before[name]} == {BAD}
    assert _show(lab, CLUSTER)["faults"] == {}


def test_quick_ends_in_time_with_the_right_status(lab, host):
    room, _ = host
    (server,) = (each["ID"] for each in lab.servers() if each["Name"] == "train-1")
    (port,) = lab.connection.network.ports(device_id=server)
    address = guest_network.address_of(port)
    assert _accept(room, address) == (0, "accepted", [])
    room.spoil(server)
    assert _accept(room, address) == (1, "slow", [CAUSE])


def _accept(room, address):
    """Status, verdict and causes of quick in a guest; it ends in time."""
    begun = time.monotonic()
    floors = shlex.quote(json.dumps(FLOORS_ALONE))
    accept = "nova-hpc-guest accept --floors /run/floors --format json"
    command = f"echo {floors} >/run/floors; {accept}"
    status, said, wrong = room.run(address, "sh", "-c", command, seconds=QUICK)
    took = time.monotonic() - begun
    print(f"RESULT: quick: status {status} after {took:.0f} s\n{said}{wrong}", flush=True)
    result = json.loads(said)
    return status, result["verdict"], [cause["cause"] for cause in result["causes"]]


def test_nothing_is_left_of_the_cluster(lab, host):
    assert _cluster(lab, "delete", CLUSTER).returncode == 0
    assert not lab.servers()
    assert not list(lab.connection.network.ports())
