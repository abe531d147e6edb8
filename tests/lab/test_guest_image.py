# SPDX-License-Identifier: Apache-2.0
"""Images with the elements of diskimage-builder, built and booted in plain emulation.

They have no partitions, so element ``baremetal`` takes out the kernel that QEMU starts. The first
machine has one device of the two that it is told it was promised. Its console shows that the image
reads the promise at its first boot, and tells NCCL.
"""

import base64
import json
import re
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.mounts import parse_mount
from nova_hpc_guest import host_list, terms
from nova_hpc_guest.host_list import HostList, ListedHost
from tests.lab import dib_images

pytestmark = pytest.mark.slow

TOP = Path(__file__).resolve().parents[2]
PROMISE = TOP / "tests/data/golden/wire/guest-document/v1.json"
#: Seconds for a whole Debian that is emulated.
BOOT = 900

DRIVERS = """\
#!/bin/sh
set -e
echo here >/etc/drivers-were-here
cat >/etc/systemd/system/tell.service <<'UNIT'
[Unit]
After=nova-hpc-guest.service
[Service]
Type=oneshot
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/sh -c 'nova-hpc-guest show; cat /etc/nccl.conf; echo TOLD'
[Install]
WantedBy=multi-user.target
UNIT
ln -sf ../tell.service /etc/systemd/system/multi-user.target.wants/tell.service
"""


