# SPDX-License-Identifier: Apache-2.0
"""A device's memory is cleaned by a service VM between two servers, in the real node.

The stand-in for a GPU keeps its memory over every reset. Each guest says what it finds there
when it boots, and leaves words of its own.
"""

import json
import re
import time

import pytest

from nova_hpc_lab import observe
from tests.lab.test_hygiene import DEVICE, FLAVOR, _listed
from tests.lab.test_owners import _signal

pytestmark = pytest.mark.slow

OPTIONS = "/etc/nova/nova.conf.d/zz-clean.conf"
PYTHON = "/opt/nova-hpc/venv/bin/python"
IMAGE = "/var/lib/nova/service-vm.img"
SECRET = "0x5EC2E75A"
ZERO = "0x00000000"
FLAVOR_NAME = "lab.clean"
SERVERS = ("one", "two", "three", "four", "five")
COMPUTE = "inside/[c]ompute.py"
ATTENDING = "[s]ervice_vm.attend"
VMS = "virsh list --name | grep '^nova-hpc-clean-' || true"


@pytest.fixture(scope="module")
def gpu(lab):
    """The only GPU that servers get: the others are taken out of service."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    lab.openstack(
        *("flavor", "create", FLAVOR_NAME, *FLAVOR),
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
    for name in SERVERS:
        lab.openstack("server", "delete", "--wait", name, check=False)
    lab.openstack("flavor", "delete", FLAVOR_NAME)
    lab.inside(f"rm -f {OPTIONS}; sync; {_signal('KILL')}")
    for other in free[1:]:
        lab.inside(f"{DEVICE} release {other} --yes || true")


@pytest.fixture(scope="module")
def staged(lab, gpu):
    """The GPU has a stage between two servers, with an image that the node itself has built."""
    began = time.monotonic()
    lab.inside(f"{PYTHON} -m nova_hpc.tenancy.stage.build {IMAGE} --python /usr/bin/python3")
    print(f"RESULT: image made in {time.monotonic() - began:.0f} s, {lab.inside(f'ls -l {IMAGE}')}")
    arguments = "tsc=reliable no_timer_check nokaslr nohz=off highres=off nopvspin"
    lab.inside(
        "printf '%s\\n' '[hpc]' 'clean_stage = gpu:service-vm' 'clean_checks = gpu:memory'"
        f" \"clean_vm_kernel = $(ls /boot/vmlinuz-*)\" 'clean_vm_initrd = {IMAGE}'"
        f" 'clean_vm_memory = 192' 'clean_timeout = 900' 'clean_vm_arguments = {arguments}'"
        f" >{OPTIONS}; sync"
    )
    _killed(lab)
    return gpu


def _killed(lab):
    """End nova-compute at once; its successor has not begun when this returns."""
    before = _compute(lab)
    lab.inside(_signal("KILL"))
    lab.until(lambda: before.isdisjoint(_compute(lab)), "nova-compute is gone", 60)


def _compute(lab):
    return _processes(lab, COMPUTE)


def _processes(lab, pattern):
    """The ids of the node's processes whose command line matches."""
    return set(
        lab.inside(
            "for each in /proc/[0-9]*; do tr '\\0' ' ' <$each/cmdline 2>/dev/null"
            f" | grep -q '{pattern}' && echo ${{each#/proc/}}; done; true"
        ).split()
    )


