# SPDX-License-Identifier: Apache-2.0
"""A share of a GPU, its client, and a stranger of another project: real servers on a real node.

Nova, Neutron, Placement, libvirt and QEMU are real, and so is the engine, PoCL-R, which computes on
the share's CPU: its GPU is a stand-in that no OpenCL drives. Nova's metadata service leads from the
user's commands to the guests; a filter of the node has Neutron's security groups
(:mod:`.guest_network`). The tests are in an order.
"""

import contextlib
import json
import time

import attrs
import pytest

from nova_hpc_guest.gpu import attached, port_rule, units
from tests.lab import gpu_guest, guest_network, nested_guest
from tests.lab.guest_network import GuestAwayError, GuestNetwork

SHAPE = gpu_guest.HERE / "gpu-share.yaml"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param(SHAPE, id="gpu-share")], indirect=True),
]

NETWORK = "lab"
OWN, OTHER = PROJECTS = ("lab-red", "lab-blue")
COMMON = ("--property", "hw:cpu_policy=dedicated", "--property", "hw:mem_page_size=2048")
#: Flavor -> MiB and further properties.
FLAVORS = {
    "lab.gpu.share": ("1024", "--property", "pci_passthrough:alias=gpu:1"),
    "lab.gpu.client": ("512",),
}
#: Project -> its servers without a GPU.
SERVERS = {OWN: "client", OTHER: "stranger"}
#: Seconds for guests that are emulated by an emulated machine.
PATIENCE = 900
#: As the user's guide has it, from the command's end.
CLOSED = 30
RUN = ("nova-hpc-guest", "gpu", "run", "--")
JOB = "/opt/opencl_job"
RIGHT = "65536 values, 0 wrong"
TRIES = 4
INSIDE = port_rule.SHARE_INSIDE


@attrs.frozen
class LabGuest:
    """A server and the guest in it."""

    name: str
    id: str
    address: str
    network: GuestNetwork

    def run(self, *words, seconds=300):
        return self.network.run(self.address, *words, seconds=seconds)

    def probe(self, address, ports):
        return self.network.probe(self.address, address, ports)

    @property
    def port(self):
        """The first port of its slot."""
        return port_rule.port_of_address(self.address)

    @property
    def ports(self):
        """The engine's three, and the lifeline's."""
        return tuple(range(self.port, self.port + port_rule.PORTS))


@attrs.frozen
class Room:
    """All that the tests are about."""

    lab: object
    network: GuestNetwork
    share: LabGuest
    client: LabGuest
    stranger: LabGuest

    def command(self, *words):
        """What a member of the project types below ``openstack hpc gpu``; how long it took."""
        begun = time.monotonic()
        _as(self.lab, OWN, "hpc", "gpu", *words)
        self.network.sync()
        return time.monotonic() - begun

    def wait_for_slot(self, address):
        """Until the client's slot answers and it knows that; how long that took."""
        lifeline = (self.client.ports[port_rule.LIFELINE],)

        def answers():
            return self.has_environment() and self.client.probe(address, lifeline) == ["open"]

        return _wait(answers, "the slot", PATIENCE)

    def has_environment(self):
        """Whether the client has a job's environment."""
        return self.client.run("test", "-e", attached.ENVIRONMENT)[0] == 0

    def wait_for_end(self, begun):
        """Until nothing listens for the client in the share; seconds since the command's end."""
        _wait(lambda: not self.listening(), "the slot's end", PATIENCE)
        return time.monotonic() - begun

    def listening(self):
        """Which ports of the client's slot are open in the share, whoever may reach them."""
        _, said, _ = self.share.run("cat", "/proc/net/tcp")
        words = [line.split() for line in said.splitlines()[1:]]
        found = {int(word[1].partition(":")[2], 16) for word in words if word[3] == "0A"}
        return sorted(found & set(self.client.ports))

    def job(self):
        """What a job in the client says; PoCL-R's own client may spoil its first tries."""
        said = []
        for _ in range(TRIES):
            status, out, err = self.client.run(*RUN, JOB)
            if status == 0:
                return out
            said.append(f"{status}: {out}{err}")
            time.sleep(5)
        raise AssertionError("\n".join([*said, self.account()]))

    def account(self):
        """What both ends know of a slot that does not work."""
        debug = ("env", "POCL_DEBUG=all", "timeout", "200", *RUN, JOB)
        parts = ["client:", *map(str, self.client.run(*debug))]
        unit = units.unit_name_of(self.client.id)
        for script in (
            f"cat /run/systemd/system/{unit}; cat /run/{unit}.log",
            "cat /run/serve.log /run/agent.log; ps axo pid,user,args; ls -lda / /tmp /tmp/.cache",
            "cat /proc/net/tcp; df; free",
        ):
            parts += ["share:", *map(str, self.share.run("sh", "-c", script))]
        return "\n".join(parts)


