# SPDX-License-Identifier: Apache-2.0
"""Devices of running members fail: the owner reads the word within a minute, and heals.

The node's own QEMU takes a GPU off its bus while a guest has it, as hardware that fails does. A
link narrows in the file that shows it, written by the kernel: QEMU cannot change a link.
"""

import json
import socket
import time
from pathlib import Path

import pytest

from nova_hpc_lab import observe
from nova_hpc_lab.node import qemu
from tests.lab.operator_site import COMMAND

SHAPE = Path(__file__).with_name("three-gpus.yaml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 1), id="three-gpus")], indirect=True),
]

GPU = ":".join(qemu.GPU_IDS)
FLAVOR = "lab.faulty"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:affinity": "root",
}
CLUSTER = "ill"
#: Seconds within which the owner has to learn of a fault.
TOLD = 60


@pytest.fixture(scope="module")
def members(lab):
    """Name -> server of the two members."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    words = (f"--property={key}={value}" for key, value in PROPERTIES.items())
    size = ("--vcpus", "1", "--ram", "384", "--disk", "1")
    lab.openstack("flavor", "create", FLAVOR, *size, *words)
    image = ("--image", "hpc-guest", "--nic", "net-id=lab")
    _cluster(lab, "create", CLUSTER, "--members", "2", "--flavor", FLAVOR, *image)
    servers = _servers(lab)
    for name in servers:
        lab.report(name)
    yield servers
    lab.openstack("hpc", "cluster", "delete", CLUSTER, check=False)
    lab.openstack("flavor", "delete", FLAVOR)


def _cluster(lab, *words, status=0):
    done = lab.client("hpc", "cluster", *words, "--timeout", "900")
    print(f"$ openstack hpc cluster {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def _servers(lab):
    return {each["Name"]: each["ID"] for each in lab.servers()}


def _address(lab, server):
    (record,) = observe.pci_records(lab.settings, server)
    return record.address


def _tags(lab, server):
    """The tags of faults; a member has another one from the client."""
    tags = lab.connection.compute.get_server(server).tags
    return sorted(tag for tag in tags if tag.startswith("hpc-fault="))


def _actions(lab, server):
    """Name and message of the actions of faults, the oldest first."""
    words = ("server", "event", "list", server, "-f", "json", "--long")
    rows = json.loads(lab.openstack(*words))
    return [
        (each["Action"], each["Message"]) for each in rows[::-1] if "hpc_fault" in each["Action"]
    ]


def _until_told(lab, server, tags):
    """Seconds until the server has these tags."""
    began = time.monotonic()
    lab.until(lambda: _tags(lab, server) == tags, f"{server} has {tags}", seconds=3 * TOLD)
    seconds = time.monotonic() - began
    print(f"RESULT: {tags} after {seconds:.0f} s", flush=True)
    return seconds


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


def _name_in_qemu(lab, address):
    """QEMU's name of the device at an address of the node."""
    wanted = tuple(int(part, 16) for part in address.replace(".", ":").split(":")[1:])

    def walk(devices):
        for device in devices:
            yield device
            yield from walk(device.get("pci_bridge", {}).get("devices", ()))

    buses = _ask_node(lab, "query-pci")
    (name,) = (
        device["qdev_id"]
        for bus in buses
        for device in walk(bus["devices"])
        if (device["bus"], device["slot"], device["function"]) == wanted
    )
    return name


def test_a_link_that_narrows_is_told_and_is_over(lab, members):
    server = members[f"{CLUSTER}-1"]
    link = f"/sys/bus/pci/devices/{_address(lab, server)}/current_link_width"
    # QEMU's links have one lane; a narrower one needs a wider one before. The file stays there,
    # because one lane would be the next fault.
    lab.inside(f"echo 16 >/run/width && mount --bind /run/width $(realpath {link})")
    time.sleep(TOLD)
    assert _tags(lab, server) == []
    lab.inside("echo 8 >/run/width")
    assert _until_told(lab, server, ["hpc-fault=link"]) < TOLD
    shown = json.loads(lab.openstack("hpc", "cluster", "show", CLUSTER, "-f", "json"))
    assert shown["faults"] == {f"{CLUSTER}-1": ["link"]}
    lab.inside("echo 16 >/run/width")
    _until_told(lab, server, [])
    assert _actions(lab, server) == [("hpc_fault_found", "link"), ("hpc_fault_cleared", "link")]
    assert _tags(lab, members[f"{CLUSTER}-2"]) == []


def test_a_device_that_leaves_the_bus_is_told_and_its_member_healed(lab, members):
    name = f"{CLUSTER}-2"
    server, other = members[name], members[f"{CLUSTER}-1"]
    address = _address(lab, server)
    _ask_node(lab, "device_del", id=_name_in_qemu(lab, address))
    assert _until_told(lab, server, ["hpc-fault=gone"]) < TOLD
    listed = lab.inside(f"{COMMAND} device list --config-file /etc/nova/nova.conf")
    print(listed, flush=True)
    assert "gone" in listed
    assert server in listed
    said = _cluster(lab, "heal", CLUSTER, status=1)
    assert f"{name} may have jobs" in said
    began = time.monotonic()
    _cluster(lab, "heal", CLUSTER, "--force")
    print(f"RESULT: healed after {time.monotonic() - began:.0f} s", flush=True)
    now = _servers(lab)
    assert now[f"{CLUSTER}-1"] == other
    assert now[name] != server
    assert _address(lab, now[name]) not in (address, _address(lab, other))
    (gpu,) = (one for one in lab.report(name).functions if one.ids == GPU)
    print(f"RESULT: the new member has {gpu}", flush=True)
    assert _tags(lab, now[name]) == []
