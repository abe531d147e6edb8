# SPDX-License-Identifier: Apache-2.0
"""Devices of running members fail: the owner reads the word within a minute, and heals.

The node's own QEMU takes a GPU off its bus, and reports a fatal error of a link, as hardware does.
The adapters are Ethernet adapters that stand for InfiniBand: a folder over their place in sysfs has
the firmware, and the state of their port in the simulated fabric. A link narrows in the file by
which the kernel shows it: QEMU cannot change a link. The tests are in an order.
"""

import contextlib
import datetime
import json
import os
import signal
import socket
import statistics
import subprocess
import time
from pathlib import Path

import attrs
import pytest
import yaml

from nova_hpc_lab import observe
from nova_hpc_lab.fabric import partition_services, simulator
from nova_hpc_lab.node import qemu
from nova_hpc_lab.process import Process
from nova_hpc_lab.state import Paths
from tests.lab.operator_site import COMMAND

SHAPE = Path(__file__).with_name("six-gpus.yaml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 1, True), id="six-gpus")], indirect=True),
]

GPU, VF = ":".join(qemu.GPU_IDS), ":".join(qemu.VF_IDS)
FLAVOR = "lab.faulty"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:affinity": "root",
}
CLUSTER = "ill"
FIRST, SECOND = f"{CLUSTER}-1", f"{CLUSTER}-2"
NETWORK, PHYSICAL, PKEY = "faulty", "ibrail0", 105
#: Seconds within which the owner has to learn of a fault.
TOLD = 60
FIRMWARE = "28.39.1002"
#: Puts the folder of an InfiniBand driver over an adapter's place in sysfs: address, name.
_ADAPTER = """set -e
place=$(realpath /sys/bus/pci/devices/$1); own=/run/$2
[ ! -d $place/infiniband ] || exit 0
mkdir -p $own; mount -t tmpfs tmpfs $own
mkdir -p $own/real $own/work $own/up/infiniband/$2/ports/1
mount --bind $place $own/real
echo "4: ACTIVE" >$own/up/infiniband/$2/ports/1/state
echo FIRMWARE >$own/up/infiniband/$2/fw_ver
mount -t overlay overlay -o lowerdir=$own/real,upperdir=$own/up,workdir=$own/work $place
""".replace("FIRMWARE", FIRMWARE)
#: Seconds of each replacement, from the command to the member that runs.
HEALED: list[float] = []


@attrs.frozen
class AdapterPort:
    """A port of the simulated fabric, and the node's adapter for it."""

    name: str
    address: str
    driver: str

    @property
    def folder(self):
        return f"/sys/bus/pci/devices/{self.address}/infiniband/{self.driver}"


@pytest.fixture(scope="module")
def adapters(lab):
    """Address of a virtual function -> the port of its adapter."""
    paths = Paths.from_environment(lab.environ)
    inventory = yaml.safe_load(partition_services.inventory_file(paths).read_text())
    found = {}
    for number, port in enumerate(inventory["ports"]):
        adapter = AdapterPort(f"hpc1-{number}", port["address"], f"mlx5_{number}")
        lab.inside(f"cat >/run/adapter.sh <<'E'\n{_ADAPTER}E\n")
        lab.inside(f"sh /run/adapter.sh {adapter.address} {adapter.driver}")
        found |= dict.fromkeys(port["functions"], adapter)
    return found


