# SPDX-License-Identifier: Apache-2.0
"""Servers that share memory on a real node: Nova, libvirt and QEMU, and nested guests that use it.

Two servers of a group, and a stranger. MPI over such memory is tried without a cloud
(test_shared_memory.py): nested guests take too long for a whole Debian.
"""

import json
import re
import tempfile
import time
from pathlib import Path

import pytest

from nova_hpc_lab.machines import IMAGE_PROPERTIES
from nova_hpc_lab.state import Paths
from tests.lab import shared_guest
from tests.lab.libvirt_room import find_packages, unpack_root

pytestmark = pytest.mark.slow

IMAGE = "shared-guest"
FLAVOR = "lab.shared"
PART = 8
PROPERTIES = (
    *("--property", "hw:cpu_policy=dedicated"),
    *("--property", "hw:mem_page_size=2048"),
    *("--property", f"hpc:shared_memory={PART}"),
    *("--property", "hpc:shared_memory_policy=required"),
)
GROUPS = ("one", "other")
#: Seconds for nested guests, on a machine that has other work.
EXCHANGED = 900


@pytest.fixture
def start(lab):
    """Starts servers of a flavor that must share memory, each in a group; name -> id."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    _upload_guest(lab)
    lab.openstack(
        *("flavor", "create", FLAVOR, "--vcpus", "1", "--ram", "256", "--disk", "1", *PROPERTIES)
    )
    groups = {}
    for name in GROUPS:
        words = ("server", "group", "create", "--policy", "soft-affinity", name, "-f", "json")
        groups[name] = json.loads(lab.openstack(*words))["id"]
    made = []

    def start(**wanted):
        for name, group in wanted.items():
            made.append(name)
            lab.openstack(
                *("server", "create", "--flavor", FLAVOR, "--image", IMAGE, "--nic", "none"),
                *("--hint", f"group={groups[group]}", name),
            )
        lab.until(lambda: _are_active(lab, wanted), f"{', '.join(wanted)} are active")
        return {one["Name"]: one["ID"] for one in lab.servers() if one["Name"] in wanted}

    try:
        yield start
    finally:
        for name in made:
            lab.openstack("server", "delete", "--wait", name, check=False)
        for group in groups.values():
            lab.openstack("server", "group", "delete", group, check=False)
        lab.openstack("flavor", "delete", FLAVOR, check=False)
        lab.openstack("image", "delete", IMAGE, f"{IMAGE}-ramdisk", check=False)


def _upload_guest(lab):
    """Put the guest into the lab's Glance."""
    archive = find_packages(Paths.from_environment(lab.environ))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        unpack_root(archive, root)
        guest = shared_guest.pack_guest(archive, root)
    glance = lab.connection.image
    forms = {"visibility": "public", "disk_format": "ari", "container_format": "ari"}
    ramdisk = glance.create_image(name=f"{IMAGE}-ramdisk", data=guest.ramdisk, **forms)
    # The kernel of the lab's own guest is of the same packages.
    parts = {
        "kernel_id": glance.find_image("hpc-guest-kernel").id,
        "ramdisk_id": ramdisk.id,
    }
    forms = {"visibility": "public", "disk_format": "raw", "container_format": "bare"}
    glance.create_image(name=IMAGE, data=bytes(1 << 20), **forms, **parts, **IMAGE_PROPERTIES)


def _are_active(lab, names):
    states = {one["Name"]: one["Status"] for one in lab.servers()}
    for name, state in states.items():
        assert state != "ERROR", f"{lab.show(name).get('fault')}\n{lab.tail()}"
    return all(states.get(name) == "ACTIVE" for name in names)


def _last_account(lab, server):
    accounts = shared_guest.parse_accounts(
        lab.openstack("console", "log", "show", server, check=False)
    )
    return accounts[-1] if accounts else {}


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


def _files(lab):
    return lab.inside("ls /dev/shm/nova-hpc 2>/dev/null; true").split()


def test_two_of_a_group_and_a_stranger(lab, start):
    started = time.monotonic()
    servers = start(first="one", second="one")
    members = [servers["first"], servers["second"]]

    def exchanged():
        accounts = [_last_account(lab, server) for server in members]
        done = [account.get("received", 0) for account in accounts]
        return min(done) >= shared_guest.MESSAGES and accounts

    accounts = lab.until(exchanged, "both have received all messages", EXCHANGED)
    print(f"\nRESULT: {time.monotonic() - started:.0f} s", *map(json.dumps, accounts), sep="\n")
    for account in accounts:
        assert (account["status"], account["wrong"]) == (0, 0), account
        assert account["mapping"] == "write-back"
    # The two have one memory, and each message came through it unharmed.
    assert len({account["segment"] for account in accounts}) == 1
    assert sorted(account["part"] for account in accounts) == [0, 1]
    assert [account["marks"] for account in accounts] == [sorted(members)] * 2

    # One file, of libvirt's user alone, on one NUMA node.
    (file,) = _files(lab)
    for server, account in zip(members, accounts, strict=True):
        assert _device(lab, server) == (f"ua-hpc-shared-{account['part']}", "2048", file)
    pages = lab.inside(f"cat /proc/[0-9]*/numa_maps 2>/dev/null | grep -F {file}; true")
    print("RESULT:", pages)
    node = re.search(r"\.node(\d)\.", file)[1]
    assert {each[0] for each in re.findall(r" N(\d)=(\d+)", pages)} == {node}, pages

    # What would bring old content back is refused, and the guest goes on.
    reason = _refusal(lab, members[0], "suspend", "server", "suspend", members[0])
    print("RESULT: suspend:", reason)
    assert "A server that shares memory cannot be suspended" in reason
    lab.until(lambda: _went_on(lab, members[0], accounts[0]), "the guest runs on")

    # A stranger comes to the CPU of one of them, and has other memory: nothing of theirs is there.
    lab.openstack("server", "delete", "--wait", "second")
    stranger = start(stranger="other")["stranger"]
    strange = lab.until(lambda: _last_account(lab, stranger), "the stranger has started", EXCHANGED)
    print("RESULT: stranger:", json.dumps(strange))
    assert (strange["status"], strange["mapping"]) == (0, "write-back")
    assert strange["segment"] != accounts[0]["segment"]
    assert (strange["received"], strange["marks"]) == (0, [stranger])
    assert len(_files(lab)) == 2
    for name in ("first", "stranger"):
        lab.openstack("server", "delete", "--wait", name)
    lab.until(lambda: not _files(lab), "no file is left")
    print(f"RESULT: {time.monotonic() - started:.0f} s in all")


def _device(lab, server):
    """The name, the alignment in KiB and the file of what the guest has as memory."""
    xml = lab.inside(f"virsh -c qemu:///system dumpxml {server}")
    (memory,) = re.findall(r"<memory model='nvdimm'.*?</memory>", xml, re.DOTALL)
    print("RESULT:", memory)
    align = re.search(r"<alignsize unit='KiB'>(\d+)<", memory)[1]
    path = re.search(r"<path>(.+?)<", memory)[1]
    return re.search(r"<alias name='(.+?)'", memory)[1], align, path.rpartition("/")[2]


def _went_on(lab, server, account):
    return _last_account(lab, server)["seconds"] > account["seconds"] + 20
