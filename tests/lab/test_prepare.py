# SPDX-License-Identifier: Apache-2.0
"""A host that ``nova-hpc prepare`` has prepared starts again, by its own means alone."""

import json
import re
import shutil

import psutil
import pytest

from nova_hpc.offer import host_files
from nova_hpc_lab.node.shape import Adapter, Shape

pytestmark = pytest.mark.slow

COMMAND = "/opt/nova-hpc/venv/bin/nova-hpc"
PAGES = 384
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


def restarted(lab):
    """The node's supervisor ends, and with it the node; then the lab is brought up again."""
    (before,) = lab.status()["nodes"]
    supervisor = psutil.Process(before["supervisor_pid"])
    supervisor.terminate()
    supervisor.wait(timeout=120)
    lab.up("--nodes", "1", "--shape", "two-socket")
    (after,) = lab.status()["nodes"]
    assert after["qemu_pid"] != before["qemu_pid"]
    return after


def test_a_prepared_host_starts_as_it_was_declared(lab):
    folder = lab.state / "nodes" / "hpc1"
    adapters = [each for _, each in Shape.load("two-socket").devices() if isinstance(each, Adapter)]
    addresses = {
        each.name: lab.inside(f"basename $(readlink -f /sys/class/net/{each.name}/device)").strip()
        for each in adapters
    }
    vfs = " ".join(f"--vfs {addresses[each.name]}={each.vfs}" for each in adapters)
    print(
        "RESULT:",
        lab.inside(
            f"{COMMAND} configure --write /etc/nova/nova.conf.d --part compute {vfs}"
            f" --hugepages 2M={PAGES} 2>&1 && mkdir -p /etc/default/grub.d &&"
            f" {COMMAND} prepare --write / --boot-loader grub --initramfs initramfs-tools"
        ),
    )
    assert (
        lab.inside(
            f"{COMMAND} prepare --write / --boot-loader grub --initramfs initramfs-tools --dry-run"
        )
        == "Nothing to do.\n"
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
        node = restarted(lab)
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
    lab.inside(f"{COMMAND} prepare --write / --remove")
    shutil.rmtree(folder / "boot")
    assert restarted(lab)["state"] == "up"
