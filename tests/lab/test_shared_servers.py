# SPDX-License-Identifier: Apache-2.0
"""Servers that share memory on a real node: Nova, libvirt, QEMU, and Debian's MPIs in the guests.

Two servers of a group, and a stranger, all at once, with a network between them. Tests have an
order. The same guests without a cloud, one emulation less, are those of test_shared_memory.py.
"""

import json
import re
import time
from pathlib import Path

import attrs
import pytest

from tests.lab import guest_network, mpi_guest, nested_guest
from tests.lab.guest_network import GuestAwayError

SHAPE = Path(__file__).with_name("three-members.yaml")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param(SHAPE, id="three-members")], indirect=True),
]

FLAVOR = "lab.shared"
NETWORK = "lab"
#: MiB of each server's part: one rank of Open MPI with a window takes more than 8, of MPICH less.
PART = 16
PROPERTIES = (
    *("--property", "hw:cpu_policy=dedicated"),
    *("--property", "hw:mem_page_size=2048"),
    *("--property", f"hpc:shared_memory={PART}"),
    *("--property", "hpc:shared_memory_policy=required"),
)
#: Server -> its group.
SERVERS = {"first": "one", "second": "one", "stranger": "other"}
MEMBERS = ("first", "second")
#: Seconds for nested guests, on a machine that has other work.
PATIENCE = 900
START = {
    "mpich": "mpiexec.mpich -hosts {first},{second} -n 2",
    "openmpi": "mpirun.openmpi -H {first},{second} -n 2",
}
VARIABLES = (
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;"
    " set -a; . /run/nova-hpc/shared-memory.env; set +a"
)
#: A word at the end of the last part, through the device as a program has it.
MAP = "import mmap, os; f = os.open('/dev/nova-hpc-shared', os.O_RDWR); m = mmap.mmap(f, {size}); "
WORD = "of first"


@attrs.define
class Guests:
    """Three servers that run, and their addresses."""

    lab: object
    network: object
    started: float = attrs.Factory(time.monotonic)
    ids: dict = attrs.Factory(dict)
    addresses: dict = attrs.Factory(dict)

    def run(self, name, command, seconds=PATIENCE):
        """What a shell's command prints in a guest; it has to end well."""
        words = ("sh", "-c", command)
        status, said, wrong = self.network.run(self.addresses[name], *words, seconds=seconds)
        assert status == 0, f"{name}: {command}: status {status}\n{said}{wrong}"
        return said

    def answers(self, name):
        """Whether a guest is up, with the memory that it shares ready for programs."""
        self.network.sync()
        try:
            return self.run(name, "cat /run/nova-hpc/shared-memory.env; pidof sshd", 60)
        except (GuestAwayError, AssertionError):
            return False

    def describe_memory(self, name):
        """What ``nova-hpc-guest peers`` knows."""
        return json.loads(self.run(name, "nova-hpc-guest peers --format json"))

    def count_sent(self):
        """Bytes that both members have given to their network."""
        counter = "cat /sys/class/net/eth0/statistics/tx_bytes"
        return sum(int(self.run(name, counter)) for name in MEMBERS)

    def tell(self, *words):
        """A line for whoever reads the log, with the seconds since the servers were asked for."""
        print(f"RESULT: {time.monotonic() - self.started:.0f} s:", *words, flush=True)


@pytest.fixture(scope="module")
def guests(lab):
    """The servers, each in its group, of a flavor that must share memory."""
    mpi_guest.upload_guest(lab)
    lab.openstack(
        *("flavor", "create", FLAVOR, "--vcpus", "2", "--ram", "512", "--disk", "1", *PROPERTIES)
    )
    groups = {}
    for name in sorted(set(SERVERS.values())):
        words = ("server", "group", "create", "--policy", "soft-affinity", name, "-f", "json")
        groups[name] = json.loads(lab.openstack(*words))["id"]
    try:
        with guest_network.open_network(lab) as network:
            made = Guests(lab, network)
            for name, group in SERVERS.items():
                lab.openstack(
                    *("server", "create", "--flavor", FLAVOR, "--image", mpi_guest.IMAGE),
                    *("--network", NETWORK, "--hint", f"group={groups[group]}", name),
                )
            lab.until(lambda: _are_active(lab), "the servers are active")
            made.tell("all are active")
            made.ids = {one["Name"]: one["ID"] for one in lab.servers() if one["Name"] in SERVERS}
            for name, server in made.ids.items():
                (port,) = lab.connection.network.ports(device_id=server)
                made.addresses[name] = guest_network.address_of(port)
            for name in SERVERS:
                lab.until(lambda name=name: made.answers(name), f"{name} answers", PATIENCE)
            made.tell("all answer")
            yield made
    finally:
        for name in SERVERS:
            lab.openstack("server", "delete", "--wait", name, check=False)
        for group in groups.values():
            lab.openstack("server", "group", "delete", group, check=False)
        lab.openstack("flavor", "delete", FLAVOR, check=False)
        nested_guest.delete_guest(lab, mpi_guest.IMAGE)


