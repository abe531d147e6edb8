# SPDX-License-Identifier: Apache-2.0
"""The root disk of the virtual node, built once and cached.

It has two stages, each with its own entry in the cache: Debian's packages (minutes, from the
network), and the disk with Nova's Python environment (about half a minute). Neither contains the
project's own code. That is on the configuration disk, so a change of the code needs no new image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_guest.build import single_file
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import cache, debian, emulator, python_env
from nova_hpc_lab.node.contract import Progress
from nova_hpc_lab.node.initramfs import module_files, plain_module
from nova_hpc_lab.state import Paths

_DISK_SIZE: Final = "6G"

#: Modules that the node's own initial RAM file system loads before it mounts the root disk.
BOOT_MODULES: Final = ("virtio_blk", "ext4", "crc32c_generic")
#: Modules that the tenant's guest loads.
GUEST_MODULES: Final = ("igbvf", "nvme", "qemu_fw_cfg", "virtio_net")
# Modules that the node loads later; they are uncompressed, because unpacking is slow there.
_LATER_MODULES: Final = (
    *("virtio_net", "kvm_amd", "vfio_pci", "vfio_iommu_type1", "igb", "nvme", "tun"),
)


class ImageError(LabError):
    """The image cannot be built; the text names the step and the cure."""


@attrs.frozen
class Image:
    """A complete image of a node in the cache: root disk, kernel and modules."""

    folder: Path

    @property
    def disk(self) -> Path:
        """Root disk, qcow2; a backing file that is never written to."""
        return self.folder / "disk.qcow2"

    @property
    def kernel(self) -> Path:
        """Kernel of the node, and of the tenants' guests."""
        return self.folder / "vmlinuz"

    @property
    def busybox(self) -> Path:
        """Path of a statically linked busybox."""
        return self.folder / "busybox"

    @property
    def modules(self) -> Path:
        """The few kernel modules of the initial RAM file systems."""
        return self.folder / "modules"

    @property
    def guest_python(self) -> Path:
        """A folder with the files that the guest needs to run ``nova-hpc-guest``."""
        return self.folder / "guest-python"


def prepare_image(paths: Paths, progress: Progress | None = None) -> Image:
    """Make sure that the node's root disk and its emulator are in the cache.

    It needs root and ``mmdebstrap``. It may be interrupted at any point and called again; complete
    entries are kept, and checked against their checksums.

    :param progress: called at each step.
    :raises LabError: a step failed.
    """
    tell = progress or (lambda text, done: None)
    if os.geteuid():
        raise ImageError("the node's image can only be made by root; run the command with sudo")
    folder = paths.cache / "node"
    log = paths.cache / "node" / "build.log"
    folder.mkdir(parents=True, exist_ok=True)

    def packages(target: Path) -> None:
        tell("Debian packages for the node (minutes, only once)", None)
        debian.bootstrap(target / "root.tar", log)

    def disk(target: Path) -> None:
        tell("root disk of the node", None)
        _make_disk(base / "root.tar", paths.venv, target)

    tell("checking the node's packages", None)
    name = f"debian-{debian.key()}"
    base = folder / name
    image = folder / image_name(paths)
    # An intact disk does not need the packages from which it was made.
    if not cache.intact(image):
        base = cache.entry(folder, name, packages)
        cache.entry(folder, image.name, disk)
        cache.remove_others(folder, "debian-", name)
        cache.remove_others(folder, "image-", image.name)
    emulator.prepare(paths, tell)
    tell("node image ready", 1.0)
    return Image(image)


def find_image(paths: Paths) -> Image:
    """Return the image that :func:`prepare_image` has made.

    :raises ImageError: :func:`prepare_image` was not called yet.
    """
    folder = paths.cache / "node" / image_name(paths)
    if not (folder / "manifest.json").exists():
        raise ImageError("there is no image of the node yet; run: nova-hpc lab up")
    return Image(folder)


def image_name(paths: Paths) -> str:
    """Return the name of the image's cache entry, with a key of all its sources."""
    versions = [
        f"{name}={found.version}" for name, found in python_env.distributions(paths.venv).items()
    ]
    # The Python modules that make the image are sources, too.
    makers = [Path(module).read_bytes() for module in (__file__, python_env.__file__)]
    return f"image-{cache.key_of(debian.key(), *versions, *makers, single_file())}"


def _make_disk(archive: Path, venv: Path, target: Path) -> None:
    root = target / "root"
    root.mkdir()
    _run("tar", "-x", "-p", "--numeric-owner", "-f", str(archive), "-C", str(root))
    _boot_files(root, target)
    for path, content in python_env.for_guest(root, single_file()).items():
        there = target / "guest-python" / path
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content)
    python_env.copy(venv, root)
    _settings(root)
    _run("chroot", str(root), "depmod", _version(root))
    raw = target / "disk.raw"
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(raw), _DISK_SIZE)
    _run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(target / "disk.qcow2"))
    raw.unlink()
    shutil.rmtree(root)


def _boot_files(root: Path, target: Path) -> None:
    """Copy the kernel, busybox and modules beside the disk, and unpack the modules on it."""
    version = _version(root)
    shutil.copy2(root / "boot" / f"vmlinuz-{version}", target / "vmlinuz")
    shutil.copy2(root / "bin" / "busybox", target / "busybox")
    modules = root / "usr/lib/modules" / version
    here = target / "modules"
    here.mkdir()
    for name in ("modules.dep", "modules.builtin"):
        shutil.copy2(modules / name, here / name)
    for path in module_files(modules, (*BOOT_MODULES, *GUEST_MODULES)):
        there = here / path.relative_to(modules)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)
    for path in module_files(modules, (*BOOT_MODULES, *_LATER_MODULES)):
        name, content = plain_module(path)
        path.unlink()
        (path.parent / name).write_bytes(content)


def _version(root: Path) -> str:
    found = sorted((root / "usr/lib/modules").iterdir())
    if len(found) != 1:
        raise ImageError(f"the node's packages hold {len(found)} kernels, exactly one is expected")
    return found[0].name


def _settings(root: Path) -> None:
    """Make the disk a node: busybox's init, no automatic loading of drivers, folders."""
    # Of the system's own services, only udev runs; init is busybox's.
    (root / "usr/bin/init").symlink_to("busybox")
    # The node loads the few drivers that it needs by name.
    (root / "etc/udev/rules.d/80-drivers.rules").symlink_to("/dev/null")
    (root / "etc/modprobe.d/nova-hpc.conf").write_text(
        "blacklist bochs\nblacklist igbvf\nblacklist nvme\noptions kvm_amd nested=0\n"
        "options vfio_iommu_type1 allow_unsafe_interrupts=0\n"
    )
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/fstab").write_text("")
    (root / "etc/machine-id").write_text(uuid.uuid5(uuid.NAMESPACE_DNS, "nova-hpc").hex + "\n")
    for name in ("opt/nova-hpc/config", "etc/nova/nova.conf.d", "var/lib/nova/instances"):
        (root / name).mkdir(parents=True, exist_ok=True)


def _run(*argv: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as err:
        raise ImageError(f"cannot run {argv[0]}: {err.strerror}; is it installed?") from err
    if done.returncode:
        raise ImageError(f"{argv[0]} failed (status {done.returncode}): {done.stderr.strip()}")
