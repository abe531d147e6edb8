# SPDX-License-Identifier: Apache-2.0
"""A device's memory is cleaned by a service VM between two servers, in the real node.

The stand-in for a GPU keeps its memory over every reset. Each guest says what it finds there
when it boots, and leaves words of its own.
"""

import json
import re
import time

import pytest

from tests.lab.test_hygiene import DEVICE, FLAVOR, _listed
from tests.lab.test_owners import _signal

pytestmark = pytest.mark.slow

OPTIONS = "/etc/nova/nova.conf.d/zz-clean.conf"
PYTHON = "/opt/nova-hpc/venv/bin/python"
IMAGE = "/var/lib/nova/service-vm.img"
SECRET = "0x5EC2E75A"
ZERO = "0x00000000"
VMS = "virsh list --name | grep '^nova-hpc-clean-' || true"


@pytest.fixture
def gpu(lab):
    """The only GPU that servers get: the others are taken out of service."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    lab.openstack(
        *("flavor", "create", "lab.clean", *FLAVOR),
        *("--property", "pci_passthrough:alias=gpu:1"),
        *("--property", "hw:mem_page_size=2048"),
        *("--property", "hw:pci_numa_affinity_policy=preferred"),
    )
    free = lab.until(
        lambda: sorted(
            a for a, row in _listed(lab).items() if (row["Role"], row["State"]) == ("gpu", "free")
        ),
        "a GPU is free",
    )
    for other in free[1:]:
        lab.inside(f"{DEVICE} quarantine {other} --reason 'not now'")
    yield free[0]
    for name in ("one", "two", "three"):
        lab.openstack("server", "delete", "--wait", name, check=False)
    lab.openstack("flavor", "delete", "lab.clean")
    lab.inside(f"rm -f {OPTIONS}")
    for other in free[1:]:
        lab.inside(f"{DEVICE} release {other} --yes || true")


def _found(lab, name):
    """Boot a server; the words that its guest found in the device's memory."""
    lab.until(
        lambda: (
            (
                lab.openstack(
                    *("server", "create", "--flavor", "lab.clean", "--image", "hpc-guest"),
                    *("--nic", "none", "--wait", name),
                    check=False,
                )
                and lab.show(name)["status"] == "ACTIVE"
            )
            or lab.openstack("server", "delete", "--wait", name, check=False)
        ),
        f"server {name} is active",
    )
    assert lab.show(name)["status"] == "ACTIVE"
    assert lab.report(name)
    said = lab.openstack("console", "log", "show", name)
    words = re.findall(r"^memory \S+ (\d+) (\S+)", said.replace("\r", ""), re.MULTILINE)
    found = dict(words[-3:])
    print(f"RESULT: server {name} finds {found}")
    return set(found.values())


def test_a_reset_leaves_memory(lab, gpu):
    """What the stage is for: the next server reads what the first has written."""
    _found(lab, "one")
    lab.openstack("server", "delete", "--wait", "one")
    lab.until(lambda: _listed(lab)[gpu]["State"] == "free", f"{gpu} is free")
    # The firmware of a guest clears the first words itself.
    assert SECRET in _found(lab, "two")


def test_memory_is_clean_for_the_next_server(lab, gpu):
    began = time.monotonic()
    lab.inside(f"{PYTHON} -m nova_hpc.tenancy.service_vm.build {IMAGE} --python /usr/bin/python3")
    print(f"RESULT: image made in {time.monotonic() - began:.0f} s, {lab.inside(f'ls -l {IMAGE}')}")
    arguments = "tsc=reliable no_timer_check nokaslr nohz=off highres=off nopvspin"
    lab.inside(
        "printf '%s\\n' '[hpc]' 'clean_stage = gpu:service-vm' 'clean_checks = gpu:memory'"
        f" \"clean_vm_kernel = $(ls /boot/vmlinuz-*)\" 'clean_vm_initrd = {IMAGE}'"
        f" 'clean_vm_memory = 192' 'clean_timeout = 900' 'clean_vm_arguments = {arguments}'"
        f" >{OPTIONS}; sync"
    )
    lab.inside(_signal("KILL"))
    due = f"{DEVICE} show {gpu} -f value -c Stage"
    _found(lab, "two")
    assert lab.inside(due).startswith("due")
    lab.openstack("server", "delete", "--wait", "two")
    assert _listed(lab)[gpu]["State"] == "cleaning"

    row = lab.until(
        lambda: (row := _listed(lab)[gpu])["State"] == "free" and row, f"{gpu} is free", 1800
    )
    print(f"RESULT: cleaned in {row['Cleaned in s']} s, {lab.inside(due)}")
    assert float(row["Cleaned in s"]) > 0
    _nothing_left(lab, gpu)
    assert _found(lab, "three") == {ZERO}

    # Killed while a service VM has the device: libvirt ends the VM, and it begins again.
    lab.openstack("server", "delete", "--wait", "three")
    first = lab.until(lambda: lab.inside(VMS).strip(), "a service VM runs")
    print(f"RESULT: {first}: {_listed(lab)[gpu]['Reason']}")
    lab.inside(_signal("KILL"))
    lab.until(lambda: first not in lab.inside(VMS), f"{first} is gone", 120)
    # A VM that ends before it has said anything: the device is suspect, and tried again.
    second = lab.until(lambda: lab.inside(VMS).strip(), "another service VM runs")
    assert second != first
    lab.inside(f"virsh destroy {second}")
    lab.until(lambda: _listed(lab)[gpu]["State"] == "suspect", f"{gpu} is suspect")
    print(f"RESULT: {_listed(lab)[gpu]['Reason']}")
    lab.until(lambda: _listed(lab)[gpu]["State"] == "free", f"{gpu} is free", 1800)
    _nothing_left(lab, gpu)


def _nothing_left(lab, gpu):
    """No service VM, no process that has one, no mark."""
    assert lab.inside(VMS).strip() == ""
    assert lab.inside("pgrep -f '[s]ervice_vm.attend' || true").strip() == ""
    entry = json.loads(lab.inside("cat /var/lib/nova/hpc-ledger.json"))["devices"][gpu]
    assert entry["stage"]["phase"] == "clean"
    assert "server" not in entry