#: Told before the end of cloud-init's last stage, which runs the user's commands.
TELL = b"""\
#cloud-config
runcmd:
  - |
    exec >/dev/ttyS0 2>&1
    nova-hpc-guest cluster refresh --if-present
    echo BEGIN
    systemctl is-active data.automount nova-hpc-cluster.timer ssh
    timeout 5 ls /data
    echo ls $?
    sshd -T | grep ^hostkey
    cat /etc/hosts
    systemctl --failed --no-legend
    echo TOLD
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """diskimage-builder in an environment of its own."""
    return dib_images.install_builder(tmp_path_factory.mktemp("dib"))


@pytest.fixture(scope="module")
def members(builder):
    """The root of an image for members of a cluster."""
    return dib_images.build_members_root(builder)


def test_an_image_for_members_of_a_cluster_has_what_jobs_need(members):
    root = members
    for program in (
        *("mpirun --version", "ucx_info -v", "slurmd -V", "cloud-init --version"),
        *("nova-hpc-guest --help", "sshd -V", "mount.nfs -V", "chronyd --version"),
        "sh -c 'command -v ibv_devinfo ib_write_bw ibstat numactl lstopo netplan'",
    ):
        words = ["chroot", root, "sh", "-c", f"PATH=/usr/sbin:$PATH; {program} 2>&1"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        print("RESULT:", program, done.stdout.partition("\n")[0])
        assert done.returncode == 0 or "OpenSSH" in done.stdout, done.stdout
    units = root / "etc/systemd/system"
    assert (units / "timers.target.wants/nova-hpc-cluster.timer").is_symlink()
    assert not (units / "multi-user.target.wants/slurmd.service").is_symlink()
    # No image is a secret: neither of Slurm's, nor of a host.
    assert not [*(root / "etc/munge").iterdir()]
    assert not [*(root / "etc/ssh").glob("*key*")]
    waits = (units / "munge.service.d/nova-hpc-cluster.conf").read_text()
    assert "ConditionPathExists=/etc/munge/munge.key" in waits


def test_a_member_boots_while_the_server_of_its_mount_is_away(members, builder):
    """As ``openstack hpc cluster create --mount`` makes it, with a configuration drive."""
    secrets = Secrets(TELL)
    mounts = (parse_mount("10.0.2.99:/export:/data"),)
    wish = ClusterWish("train", frozenset({1, 2}), "1", image="1", hosts=True, mounts=mounts)
    hosts = tuple(ListedHost(at, f"10.0.2.{14 + at}", secrets.keys.public) for at in (1, 2))
    known = host_list.write_host_list(HostList("train", hosts, 2))
    server = wishes.server_body(wish, "group", (1,), secrets, {}, known)["server"]
    own_id = str(uuid.uuid4())
    metadata = {
        "uuid": own_id,
        "name": "train-1",
        "hostname": "train-1",
        "meta": server["metadata"],
    }
    latest = builder / "drive/openstack/latest"
    latest.mkdir(parents=True)
    (latest / "user_data").write_bytes(base64.b64decode(server["user_data"]))
    (latest / "meta_data.json").write_text(json.dumps(metadata))
    dib_images.make_disk(builder / "drive", builder / "config-2.raw", "8M", "config-2")
    dib_images.make_disk(members, builder / "cloudimg-rootfs.raw")
    kernel, initial = dib_images.find_boot_files(members)
    console = watch(
        builder / "member.log",
        *("-m", "2048", "-nic", "user,model=virtio-net-pci", "-kernel", kernel, "-initrd", initial),
        *("-drive", f"file={builder}/cloudimg-rootfs.raw,format=raw,if=virtio"),
        *("-drive", f"file={builder}/config-2.raw,format=raw,if=virtio,readonly=on"),
        *("-uuid", own_id, "-smbios", f"type=1,product=OpenStack Compute,uuid={own_id}"),
    )
    told = console.partition("BEGIN\n")[2].replace("\r", "")
    print("RESULT:", told)
    assert told.startswith("active\nactive\nactive\n")
    assert "\nls 124\n" in told
    assert "hostkey /etc/nova-hpc/host_key" in told
    assert "10.0.2.16 train-2 # nova-hpc cluster" in told
    assert "failed" not in told


def test_an_image_of_the_element_reads_its_promise_at_boot(builder):
    drivers = builder / "drivers"
    drivers.write_text(DRIVERS)
    elements = ("baremetal", "nova-hpc-guest")
    dib_images.build_image(builder, "hpc", "raw", *elements, NOVA_HPC_DRIVERS=str(drivers))
    console = boot(builder / "hpc", builder)
    print("RESULT:", *[line for line in console.splitlines() if "device" in line][-4:], sep="\n")
    assert "topology mirror, 2 devices" in console
    assert re.search(r"device 0 \(gpu 1234:11e8\): 0000:", console)
    assert "device 1 (vf 15b3:101e): not found" in console
    assert "NCCL_TOPO_FILE=/run/nova-hpc/nccl-topology.xml" in console


def boot(image, folder):
    """What the machine says until it has told what it was promised."""
    promised = json.loads(PROMISE.read_text())
    # QEMU's device for teaching, wherever it is.
    ids = {"vendor_id": "1234", "product_id": "11e8", "class_code": "00ff00"}
    promised["devices"][0] |= {**ids, "path": None}
    promise = folder / "promise"
    promise.write_bytes(base64.b64encode(json.dumps(promised).encode()))
    nccl = folder / "nccl"
    golden = PROMISE.parents[1] / "nccl-topology/v1.xml"
    nccl.write_bytes(base64.b64encode(golden.read_bytes()))
    return watch(
        folder / "console.log",
        *("-m", "1024", "-nic", "none", "-device", "edu"),
        *("-drive", f"file={image}.raw,format=raw,if=virtio"),
        *("-kernel", f"{image}.vmlinuz", "-initrd", f"{image}.initrd"),
        *("-fw_cfg", f"name={terms.DOCUMENT},file={promise}"),
        *("-fw_cfg", f"name={terms.NCCL},file={nccl}"),
    )


def watch(log, *words):
    """What a machine says on its console until it has told what it should."""
    process = subprocess.Popen(
        [
            *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg", "-smp", "2"),
            *("-display", "none", "-serial", f"file:{log}", "-no-reboot"),
            *("-append", "root=/dev/vda rw console=ttyS0", *words),
        ]
    )
    try:
        deadline = time.monotonic() + BOOT
        while True:
            text = log.read_text(errors="replace") if log.exists() else ""
            if "\nTOLD" in text:
                return text
            assert process.poll() is None, text[-3000:]
            assert time.monotonic() < deadline, text[-3000:]
            time.sleep(2)
    finally:
        process.kill()
        process.wait()