@pytest.fixture(scope="module")
def members(lab, adapters):
    """The two members run, each with a GPU and a port in a partition."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    words = (f"--property={key}={value}" for key, value in PROPERTIES.items())
    size = ("--vcpus", "1", "--ram", "384", "--disk", "1")
    lab.openstack("flavor", "create", FLAVOR, *size, *words)
    provider = ("--provider-network-type", "vlan", "--provider-physical-network", PHYSICAL)
    lab.openstack("network", "create", *provider, "--provider-segment", str(PKEY), NETWORK)
    subnet = ("--network", NETWORK, "--subnet-range", f"198.51.{PKEY}.0/24", "--no-dhcp")
    lab.openstack("subnet", "create", *subnet, NETWORK)
    network = lab.connection.network.find_network(NETWORK).id
    nics = ("--nic", "net-id=lab", "--nic", f"net-id={network},vnic-type=direct")
    image = ("--flavor", FLAVOR, "--image", "hpc-guest")
    _cluster(lab, "create", CLUSTER, "--members", "2", *image, *nics)
    for name in _servers(lab):
        lab.report(name)
    time.sleep(TOLD)
    assert _faults(lab) == {}
    yield
    _cluster(lab, "delete", CLUSTER)
    lab.openstack("network", "delete", NETWORK)
    lab.openstack("flavor", "delete", FLAVOR)


def _cluster(lab, *words, status=0):
    limit = () if words[0] == "report" else ("--timeout", "900")
    done = lab.client("hpc", "cluster", *words, *limit)
    print(f"$ openstack hpc cluster {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def _servers(lab):
    return {each["Name"]: each["ID"] for each in lab.servers()}


def _faults(lab):
    """Member -> its words, as its owner reads them."""
    return _shown(lab)["faults"]


def _shown(lab):
    return json.loads(lab.openstack("hpc", "cluster", "show", CLUSTER, "-f", "json"))


def _address(lab, name, ids=GPU):
    """Address of the one device of a member with these ids."""
    records = observe.pci_records(lab.settings, _servers(lab)[name])
    (address,) = (one.address for one in records if one.ids == ids)
    return address


def _actions(lab, name):
    """Name and message of the actions of faults, the oldest first."""
    words = ("server", "event", "list", _servers(lab)[name], "-f", "json", "--long")
    rows = json.loads(lab.openstack(*words))
    return [
        (each["Action"], each["Message"])
        for each in rows[::-1]
        if each["Action"] in ("hpc_fault_found", "hpc_fault_cleared")
    ]


def _names_of_actions(lab, name, word):
    """The actions of a member with a word in their names, the oldest first."""
    rows = json.loads(lab.openstack("server", "event", "list", _servers(lab)[name], "-f", "json"))
    return [row["Action"] for row in rows[::-1] if word in row["Action"]]


def _until_told(lab, faults, began=None, seconds=TOLD):
    """Wait until the owner reads these faults, no later than allowed."""
    began = began or time.monotonic()
    lab.until(lambda: _faults(lab) == faults, f"the faults {faults}", seconds=4 * TOLD)
    passed = time.monotonic() - began
    print(f"RESULT: {faults or 'no fault'} after {passed:.0f} s", flush=True)
    assert passed < seconds
    return passed


def _heal(lab, name):
    """Replace one faulty member, which gets another GPU and keeps its port."""
    before, gpu, port = _servers(lab), _address(lab, name), _ports(lab, name)
    said = _cluster(lab, "heal", CLUSTER, status=1)
    assert f"{name} may have jobs" in said
    began = time.monotonic()
    _cluster(lab, "heal", CLUSTER, "--force")
    HEALED.append(time.monotonic() - began)
    print(f"RESULT: {name} healed after {HEALED[-1]:.0f} s", flush=True)
    after = _servers(lab)
    assert {one for one in after if after[one] != before[one]} == {name}
    assert _address(lab, name) != gpu
    assert _ports(lab, name) == port
    (found,) = (one for one in lab.report(name).functions if one.ids == GPU)
    print(f"RESULT: the new {name} has {found}", flush=True)
    assert _faults(lab) == {}


def _ports(lab, name):
    """Id and MAC address of the ports of a member."""
    server = _servers(lab)[name]
    return sorted(
        (one.id, one.mac_address) for one in lab.connection.network.ports(device_id=server)
    )


def _ask_node(lab, command, **arguments):
    """Send a command to the monitor of the node's QEMU."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(lab.state / "nodes" / "hpc1" / "qmp"))
        stream = connection.makefile("rwb")
        stream.readline()
        answer = {}
        for name, values in (("qmp_capabilities", {}), (command, arguments)):
            stream.write(json.dumps({"execute": name, "arguments": values}).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline())
            while "event" in answer:
                answer = json.loads(stream.readline())
        assert "return" in answer, answer
        return answer["return"]


def _names_in_qemu(lab, address):
    """QEMU's names of the device at an address of the node, and of the root port above it."""
    wanted = tuple(int(part, 16) for part in address.replace(".", ":").split(":")[1:])

    def walk(devices, port):
        for device in devices:
            yield device, port
            below = device.get("pci_bridge", {}).get("devices", ())
            yield from walk(below, device["qdev_id"])

    ((name, port),) = (
        (device["qdev_id"], port)
        for bus in _ask_node(lab, "query-pci")
        for device, port in walk(bus["devices"], "")
        if (device["bus"], device["slot"], device["function"]) == wanted
    )
    return name, port