def _found(lab, name):
    """Boot a server; the words that its guest found in the device's memory."""
    lab.until(
        lambda: (
            (
                lab.openstack(
                    *("server", "create", "--flavor", FLAVOR_NAME, "--image", "hpc-guest"),
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
    lab.openstack("server", "delete", "--wait", "two")
    lab.until(lambda: _listed(lab)[gpu]["State"] == "free", f"{gpu} is free")


def test_memory_is_clean_for_the_next_server(lab, staged):
    _found(lab, "three")
    assert lab.inside(_stage(staged)).startswith("due")
    lab.openstack("server", "delete", "--wait", "three")
    assert _listed(lab)[staged]["State"] == "cleaning"
    # Nobody else gets it meanwhile.
    assert _reserved(lab, staged) == 1

    row = lab.until(lambda: _free(lab, staged), f"{staged} is free", 1800)
    print(f"RESULT: cleaned in {row['Cleaned in s']} s, {lab.inside(_stage(staged))}")
    assert float(row["Cleaned in s"]) > 0
    _nothing_left(lab, staged)
    assert _found(lab, "four") == {ZERO}


def test_nova_compute_is_killed_at_each_step_of_a_stage(lab, staged):
    """It leaves no VM, no process and no reservation, and the device is clean in the end."""
    # The guest of the test before has left its words, too.
    if not any(one["Name"] == "four" for one in lab.servers()):
        _found(lab, "four")
    lab.openstack("server", "delete", "--wait", "four")
    # 1. Due, and begun or not: what there is goes with nova-compute.
    _killed(lab)
    print(f"RESULT: killed when it was due: {lab.inside(_stage(staged)).strip()}")
    # 2. In the middle: a service VM has the device.
    first = lab.until(lambda: lab.inside(VMS).strip(), "a service VM runs")
    print(f"RESULT: {first}: {_listed(lab)[staged]['Reason']}")
    attending = _processes(lab, ATTENDING)
    assert attending
    _killed(lab)
    lab.until(lambda: first not in lab.inside(VMS), f"{first} is gone", 120)
    left = _processes(lab, ATTENDING)
    print(f"RESULT: killed with {first}: processes before {attending}, after {left}")
    assert not attending & left
    # Nobody has it and nobody gets it: not Placement's word alone, and not the ledger's alone.
    assert _reserved(lab, staged) == 1
    assert _listed(lab)[staged]["State"] != "free"
    since = len(_log(lab))
    # 3. The next one begins again. A VM that ends before it has said anything: the device is
    # suspect, and tried again.
    second = lab.until(lambda: lab.inside(VMS).strip(), "another service VM runs")
    assert second != first
    # One that is still starting ends as well, and is not there any more when virsh looks.
    lab.inside(f"virsh destroy {second} || ! virsh domstate {second}")
    told = f"{staged} has not passed its stage"
    lab.until(lambda: told in _log(lab, since), f"{staged} is suspect")
    print(f"RESULT: {re.findall(f'.*{told}.*', _log(lab, since))[-1]}")
    # 4. The VM has given its answer, and nova-compute has not written it down, or just has.
    third = lab.until(
        lambda: (name := lab.inside(VMS).strip()) != second and name, "a third VM runs", 1800
    )
    lab.inside(
        f"while virsh domstate {third} >/dev/null 2>&1; do sleep 0.2; done; {_signal('KILL')}"
    )
    print(f"RESULT: killed after {third}: {lab.inside(_stage(staged)).strip()}")
    row = lab.until(lambda: _free(lab, staged), f"{staged} is free", 1800)
    print(f"RESULT: after four faults: cleaned in {row['Cleaned in s']} s")
    _nothing_left(lab, staged)
    assert _found(lab, "five") == {ZERO}


def _log(lab, since=0):
    """What nova-compute has written, from that character on."""
    text = (lab.state / "nodes" / "hpc1" / "nova-compute.log").read_text(errors="replace")
    return text[since:]


def _stage(gpu):
    return f"{DEVICE} show {gpu} -f value -c Stage"


def _free(lab, gpu):
    row = _listed(lab)[gpu]
    return row["State"] == "free" and row


def _reserved(lab, gpu):
    """How many of the GPU's provider Placement keeps back; -1: it has no such provider."""
    found = [one.reserved for one in observe.providers(lab.connection) if one.address == gpu]
    return found[0] if found else -1


def _nothing_left(lab, gpu):
    """No service VM, no process that has one, no mark, no reservation."""
    assert lab.inside(VMS).strip() == ""
    assert not _processes(lab, ATTENDING)
    entry = json.loads(lab.inside("cat /var/lib/nova/hpc-ledger.json"))["devices"][gpu]
    assert entry["stage"]["phase"] == "clean"
    assert "server" not in entry
    lab.until(lambda: _reserved(lab, gpu) == 0, f"Placement offers {gpu} again")
