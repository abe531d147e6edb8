# SPDX-License-Identifier: Apache-2.0
"""An image of the element nova-hpc-cluster is booted by Nova as the member of a cluster.

A whole Debian with systemd and cloud-init, in a guest of an emulated node: that takes long, so it
is one member. Its console has what the user's commands print.
"""

import time

import pytest

from nova_hpc_lab.machines import IMAGE_PROPERTIES
from tests.lab import dib_images, nested_guest

pytestmark = pytest.mark.slow

IMAGE, FLAVOR = "hpc-debian-12", "lab.image"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:affinity": "root",
}
LINE = f"root=/dev/vda rw {nested_guest.LINE}"
#: Seconds for a boot that is emulated twice.
BOOT = 5400
#: The last stage of cloud-init runs the user's commands.
TELL = """\
#cloud-config
runcmd:
  - |
    exec >/dev/ttyS0 2>&1
    nova-hpc-guest cluster refresh --if-present
    echo BEGIN
    systemctl is-active nova-hpc-cluster.timer ssh
    sshd -T | grep ^hostkey
    cat /etc/nova-hpc/hosts
    nova-hpc-guest check
    mpirun --allow-run-as-root -hostfile /etc/nova-hpc/hosts hostname
    systemctl --failed --no-legend
    echo TOLD
"""


@pytest.fixture
def image(lab, tmp_path_factory):
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    builder = dib_images.install_builder(tmp_path_factory.mktemp("dib"))
    root = dib_images.build_members_root(builder)
    dib_images.make_disk(root, builder / "members.raw", "3G")
    kernel, initial = dib_images.find_boot_files(root)
    glance = lab.connection.image
    parts = {
        kind: glance.create_image(
            name=f"{IMAGE}-{kind}",
            filename=str(path),
            visibility="public",
            disk_format=kind,
            container_format=kind,
        ).id
        for kind, path in (("aki", kernel), ("ari", initial))
    }
    glance.create_image(
        name=IMAGE,
        filename=f"{builder}/members.raw",
        visibility="public",
        disk_format="raw",
        container_format="bare",
        kernel_id=parts["aki"],
        ramdisk_id=parts["ari"],
        **IMAGE_PROPERTIES | {"os_command_line": LINE},
    )
    words = (f"--property={key}={value}" for key, value in PROPERTIES.items())
    size = ("--vcpus", "1", "--ram", "1024", "--disk", "4")
    lab.openstack("flavor", "create", FLAVOR, *size, *words)
    lab.openstack("keypair", "create", FLAVOR)
    yield IMAGE
    lab.openstack("hpc", "cluster", "delete", "img", check=False)
    lab.openstack("keypair", "delete", FLAVOR)
    lab.openstack("flavor", "delete", FLAVOR)
    for name in (IMAGE, f"{IMAGE}-aki", f"{IMAGE}-ari"):
        lab.openstack("image", "delete", name, check=False)


def test_an_image_for_members_boots_as_a_member(lab, image, tmp_path):
    tell = tmp_path / "tell"
    tell.write_text(TELL)
    done = lab.client(
        *("hpc", "cluster", "create", "img", "--members", "1", "--flavor", FLAVOR),
        *("--image", image, "--network", "lab", "--key-name", FLAVOR, "--user-data", str(tell)),
        *("--timeout", "900"),
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    end = time.monotonic() + BOOT
    while "\nTOLD" not in (console := lab.openstack("console", "log", "show", "img-1")):
        assert time.monotonic() < end, console[-3000:]
        time.sleep(20)
    told = console.replace("\r", "").partition("BEGIN\n")[2]
    print("RESULT:", told)
    assert told.startswith("active\nactive\n")
    assert "hostkey /etc/nova-hpc/host_key" in told
    assert "\nimg-1 slots=1\n" in told
    assert "As promised: 1 devices" in told
    assert "\nimg-1\n" in told
    assert "failed" not in told
