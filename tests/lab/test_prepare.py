# SPDX-License-Identifier: Apache-2.0
"""A host that the Ansible collection has prepared starts again, by its own means alone.

The real ansible-playbook runs the roles ``configure`` and ``prepare`` over ssh in the node.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from nova_hpc_lab import cloud as lab_cloud
from nova_hpc_lab.node.shape import Adapter, Shape
from nova_hpc_lab.state import Paths
from nova_hpc_tools.adopt import host_files
from tests.lab import environments
from tests.lab.environments import TOP

pytestmark = pytest.mark.slow

COMMAND = "/opt/nova-hpc/venv/bin/nova-hpc"
PAGES = 384
BOOT = ("--boot-loader", "grub", "--initramfs", "initramfs-tools")
#: What is looked at, on a host that has just started.
LOOK = """
for d in /sys/bus/pci/devices/*; do
  [ "$(cat $d/vendor):$(cat $d/device)" = 0x1234:0x1111 ] &&
    echo "gpu ${d##*/} $(basename $(readlink $d/driver))"
  [ -e $d/physfn ] &&
    echo "vf $(basename $(readlink $d/physfn)) $(basename "$(readlink $d/driver)")"
done
for n in /sys/devices/system/node/node[0-9]*; do
  echo "pages $(cat $n/hugepages/hugepages-2048kB/nr_hugepages)"; done
cat /proc/cmdline
"""


def playbook(lab, folder, declaration):
    """Run the roles of the collection on the node, with this declaration."""
    python = environments.python("ansible", "ansible-core")
    programs = {each: python.with_name(each) for each in ("ansible-galaxy", "ansible-playbook")}
    installed = folder / "collections"
    words = ("collection", "install", "--force", "-p", installed, TOP / "ansible")
    subprocess.run([programs["ansible-galaxy"], *words], check=True, capture_output=True)
    machine = lab_cloud.existing(Paths.from_environment(lab.environ)).machine("hpc1")
    _, *arguments, target = machine.ssh_argv()
    user, _, address = target.rpartition("@")
    variables = {
        "ansible_host": address,
        "ansible_user": user or "root",
        "ansible_ssh_args": shlex.join(arguments),
        "ansible_pipelining": True,
        "ansible_python_interpreter": str(Path(COMMAND).with_name("python")),
        "nova_hpc_command": COMMAND,
        "nova_hpc_parts": ["compute"],
        "nova_hpc_declaration": declaration,
        "nova_hpc_prepare_options": list(BOOT),
        # The boot loader of the node is QEMU.
        "nova_hpc_prepare_run": False,
    }
    (folder / "inventory.json").write_text(
        json.dumps({"hpc_nodes": {"hosts": {"hpc1": variables}}})
    )
    roles = [f"nova_hpc.cloud.{name}" for name in ("configure", "prepare")]
    (folder / "play.yml").write_text(
        json.dumps([{"hosts": "hpc_nodes", "gather_facts": False, "roles": roles}])
    )

    def play(*more):
        done = subprocess.run(
            [
                programs["ansible-playbook"],
                *("-i", folder / "inventory.json", *more, folder / "play.yml"),
            ],
            env=os.environ | {"ANSIBLE_COLLECTIONS_PATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return play


@pytest.fixture
def folder(lab):
    """The node's; at the end it starts as it did before."""
    found = lab.state / "nodes" / "hpc1"
    yield found
    lab.inside(f"{COMMAND} prepare --write / --remove")
    shutil.rmtree(found / "boot", ignore_errors=True)
    assert lab.restarted()["state"] == "up"


def test_a_prepared_host_starts_as_it_was_declared(lab, folder, tmp_path):
    adapters = [each for _, each in Shape.load("two-socket").devices() if isinstance(each, Adapter)]
    addresses = {
        each.name: lab.inside(f"basename $(readlink -f /sys/class/net/{each.name}/device)").strip()
        for each in adapters
    }
    wishes = {
        "vfs": {addresses[each.name]: each.vfs for each in adapters},
        "hugepages": {"2M": PAGES},
    }
    before = yaml.safe_load(lab.inside("cat /etc/nova-hpc/node.yaml"))
    play = playbook(lab, tmp_path, before | wishes)
    lab.inside("mkdir -p /etc/default/grub.d")
    check = play("--check", "--diff")
    print("RESULT:", check)
    assert "+hugepages:" in check
    assert not lab.inside(f"ls /{host_files.GRUB} 2>/dev/null; true")
    changed = play()
    assert int(re.search(r"changed=(\d+)", changed)[1]) > 0
    # Again: nothing.
    assert re.search(r"changed=0 .*failed=0", play())
    assert lab.inside(f"{COMMAND} prepare --write / {' '.join(BOOT)} --dry-run") == (
        "Nothing to do.\n"
    )
    (folder / "boot" / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "boot" / "line").write_text(
        lab.inside(f'. /{host_files.GRUB}; echo "$GRUB_CMDLINE_LINUX"')
    )
    script = folder / "boot" / "scripts" / "nova-hpc"
    script.write_text(lab.inside(f"cat /{host_files.SCRIPT}"))
    # With what the initramfs does, and by udev alone.
    for early in (True, False):
        if not early:
            script.unlink()
        node = lab.restarted()
        assert node["state"] == "up", node
        assert node["restarts"] == 0
        found = [line.strip() for line in lab.inside(LOOK).splitlines()]
        print("RESULT:", "with the initramfs" if early else "udev alone", found)
        gpus = [line.split()[2] for line in found if line.startswith("gpu ")]
        assert gpus == ["vfio-pci"] * 3
        assert sorted(line for line in found if line.startswith("vf ")) == sorted(
            line
            for each in adapters
            for line in [f"vf {addresses[each.name]} {'' if each.network else 'vfio-pci'}".strip()]
            * each.vfs
        )
        assert [line for line in found if line.startswith("pages ")] == [f"pages {PAGES}"] * 2
        assert found[-1].endswith(f"intel_iommu=on iommu=pt hugepagesz=2M hugepages={2 * PAGES}")
        doctor = lab.inside(f"{COMMAND} doctor -f json || true")
        checks = {each["check"] for each in json.loads(doctor)["findings"]}
        print("RESULT: doctor", checks)
        assert not checks & {
            "driver",
            "vfs-declared",
            "vfs-none",
            "hugepages-declared",
            "iommu-off",
            "prepare-drift",
        }
        serial = (folder / "serial.log").read_text(errors="replace")
        assert not re.search(r"Oops|BUG:|NULL pointer", serial)
    done = lab.nova_hpc("demo")
    print("RESULT:", done.stdout[-1500:])
    assert done.returncode == 0, done.stdout + done.stderr