def _as(lab, project, *words):
    """What a member of a project types."""
    done = lab.client("--os-project-name", project, *words)
    print(f"$ openstack --os-project-name {project} {' '.join(words)}", flush=True)
    assert done.returncode == 0, f"{done.stderr}\n{lab.tail()}"
    return done.stdout


def _wait(holds, what, seconds):
    """Wait until it is true; how long that took."""
    begun = time.monotonic()
    while True:
        with contextlib.suppress(GuestAwayError):
            if holds():
                return time.monotonic() - begun
        assert time.monotonic() - begun < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def projects(lab):
    """Two projects, an image and two flavors."""
    begun = time.monotonic()
    gpu_guest.upload_guest(lab)
    print(f"\nRESULT: the image is there after {time.monotonic() - begun:.0f} s")
    for name, (memory, *more) in FLAVORS.items():
        lab.openstack(
            *("flavor", "create", name, "--vcpus", "1", "--ram", memory, "--disk", "1"),
            *(*COMMON, *more),
        )
    for project in PROJECTS:
        lab.openstack("project", "create", project)
        lab.openstack("role", "add", "--project", project, "--user", "admin", "member")
    yield
    for project in PROJECTS:
        lab.openstack("project", "delete", project)
    for name in FLAVORS:
        lab.openstack("flavor", "delete", name)
    nested_guest.delete_guest(lab, gpu_guest.IMAGE)


@pytest.fixture(scope="module")
def room(lab, projects):
    """A share and two other servers, whose guests answer; nothing is attached."""
    begun = time.monotonic()
    with guest_network.open_network(lab) as network:
        try:
            _as(
                *(lab, OWN, "hpc", "gpu", "share", "create", "sim", "--flavor", "lab.gpu.share"),
                *("--image", gpu_guest.IMAGE, "--network", NETWORK, "--slots", "2"),
                *("--engine", "pocl", "--wait"),
            )
            print(f"RESULT: the share is READY after {time.monotonic() - begun:.0f} s")
            for project, name in SERVERS.items():
                network.sync()
                _as(
                    *(lab, project, "server", "create", "-f", "json", "--flavor", "lab.gpu.client"),
                    *("--image", gpu_guest.IMAGE, "--network", NETWORK, "--wait", name),
                )
            owners = {"sim": OWN} | {name: project for project, name in SERVERS.items()}
            guests = [_find_guest(lab, network, *one) for one in owners.items()]
            _wait(lambda: not network.sync(), "all taps are there", PATIENCE)
            for guest in guests:
                _wait(lambda: guest.run("true")[0] == 0, f"{guest.name} runs", PATIENCE)  # noqa: B023
            print(f"RESULT: three guests run after {time.monotonic() - begun:.0f} s")
            yield Room(lab, network, *guests)
        finally:
            lab.client(
                *("--os-project-name", OWN, "hpc", "gpu", "share", "delete", "--force", "sim")
            )
            for project, name in SERVERS.items():
                lab.client("--os-project-name", project, "server", "delete", "--wait", name)


def _find_guest(lab, network, name, project):
    shown = json.loads(_as(lab, project, "server", "show", name, "-f", "json"))
    assert shown["status"] == "ACTIVE", f"{shown.get('fault')}\n{lab.tail()}"
    (port,) = lab.connection.network.ports(device_id=shown["id"])
    return LabGuest(name, shown["id"], guest_network.address_of(port), network)