def _show_port_state(lab, adapter):
    """Write the state that the simulated port has into the driver's file."""
    paths = Paths.from_environment(lab.environ)
    words = ("smpquery", "-D", "portinfo", "0", "1")
    environ = os.environ | simulator.client_environ(paths, adapter.name)
    folder = simulator.client_folder(paths)
    said = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True).stdout
    (state,) = (
        line.rpartition(".")[2] for line in said.splitlines() if line.startswith("LinkState")
    )
    number = {"Down": 1, "Initialize": 2, "Armed": 3, "Active": 4}[state]
    lab.inside(f'echo "{number}: {state.upper()}" >{adapter.folder}/ports/1/state')
    return state


@contextlib.contextmanager
def _frozen(lab, name):
    """Stop one process of the lab meanwhile."""
    pid = Process(name, Paths.from_environment(lab.environ)).pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _tell_fabric(lab, *commands):
    simulator.tell_simulator(Paths.from_environment(lab.environ), *commands)


def _until_listed(lab, word, listed):
    """Wait until the node's list of devices has a word, or has it no more."""
    command = f"{COMMAND} device list --config-file /etc/nova/nova.conf"
    lab.until(lambda: (word in lab.inside(command)) == listed, f"{word}: {listed}", 4 * TOLD)


def test_a_report_of_the_owner_is_shown_at_the_devices(lab, members):
    began = time.monotonic()
    _cluster(lab, "report", CLUSTER, SECOND, "--why", "slow")
    assert _shown(lab)["reports"] == {SECOND: ["slow"]}
    _until_listed(lab, "slow", True)
    print(f"RESULT: a report is listed after {time.monotonic() - began:.0f} s", flush=True)
    print(lab.inside(f"{COMMAND} device list --config-file /etc/nova/nova.conf"), flush=True)
    assert _faults(lab) == {}
    assert "no member of ill has to be replaced" in _cluster(lab, "heal", CLUSTER)
    _cluster(lab, "report", CLUSTER, SECOND, "--withdraw")
    _until_listed(lab, "slow", False)
    reports = ["hpc_fault_reported", "hpc_report_withdrawn"]
    lab.until(lambda: _names_of_actions(lab, SECOND, "report") == reports, "it is withdrawn")
    assert _shown(lab)["reports"] == {}


