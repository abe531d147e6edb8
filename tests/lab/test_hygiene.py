# SPDX-License-Identifier: Apache-2.0
"""A device whose reset fails, in the real node: quarantined, and back by the operator.

The kernel lets root take a device's ways to be reset away (an empty
``reset_method``); the next reset then fails with its own answer.
"""

import json

import pytest

FLAVOR = ("--vcpus", "1", "--ram", "256", "--disk", "1")
DEVICE = "/opt/nova-hpc/venv/bin/nova-hpc device"


def _listed(lab):
    return {row["Address"]: row for row in json.loads(lab.inside(f"{DEVICE} list --format json"))}


def _providers(lab):
    (node,) = lab.status()["nodes"]
    return {one["address"]: one for one in node["providers"] if not one["withheld"]}


def _create(lab, name, flavor="lab.hygiene", check=True):
    lab.openstack(
        *("server", "create", "--flavor", flavor, "--image", "hpc-guest", "--nic", "none"),
        *("--wait", name),
        check=check,
    )
    return lab.show(name)


def _flavor(lab, name, gpus):
    lab.openstack(
        *("flavor", "create", name, *FLAVOR),
        *("--property", f"pci_passthrough:alias=gpu:{gpus}"),
        *("--property", "hw:mem_page_size=2048"),
        *("--property", "hw:pci_numa_affinity_policy=preferred"),
    )


def _owned(listed, server):
    return {address for address, row in listed.items() if row["Server"] == server["id"]}


@pytest.fixture
def flavor(lab):
    """A GPU for a server, whichever."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    _flavor(lab, "lab.hygiene", 1)
    lab.until(
        lambda: all(row["State"] != "in use" for row in _listed(lab).values()),
        "no device is in use",
    )
    yield
    for name in ("first", "rest", "more"):
        lab.openstack("server", "delete", "--wait", name, check=False)
    lab.openstack("flavor", "delete", "lab.hygiene")
    lab.openstack("flavor", "delete", "lab.hygiene.rest", check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("flavor")
def test_a_device_whose_reset_fails(lab):
    server = _create(lab, "first")
    assert server["status"] == "ACTIVE"
    (mine,) = _owned(_listed(lab), server)
    # The kernel's own "no": every later reset of it fails with ENOTTY.
    lab.inside(
        f"cd /sys/bus/pci/devices/{mine}; cat reset_method >/run/reset_method;"
        ' echo >reset_method; test -z "$(cat reset_method)"'
    )
    lab.openstack("server", "delete", "--wait", "first")
    listed = {}

    def quarantined():
        listed.update(_listed(lab))
        return listed[mine]["State"] == "quarantined"

    lab.until(quarantined, f"{mine} is in quarantine")
    print(f"RESULT: {listed[mine]}")
    assert "reset" in listed[mine]["Reason"]
    # Nova and Placement lose it, and no server gets it: all others can be had, and no more.
    lab.until(lambda: mine not in _providers(lab), f"Placement has lost {mine}")
    others = {a for a, row in listed.items() if row["Role"] == "gpu" and row["State"] == "free"}
    assert others
    _flavor(lab, "lab.hygiene.rest", len(others))
    rest = _create(lab, "rest", "lab.hygiene.rest")
    assert rest["status"] == "ACTIVE"
    assert _create(lab, "more", check=False)["status"] == "ERROR"
    listed = _listed(lab)
    assert _owned(listed, rest) == others
    assert listed[mine]["State"] == "quarantined"
    # The commands show it; a release before the cure fails.
    shown = json.loads(lab.inside(f"{DEVICE} show {mine} --format json"))
    assert shown["State"] == "quarantined"
    refused = lab.inside(f"{DEVICE} release {mine} 2>&1; echo status $?")
    print(f"RESULT: {refused}")
    assert "stays in quarantine" in refused
    assert "status 1" in refused
    # The cure, and the operator's release; what is free now is this one.
    released = lab.inside(
        f"cat /run/reset_method >/sys/bus/pci/devices/{mine}/reset_method; {DEVICE} release {mine}"
    )
    print(f"RESULT: {released}")
    assert "back in service" in released
    lab.until(lambda: mine in _providers(lab), f"Placement has {mine} again")
    again = _create(lab, "first")
    assert again["status"] == "ACTIVE"
    assert _owned(_listed(lab), again) == {mine}