def test_nothing_is_open_before_it_is_attached(room):
    # The engine's device, without a share in between.
    status, said, wrong = room.share.run(JOB)
    print(f"RESULT: in the share: {' / '.join(said.splitlines())}")
    assert (status, RIGHT in said) == (0, True), f"{said}{wrong}"
    for guest in (room.client, room.stranger):
        assert set(guest.probe(room.share.address, room.client.ports)) == {"silent"}
    status, _, said = room.client.run(*RUN, JOB)
    assert status == 2
    assert "no share of a GPU is attached" in said


def test_a_client_computes_and_a_stranger_reaches_nothing(room):
    took = room.command("attach", "sim", "client", "--wait")
    print(f"RESULT: attach took {took:.0f} s")
    print(f"RESULT: the slot answers after {room.wait_for_slot(room.share.address):.0f} s")
    said = room.job()
    print(f"RESULT: {' / '.join(said.splitlines())}")
    assert said.startswith("device ")
    assert RIGHT in said
    # The stranger is in the same network: the filter keeps it out, and it knows all the rest.
    share = room.share.address
    assert set(room.stranger.probe(share, room.client.ports)) == {"silent"}
    assert "no device" in _try_engine(room.stranger, share, room.client.port)
    took = room.command("detach", "sim", "client")
    closed = room.wait_for_end(time.monotonic())
    print(f"RESULT: detach took {took:.0f} s; all ports were closed {closed:.0f} s after it")
    assert closed <= CLOSED
    assert set(room.client.probe(share, room.client.ports)) == {"silent"}
    _wait(lambda: not room.has_environment(), "the environment's end", PATIENCE)
    status, _, said = room.client.run(*RUN, JOB)
    assert status == 2, said


def _try_engine(guest, address, port):
    """What the engine's own client says to whoever uses it without the product."""
    environment = (
        "OCL_ICD_VENDORS=/opt/icd-remote",
        "POCL_DEVICES=remote",
        f"POCL_REMOTE0_PARAMETERS={address}:{port}/0",
    )
    status, said, wrong = guest.run("env", *environment, "timeout", "120", JOB)
    assert status, said
    return said or wrong


def test_a_key_keeps_out_whom_the_filter_lets_in(room):
    took = room.command("attach", "sim", "client", "--encrypt", "--wait")
    print(f"RESULT: attach --encrypt took {took:.0f} s")
    print(f"RESULT: the slot answers after {room.wait_for_slot(INSIDE):.0f} s in its tunnel")
    said = room.job()
    print(f"RESULT: in the tunnel: {' / '.join(said.splitlines())}")
    assert RIGHT in said
    # A filter that lets the stranger in: it meets the guest, and in it no engine.
    least, most = port_rule.FIRST_PORT, port_rule.FIRST_PORT + 4 * 4096 - 1
    _as(
        *(room.lab, OWN, "security", "group", "rule", "create", "--protocol", "tcp"),
        *("--remote-ip", f"{room.stranger.address}/32", "--dst-port", f"{least}:{most}"),
        f"hpc-gpu-{room.share.id}",
    )
    room.network.sync()
    first, second, _, lifeline = room.client.ports
    answers = room.stranger.probe(room.share.address, (first, second, lifeline))
    print(f"RESULT: the stranger, whom the filter lets in: {answers}")
    assert set(answers) == {"Connection refused"}
    assert "no device" in _try_engine(room.stranger, room.share.address, first)
    room.command("detach", "sim", "client")
    closed = room.wait_for_end(time.monotonic())
    print(f"RESULT: all ports were closed {closed:.0f} s after detach")
    assert closed <= CLOSED


def test_nothing_is_left_of_a_share(room):
    room.command("share", "delete", "sim", "--wait")
    lab = room.lab
    assert all(
        room.share.id not in group.name for group in lab.connection.network.security_groups()
    )
    servers = json.loads(lab.openstack("server", "list", "--all-projects", "-f", "json"))
    assert sorted(one["Name"] for one in servers) == sorted(SERVERS.values())
    (client,) = (one["ID"] for one in servers if one["Name"] == "client")
    shown = json.loads(_as(lab, OWN, "server", "show", client, "-f", "json"))
    assert shown["properties"] == {}