def test_planned_work_is_announced_to_the_owner(lab, members):
    gpu = _address(lab, FIRST)
    at = f"{datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3):%Y-%m-%dT%H:%MZ}"
    later = f"{datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=5):%Y-%m-%dT%H:%MZ}"
    config = "--config-file /etc/nova/nova.conf"
    print(lab.inside(f"{COMMAND} device maintenance {gpu} --at {at} {config}"), flush=True)
    lab.until(lambda: _shown(lab)["planned"] == {FIRST: at}, "the owner reads it", 2 * TOLD)
    controller = str(lab.state / "etc" / "nova" / "nova.conf")
    done = lab.run("drain", "hpc1", "--at", later, "--config-file", controller)
    print(f"$ nova-hpc drain hpc1 --at {later}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0
    # The earliest time of each member.
    assert _shown(lab)["planned"] == {FIRST: at, SECOND: later}
    (row,) = json.loads(lab.openstack("hpc", "cluster", "list", "--long", "-f", "json"))
    assert row["Planned"] == [f"{FIRST} {at}", f"{SECOND} {later}"]
    print(lab.inside(f"{COMMAND} device maintenance {gpu} --stop {config}"), flush=True)
    lab.until(
        lambda: _shown(lab)["planned"] == {FIRST: later, SECOND: later}, "it is over", 2 * TOLD
    )
    done = lab.run("drain", "hpc1", "--no-at", "--config-file", controller)
    print(f"$ nova-hpc drain hpc1 --no-at\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0
    assert _shown(lab)["planned"] == {}
    work = ["hpc_work_planned", "hpc_work_cancelled"]
    assert _names_of_actions(lab, FIRST, "work") == work
    assert _faults(lab) == {}


def test_a_link_that_narrows_is_told_and_is_over(lab, members):
    link = f"/sys/bus/pci/devices/{_address(lab, FIRST)}/current_link_width"
    # QEMU's links have one lane; a narrower one needs a wider one before. The file stays there,
    # because one lane would be the next fault.
    lab.inside(f"echo 16 >/run/width && mount --bind /run/width $(realpath {link})")
    time.sleep(TOLD)
    assert _faults(lab) == {}
    lab.inside("echo 8 >/run/width")
    _until_told(lab, {FIRST: ["link"]})
    lab.inside("echo 16 >/run/width")
    _until_told(lab, {}, seconds=2 * TOLD)
    assert _actions(lab, FIRST) == [("hpc_fault_found", "link"), ("hpc_fault_cleared", "link")]
    assert _actions(lab, SECOND) == []


def test_a_port_that_goes_down_has_left_its_partition_too(lab, adapters, members):
    adapter = adapters[_address(lab, SECOND, VF)]
    assert _show_port_state(lab, adapter) == "Active"
    began = time.monotonic()
    _tell_fabric(lab, f'Unlink "{adapter.name}"')
    assert _show_port_state(lab, adapter) == "Down"
    _until_told(lab, {SECOND: ["port", "partition"]}, began)
    _tell_fabric(lab, f'ReLink "{adapter.name}"')
    lab.until(lambda: _show_port_state(lab, adapter) == "Active", "the port is active")
    _until_told(lab, {}, seconds=3 * TOLD)


def test_a_partition_that_is_lost(lab, adapters, members):
    adapter = adapters[_address(lab, SECOND, VF)]
    with _frozen(lab, "opensm"):
        began = time.monotonic()
        _tell_fabric(lab, f'Unlink "{adapter.name}"', f'ReLink "{adapter.name}"')
        _until_told(lab, {SECOND: ["partition"]}, began)
        assert "no member of ill has to be replaced" in _cluster(lab, "heal", CLUSTER)
    _until_told(lab, {}, seconds=3 * TOLD)


def test_a_firmware_that_changes_is_over_with_the_next_start(lab, adapters, members):
    adapter = adapters[_address(lab, SECOND, VF)]
    began = time.monotonic()
    lab.inside(f"echo 28.40.1000 >{adapter.folder}/fw_ver")
    _until_told(lab, {SECOND: ["firmware"]}, began)
    assert "no member of ill has to be replaced" in _cluster(lab, "heal", CLUSTER)
    lab.openstack("server", "reboot", "--hard", "--wait", SECOND)
    _until_told(lab, {}, seconds=3 * TOLD)


def test_a_fatal_error_of_a_link_stops_the_guest_and_the_member_is_healed(lab, members):
    """The port above the GPU counts the error. The kernel resets the link, and QEMU the guest."""
    name, port = _names_in_qemu(lab, _address(lab, FIRST))
    print(f"RESULT: {name} is below {port}", flush=True)
    began = time.monotonic()
    line = f"pcie_aer_inject_error {port} DLP"
    print(_ask_node(lab, "human-monitor-command", **{"command-line": line}))
    _until_told(lab, {FIRST: ["errors"]}, began)
    _heal(lab, FIRST)


@pytest.mark.parametrize("member", [SECOND, FIRST])
def test_a_device_that_leaves_the_bus_is_told_and_its_member_healed(lab, members, member):
    """A guest beside one that ends may spin in its kernel from then on, so it begins anew.

    Its interrupts are off then, and it never releases the device. That was seen in three of four
    runs; the guests are emulated by an emulated machine.
    """
    lab.openstack("server", "reboot", "--hard", "--wait", member)
    lab.report(member)
    server = _servers(lab)[member]
    name, _ = _names_in_qemu(lab, _address(lab, member))
    place = f"/sys/bus/pci/devices/{_address(lab, member)}"
    _ask_node(lab, "device_del", id=name)
    # The kernel asks the guest to give the device up, and waits for it.
    lab.until(lambda: not lab.inside(f"ls -d {place} || true").strip(), "the bus has lost it")
    _until_told(lab, {member: ["gone"]})
    listed = lab.inside(f"{COMMAND} device list --config-file /etc/nova/nova.conf")
    print(listed, flush=True)
    assert "gone" in listed
    assert server in listed
    _heal(lab, member)


def test_a_guest_whose_qemu_ends_is_started_again(lab, members):
    server = _servers(lab)[SECOND]
    began = time.monotonic()
    lab.inside(f"pkill -KILL -f '[u]uid {server}'")
    lab.until(lambda: _shown(lab)["state"] == "DEGRADED", "it is degraded")
    print(f"RESULT: a QEMU that ended: told after {time.monotonic() - began:.0f} s", flush=True)
    assert time.monotonic() - began < TOLD
    assert _shown(lab)["reason"] == f"{SECOND} is SHUTOFF: its guest has ended"
    began = time.monotonic()
    assert f"{SECOND} is started again" in _cluster(lab, "heal", CLUSTER)
    print(f"RESULT: started again after {time.monotonic() - began:.0f} s", flush=True)
    assert _servers(lab)[SECOND] == server
    assert lab.show(SECOND)["status"] == "ACTIVE"


def test_the_median_of_the_replacements(lab, members):
    print(f"RESULT: {len(HEALED)} replacements in {sorted(round(one) for one in HEALED)} s")
    assert len(HEALED) == 3
    assert statistics.median(HEALED) < 300
