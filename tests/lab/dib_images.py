# SPDX-License-Identifier: Apache-2.0
"""Images that diskimage-builder makes of this project's elements, on Debian 12.

They have no partitions: diskimage-builder needs the kernel's device mapper to make these, and a
container has none of that.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc_guest import build

#: What building needs, of the packages of bindep.txt.
PROGRAMS = ("debootstrap", "sudo")
DISK = [
    {"local_loop": {"name": "image0"}},
    {
        "mkfs": {
            "name": "mkfs_root",
            "base": "image0",
            "type": "ext4",
            "mount": {"mount_point": "/", "fstab": {"options": "defaults", "fsck-passno": 1}},
        }
    },
]
#: Of the root's file system, as the image's fstab has it.
LABEL = "cloudimg-rootfs"


def install_builder(place):
    """Install diskimage-builder in an environment of its own; the folder."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing:
        pytest.skip(f"apt-get install debootstrap sudo: {missing} are not there")
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    pip = [place / "venv/bin/pip", "install", "-q", "diskimage-builder", "setuptools<80"]
    subprocess.run(pip, check=True)
    return place


def _find_mirror(suite):
    """The mirror of this suite of Debian that this machine uses."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(CREATED_BY)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = (line.split() for line in said.splitlines())
    return next(url for url, release, kind in words if (release, kind) == (suite, "Packages"))


def build_image(builder, name, kind, *elements, **environment):
    """Build an image of Debian 12."""
    done = subprocess.run(
        [
            *(builder / "venv/bin/disk-image-create", "-t", kind, "-o", builder / name),
            *("--no-tmpfs", "debian-minimal", *elements),
        ],
        env={
            **os.environ,
            "PATH": f"{builder / 'venv/bin'}:{os.environ['PATH']}",
            "ELEMENTS_PATH": str(Path(build.__file__).parent / "elements"),
            "NOVA_HPC_PYTHON": sys.executable,
            "DIB_RELEASE": "bookworm",
            "DIB_DISTRIBUTION_MIRROR": _find_mirror("bookworm"),
            "DIB_DEBIAN_SECURITY_MIRROR": _find_mirror("bookworm-security"),
            "DIB_BLOCK_DEVICE_CONFIG": json.dumps(DISK),
            "HOME": str(builder),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def build_members_root(builder):
    """Build the root of an image for members of a cluster; its folder."""
    build_image(builder, "members", "tar", "nova-hpc-cluster")
    root = builder / "members"
    root.mkdir()
    subprocess.run(["tar", "-C", root, "-xf", f"{root}.tar"], check=True)
    Path(f"{root}.tar").unlink()
    # diskimage-builder leaves both out of a tar.
    for name in ("proc", "sys"):
        (root / name).mkdir(exist_ok=True)
    return root


def make_disk(root, disk, size="4G", label=LABEL):
    """Make a disk of a root, which cloud-init and the image's fstab know by its label."""
    subprocess.run(["mkfs.ext4", "-qFL", label, "-d", root, disk, size], check=True)


def find_boot_files(root):
    """The kernel and the initial RAM file system of a root."""
    (kernel,) = root.glob("boot/vmlinuz-*")
    (initial,) = root.glob("boot/initrd.img-*")
    return kernel, initial


def measure(root):
    """Bytes of the files of a root."""
    said = subprocess.run(
        ["du", "-sb", "--apparent-size", root], capture_output=True, text=True, check=True
    ).stdout
    return int(said.split()[0])
