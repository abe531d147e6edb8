# SPDX-License-Identifier: Apache-2.0
"""A device that somebody has is left alone: the real libvirt and the kernel's own VFIO groups."""

import json

import pytest

pytestmark = pytest.mark.slow

FLAVOR = ("--vcpus", "1", "--ram", "256", "--disk", "1")
REAPER = "/etc/nova/nova.conf.d/zz-reaper.conf"
DEVICE = "/opt/nova-hpc/venv/bin/nova-hpc device"


def _signal(name):
    """To nova-compute of the node, whose init starts it again when it ends."""
    return (
        "for each in /proc/[0-9]*; do tr '\\0' ' ' <$each/cmdline 2>/dev/null"
        f" | grep -q 'inside/[c]ompute.py' && kill -{name} ${{each#/proc/}}; done; true"
    )


def _listed(lab):
    return {row["Address"]: row for row in json.loads(lab.inside(f"{DEVICE} list --format json"))}


def _given(lab, address):
    (node,) = lab.status()["nodes"]
    return any(e["address"] == address and not e["withheld"] for e in node["providers"])


@pytest.fixture
def flavor(lab):
    """A GPU for a server, whichever."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    lab.openstack(
        *("flavor", "create", "lab.owners", *FLAVOR),
        *("--property", "pci_passthrough:alias=gpu:1"),
        *("--property", "hw:mem_page_size=2048"),
        *("--property", "hw:pci_numa_affinity_policy=preferred"),
    )
    lab.until(
        lambda: all(row["State"] != "in use" for row in _listed(lab).values()),
        "no device is in use",
    )
    yield "lab.owners"
    lab.openstack("server", "delete", "--wait", "owner", check=False)
    lab.openstack("flavor", "delete", "lab.owners")


def test_a_server_that_is_deleted_while_nova_compute_is_away(lab, flavor):
    lab.openstack(
        *("server", "create", "--flavor", flavor, "--image", "hpc-guest", "--nic", "none"),
        *("--wait", "owner"),
    )
    server = lab.show("owner")
    assert server["status"] == "ACTIVE"
    (mine,) = (a for a, row in _listed(lab).items() if row["Server"] == server["id"])
    group = lab.inside(f"basename $(readlink /sys/bus/pci/devices/{mine}/iommu_group)").strip()
    # Nova ends such a guest when it starts, or half an hour later: here it does not.
    lab.inside(f"printf '[DEFAULT]\\nrunning_deleted_instance_action = noop\\n' >{REAPER}; sync")
    # Nobody answers for the node; the user deletes, and the API does it by itself.
    lab.inside(_signal("STOP"))
    try:
        (service,) = (
            each
            for each in json.loads(lab.openstack("compute", "service", "list", "-f", "json"))
            if each["Binary"] == "nova-compute"
        )
        words = ("compute", "service", "set", service["Host"], "nova-compute")
        lab.openstack(*words, "--down")
        lab.openstack("server", "delete", "--wait", "owner")
        assert lab.servers() == []
        assert "running" in lab.inside(f"virsh domstate {server['id']}")
        lab.openstack(*words, "--up")
    finally:
        lab.inside(_signal("KILL"))

    lab.until(
        lambda: f"{mine} is not offered: guest domain" in lab.tail(400), "nova-compute says why"
    )
    row = _listed(lab)[mine]
    print(f"RESULT: {row}")
    assert row["Server"] == server["id"]
    refused = lab.inside(f"{DEVICE} check {mine} --accept 2>&1; echo status $?")
    print(f"RESULT: {refused}")
    assert "status 0" not in refused
    # The guest still has it: its QEMU has the group open, and the kernel lets nobody in.
    opened = f"ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c '/dev/vfio/{group}$' || true"
    assert int(lab.inside(opened)) >= 1
    tried = lab.inside(f"sh -c 'exec 9<>/dev/vfio/{group}' 2>&1; true")
    print(f"RESULT: {tried}")
    assert "busy" in tried
    lab.inside(f"rm {REAPER}")
    lab.inside(f"virsh destroy {server['id']}; virsh undefine --nvram {server['id']}")
    lab.until(lambda: _listed(lab)[mine]["State"] == "free", f"{mine} is clean and free again")


def test_a_process_that_holds_a_group(lab, flavor):
    free = [a for a, row in _listed(lab).items() if row["Role"] == "gpu" and row["State"] == "free"]
    mine = sorted(free)[0]
    lab.inside(
        f"group=$(basename $(readlink /sys/bus/pci/devices/{mine}/iommu_group));"
        " export group; sh -c 'exec 9<>/dev/vfio/$group; echo $$ >/run/holder; exec sleep 3600'"
        " </dev/null >/dev/null 2>&1 & sleep 2; test -s /run/holder"
    )
    try:
        row = lab.until(
            lambda: _listed(lab)[mine]["State"] == "in use" and _listed(lab)[mine],
            f"{mine} is marked",
        )
        print(f"RESULT: {row}")
        assert row["Server"] == "unknown"
        lab.inside(f"{DEVICE} quarantine {mine} --reason test")
        refused = lab.inside(f"{DEVICE} release {mine} 2>&1; echo status $?")
        print(f"RESULT: {refused}")
        assert "status 0" not in refused
    finally:
        lab.inside("kill $(cat /run/holder)")
    lab.until(lambda: _listed(lab)[mine]["Server"] in ("", None), f"{mine} has lost its mark")
    released = lab.inside(f"{DEVICE} release {mine}")
    print(f"RESULT: {released}")
    assert "back in service" in released
    # The next node of this name would take what is still reserved for an operator's word.
    lab.until(lambda: _given(lab, mine), f"Placement gives {mine} again")
