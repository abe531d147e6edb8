# SPDX-License-Identifier: Apache-2.0
"""The root disk of the machines: Debian with both MPIs, the command for guests, the library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_guest.build import single_file

HERE: Final = Path(__file__).parent
SHM: Final = HERE.parents[1] / "shm"
PACKAGES: Final = (
    *("mpich", "openmpi-bin", "python3-minimal", "python3", "openssh-server", "openssh-client"),
    *("iproute2", "kmod", "procps", "linux-image-cloud-amd64", "initramfs-tools", "busybox"),
)
#: MPI -> its compiler.
COMPILERS: Final[Mapping[str, str]] = {"mpich": "mpicc.mpich", "openmpi": "mpicc.openmpi"}
_SIZE: Final = "4G"
_SUITE: Final = "bookworm"


@attrs.frozen
class RootDisk:
    """The files that QEMU starts."""

    kernel: Path
    initrd: Path
    disk: Path
    #: Private key for the login as root on each machine.
    key: Path


def prepare_root_disk(folder: Path) -> RootDisk:
    """Make the disk, but use files that exist already.

    Needs root, mmdebstrap, the compilers of both MPIs and the network.

    :raises subprocess.CalledProcessError: a step failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "root.tar"
    if not archive.exists():
        _bootstrap(archive)
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    _run("tar", "-x", "-p", "--numeric-owner", "-f", archive, "-C", root, "--exclude=./dev/*")
    _add_programs(root)
    key = folder / "key"
    if not key.exists():
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    _let_in(root, key)
    disk = folder / "root.ext4"
    disk.unlink(missing_ok=True)
    _run("mke2fs", "-q", "-t", "ext4", "-d", root, disk, _SIZE)
    made = []
    for name in ("vmlinuz", "initrd.img"):
        (image,) = (root / "boot").glob(f"{name}-*")
        made.append(Path(shutil.copy2(image, folder / name)))
    shutil.rmtree(root)
    return RootDisk(made[0], made[1], disk, key)


def _bootstrap(archive: Path) -> None:
    uri = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[0]
    part = archive.with_suffix(".part")
    _run(
        *("mmdebstrap", "--variant=minbase", "--mode=root", "--format=tar"),
        *(f"--include={','.join(PACKAGES)}", _SUITE, part, f"deb {uri} {_SUITE} main"),
    )
    part.rename(archive)


def _add_programs(root: Path) -> None:
    programs = root / "usr/local/bin"
    command = programs / "nova-hpc-guest"
    command.write_bytes(single_file())
    command.chmod(0o755)
    _run("make", "-s", "-C", SHM, "install", f"DESTDIR={root}")
    for mpi, compiler in COMPILERS.items():
        for source in (HERE / "pingpong.c", SHM / "tests/mpi_exchange.c"):
            _run(compiler, "-O2", source, "-o", programs / f"{source.stem}.{mpi}")
    start = root / "usr/local/sbin/bench-init"
    shutil.copy2(HERE / "bench-init.sh", start)
    start.chmod(0o755)
    _run("chroot", root, "groupadd", "--system", "hpc")


def _let_in(root: Path, key: Path) -> None:
    folder = root / "root/.ssh"
    folder.mkdir(mode=0o700)
    shutil.copy2(key, folder / "id_ed25519")
    shutil.copy2(key.with_suffix(".pub"), folder / "authorized_keys")
    (folder / "config").write_text(
        "Host *\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
    for path in folder.iterdir():
        path.chmod(0o600)
    hosts = "".join(f"10.99.0.{number + 1} vm{number}\n" for number in range(4))
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")


def _run(*argv: object) -> None:
    subprocess.run([str(word) for word in argv], check=True)
