# SPDX-License-Identifier: Apache-2.0
"""Servers that share memory on a real node: Nova, libvirt, QEMU, and Debian's MPIs in the guests.

Two servers of a group, and a stranger, all at once, with a network between them. Tests have an
order. The node has the image before servers are asked for, as it has from a cluster's first server
on. Most is asked through one connection: a command's start takes two seconds of a CPU that guests
need. The same guests without a cloud, one emulation less, are those of test_shared_memory.py.
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
    #: The user's connection.
    cloud: object
    started: float = attrs.Factory(time.monotonic)
    ids: dict = attrs.Factory(dict)
    addresses: dict = attrs.Factory(dict)
    #: What ``nova-hpc-guest peers`` said.
    views: dict = attrs.Factory(dict)

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
    cloud = lab.connection
    wish = {
        "flavor_id": cloud.compute.find_flavor(FLAVOR).id,
        "image_id": cloud.image.find_image(mpi_guest.IMAGE).id,
        "networks": [{"uuid": cloud.network.find_network(NETWORK).id}],
    }
    try:
        nested_guest.cache_guest(lab, mpi_guest.IMAGE)
        with guest_network.open_network(lab) as network:
            made = Guests(lab, network, cloud)
            for name, group in SERVERS.items():
                hints = {"group": groups[group]}
                server = cloud.compute.create_server(name=name, scheduler_hints=hints, **wish)
                made.ids[name] = server.id
            lab.until(lambda: _are_active(made), "the servers are active")
            made.tell("all are active")
            for name, server in made.ids.items():
                (port,) = cloud.network.ports(device_id=server)
                made.addresses[name] = guest_network.address_of(port)
            for name in SERVERS:
                lab.until(lambda name=name: made.answers(name), f"{name} answers", PATIENCE)
            made.tell("all answer")
            yield made
    finally:
        lab.openstack("server", "delete", "--wait", *SERVERS, check=False)
        for group in groups.values():
            lab.openstack("server", "group", "delete", group, check=False)
        lab.openstack("flavor", "delete", FLAVOR, check=False)
        nested_guest.delete_guest(lab, mpi_guest.IMAGE)


def _are_active(guests):
    """Whether all servers run; one that failed fails the test."""
    servers = [guests.cloud.compute.get_server(server) for server in guests.ids.values()]
    for server in servers:
        assert server.status != "ERROR", f"{server.fault}\n{guests.lab.tail()}"
    return all(server.status == "ACTIVE" for server in servers)


def _files(lab):
    return lab.inside("ls /dev/shm/nova-hpc 2>/dev/null; true").split()


def test_each_guest_has_what_it_was_promised(lab, guests):
    views = guests.views = {name: guests.describe_memory(name) for name in SERVERS}
    for name, view in views.items():
        guests.tell(name, json.dumps(view))
        assert guests.run(name, "nova-hpc-guest check").startswith("As promised: ")
        assert (view["mapping"], view["part_bytes"]) == ("write-back", PART << 20)
    # The two have one memory, and the stranger has another.
    assert sorted(views[name]["part"] for name in MEMBERS) == [0, 1]
    assert views["first"]["segment"] == views["second"]["segment"]
    assert views["stranger"]["segment"] != views["first"]["segment"]


def test_a_file_for_each_group_on_one_numa_node(lab, guests):
    aliases, aligns, files = zip(*_devices(lab, guests.ids.values()), strict=True)
    assert aliases == tuple(f"ua-hpc-shared-{guests.views[name]['part']}" for name in SERVERS)
    assert set(aligns) == {"2048"}
    assert files[0] == files[1]
    assert sorted(set(files)) == sorted(_files(lab))
    assert len(set(files)) == 2
    maps = lab.inside("grep -hF /dev/shm/nova-hpc/ /proc/[0-9]*/numa_maps 2>/dev/null; true")
    for name in set(files):
        pages = "\n".join(line for line in maps.splitlines() if name in line)
        node = re.search(r"\.node(\d)\.", name)[1]
        assert {each[0] for each in re.findall(r" N(\d)=(\d+)", pages)} == {node}, pages


def _devices(lab, servers):
    """The name, the alignment in KiB and the file of what each guest has as memory."""
    xml = lab.inside(
        f"for each in {' '.join(servers)}; do virsh -c qemu:///system dumpxml $each; done"
    )
    memories = re.findall(r"<memory model='nvdimm'.*?</memory>", xml, re.DOTALL)
    assert len(memories) == len(servers)
    for memory in memories:
        align = re.search(r"<alignsize unit='KiB'>(\d+)<", memory)[1]
        path = re.search(r"<path>(.+?)<", memory)[1]
        yield re.search(r"<alias name='(.+?)'", memory)[1], align, path.rpartition("/")[2]


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
    reason = _refusal(guests, "suspend", guests.ids["first"])
    guests.tell("suspend:", reason)
    assert "A server that shares memory cannot be suspended" in reason
    # It goes on as it was.
    assert float(guests.run("first", "cat /proc/uptime").split()[0]) > uptime
    assert guests.describe_memory("first")["mapping"] == "write-back"


def _refusal(guests, action, server):
    """The reason why Nova has not done something; the server is as it was."""
    guests.lab.openstack("server", action, server)
    compute = guests.cloud.compute

    def ended():
        (found,) = [one for one in compute.server_actions(server) if one.action == action]
        events = compute.get_server_action(found.request_id, server).events
        done = events and events[-1].finish_time and not compute.get_server(server).task_state
        return done and events[-1]

    event = guests.lab.until(ended, f"{action} has been answered")
    assert compute.get_server(server).status == "ACTIVE"
    return event.details


def test_nothing_is_left_of_the_memory(lab, guests):
    lab.openstack("server", "delete", "--wait", *SERVERS)
    lab.until(lambda: not _files(lab), "no file is left")
    guests.tell("in all")