def _are_active(lab):
    states = {one["Name"]: one["Status"] for one in lab.servers()}
    for name, state in states.items():
        assert state != "ERROR", f"{lab.show(name).get('fault')}\n{lab.tail()}"
    return all(states.get(name) == "ACTIVE" for name in SERVERS)


def _files(lab):
    return lab.inside("ls /dev/shm/nova-hpc 2>/dev/null; true").split()


def test_each_guest_has_what_it_was_promised(lab, guests):
    views = {name: guests.describe_memory(name) for name in SERVERS}
    for name, view in views.items():
        guests.tell(name, json.dumps(view))
        assert guests.run(name, "nova-hpc-guest check").startswith("As promised: ")
        assert (view["mapping"], view["part_bytes"]) == ("write-back", PART << 20)
    # The two have one memory, and the stranger has another.
    assert sorted(views[name]["part"] for name in MEMBERS) == [0, 1]
    assert views["first"]["segment"] == views["second"]["segment"]
    assert views["stranger"]["segment"] != views["first"]["segment"]


def test_a_file_for_each_group_on_one_numa_node(lab, guests):
    parts = [guests.describe_memory(name)["part"] for name in SERVERS]
    devices = [_device(lab, guests.ids[name]) for name in SERVERS]
    assert [(alias, align) for alias, align, _ in devices] == [
        (f"ua-hpc-shared-{part}", "2048") for part in parts
    ]
    paths = [path for _, _, path in devices]
    assert paths[0] == paths[1]
    assert sorted(set(paths)) == sorted(_files(lab))
    assert len(set(paths)) == 2
    for path in set(paths):
        pages = lab.inside(f"cat /proc/[0-9]*/numa_maps 2>/dev/null | grep -F {path}; true")
        node = re.search(r"\.node(\d)\.", path)[1]
        assert {each[0] for each in re.findall(r" N(\d)=(\d+)", pages)} == {node}, pages


def _device(lab, server):
    """The name, the alignment in KiB and the file of what the guest has as memory."""
    xml = lab.inside(f"virsh -c qemu:///system dumpxml {server}")
    (memory,) = re.findall(r"<memory model='nvdimm'.*?</memory>", xml, re.DOTALL)
    align = re.search(r"<alignsize unit='KiB'>(\d+)<", memory)[1]
    path = re.search(r"<path>(.+?)<", memory)[1]
    return re.search(r"<alias name='(.+?)'", memory)[1], align, path.rpartition("/")[2]


@pytest.mark.parametrize("mpi", list(START))
def test_mpi_takes_the_memory_and_not_the_network(lab, guests, mpi):
    """1,000 messages of random sizes, each compared word by word."""
    before = guests.count_sent()
    begun = time.monotonic()
    start = START[mpi].format(**guests.addresses)
    said = guests.run("first", f"{VARIABLES}; {start} mpi_exchange.{mpi} random 1000 1 2>&1")
    took, sent = time.monotonic() - begun, guests.count_sent() - before
    guests.tell(f"{mpi}: {said.strip()}; {took:.0f} s; {sent} bytes left by the network")
    assert re.search(r"^correct: 1000 messages, \d+ bytes, 2 ranks$", said, re.MULTILINE), said
    assert "nova-hpc-shm:" not in said
    # What starts a job is there, and none of more than a hundred megabytes.
    assert sent < 1_000_000


def test_a_stranger_sees_nothing_of_it(lab, guests):
    size = guests.run("first", "cat /sys/bus/dax/devices/dax0.0/size").strip()
    use = MAP.format(size=size)
    guests.run("first", f'''python3 -c "{use} m[-8:] = b'{WORD}'"''')
    read = f'''python3 -c "{use} print(m[-8:], m[:].count(b'{WORD}'))"'''
    assert guests.run("second", read) == f"b'{WORD}' 1\n"
    assert guests.run("stranger", read).endswith(" 0\n")


def test_what_would_bring_old_content_back_is_refused(lab, guests):
    uptime = float(guests.run("first", "cat /proc/uptime").split()[0])
    reason = _refusal(lab, guests.ids["first"], "suspend", "server", "suspend", "first")
    guests.tell("suspend:", reason)
    assert "A server that shares memory cannot be suspended" in reason
    # It goes on as it was.
    assert float(guests.run("first", "cat /proc/uptime").split()[0]) > uptime
    assert guests.describe_memory("first")["mapping"] == "write-back"


def _refusal(lab, server, action, *words):
    """The reason why Nova has not done something; the server is as it was."""
    lab.client(*words)

    def ended():
        events = json.loads(lab.openstack("server", "event", "list", server, "-f", "json"))
        (event,) = [one for one in events if one["Action"] == action]
        shown = json.loads(
            lab.openstack("server", "event", "show", server, event["Request ID"], "-f", "json")
        )
        found = [one for one in shown["events"] if one["finish_time"]]
        return found and not lab.show(server)["OS-EXT-STS:task_state"] and found[-1]

    event = lab.until(ended, f"{action} has been answered")
    assert lab.show(server)["status"] == "ACTIVE"
    return event["details"]


def test_nothing_is_left_of_the_memory(lab, guests):
    for name in SERVERS:
        lab.openstack("server", "delete", "--wait", name)
    lab.until(lambda: not _files(lab), "no file is left")
    guests.tell("in all")
