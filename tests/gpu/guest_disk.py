# SPDX-License-Identifier: Apache-2.0
"""A disk with a whole Debian 13 and PoCL-R, for guests that QEMU starts: systemd, the kernel's
WireGuard, SSH. It lies in the cache beside the root that it is made of.

Nothing of the project is on it: :mod:`tests.gpu.emulated_guests` brings that into guests that run.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab.node import cache
from nova_hpc_lab.state import Paths
from tests.gpu.engine_root import prepare_engine_root

_SIZE: Final = "2500M"
#: Go to /opt.
_FILES: Final = tuple(map(Path(__file__).with_name, ("opencl_job.c", "guest-network.sh")))
#: At the end, the console says so.
UP: Final = "MACHINE-UP"
#: Without udev's look at every device, which takes minutes in emulation and is of no use here.
_STEPS: Final = """
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/initramfs-tools/conf.d /etc/ssh/sshd_config.d /etc/systemd/system
echo MODULES=list > /etc/initramfs-tools/conf.d/guest
printf '%s\n' virtio_pci virtio_blk virtio_net virtio_rng ext4 > /etc/initramfs-tools/modules
apt-get update -q
apt-get install -q -y --no-install-recommends systemd systemd-sysv dbus udev kmod initramfs-tools \
  linux-image-cloud-amd64 openssh-server wireguard-tools
apt-get clean
gcc -O2 -Wno-deprecated-declarations /opt/opencl_job.c -lOpenCL -o /opt/opencl_job
cat > /etc/systemd/system/guest.service <<UNIT
[Unit]
Before=ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ex /opt/guest-network.sh
[Install]
WantedBy=multi-user.target
UNIT
cat > /etc/systemd/system/tell-up.service <<UNIT
[Unit]
After=ssh.service guest.service
[Service]
Type=oneshot
StandardOutput=tty
TTYPath=/dev/console
ExecStart=/bin/echo MACHINE-UP
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable ssh guest tell-up
for unit in systemd-udev-trigger systemd-udevd systemd-udevd-kernel.socket \
  systemd-udevd-control.socket systemd-logind serial-getty@ttyS0 getty@tty1 getty.target \
  systemd-timesyncd systemd-journal-flush systemd-journal-catalog-update apt-daily.timer \
  apt-daily-upgrade.timer e2scrub_reap e2scrub_all.timer dpkg-db-backup.timer fstrim.timer \
  systemd-tmpfiles-clean.timer systemd-firstboot systemd-machine-id-commit systemd-binfmt \
  systemd-sysctl systemd-update-utmp systemd-user-sessions systemd-tpm2-setup
do systemctl mask $unit; done
echo "UsePAM no" > /etc/ssh/sshd_config.d/guest.conf
useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin nova-hpc-gpu
rm -rf /usr/share/doc/* /usr/share/man/* /usr/share/locale/* /var/lib/apt/lists/*
"""


@attrs.frozen
class GuestDisk:
    """What QEMU starts."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"

    @property
    def disk(self) -> Path:
        """The root, without partitions; never written to."""
        return self.folder / "root.ext4"

    @property
    def key(self) -> Path:
        """With which root of each guest is reached."""
        return self.folder / "key"


def prepare_guest_disk() -> GuestDisk:
    """The disk, made unless it is in the cache; three minutes."""
    engine_root = prepare_engine_root()
    folder = Paths.from_environment().cache / "gpu"
    parts = ("1", engine_root.parent.name, _STEPS, _SIZE)
    name = f"guest-{cache.key_of(*parts, *(path.read_text() for path in _FILES))}"

    def build(target: Path) -> None:
        root = target / "root"
        _run("cp", "-a", str(engine_root), str(root))
        for path in _FILES:
            shutil.copy(path, root / "opt")
        _run("chroot", str(root), "sh", "-exc", _STEPS)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(target / "key"))
        let_in = root / "root/.ssh"
        let_in.mkdir(mode=0o700)
        shutil.copy(target / "key.pub", let_in / "authorized_keys")
        for start in ("vmlinuz", "initrd"):
            (made,) = (root / "boot").glob(f"{start}*")
            shutil.move(made, target / start)
        _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(target / "root.ext4"), _SIZE)
        shutil.rmtree(root)

    made = cache.entry(folder, name, build)
    cache.remove_others(folder, "guest-", name)
    return GuestDisk(made)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
