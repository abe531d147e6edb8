# SPDX-License-Identifier: Apache-2.0
"""A machine for devstack: Debian 12 under systemd-nspawn, in a network namespace of its own.

Package registries are reached by a network of user space (slirp4netns); nothing of the machine's
own network is touched. The kernel may lack Open vSwitch, iSCSI and writable control groups.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import attrs

from tests.devstack.repositories import run

#: What a tree needs before apt runs in it.
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "sudo", "git", "iproute2", "procps"),
    *("locales", "lsb-release", "ca-certificates", "python3-venv", "python3-dev"),
    "build-essential",
)
#: The machine's own certificates, beside those that the package ca-certificates rewrites.
BUNDLE: Final = "/etc/ssl/site-bundle.crt"
#: As root, once: each line is a trap that was met.
FIRST: Final = """
set -eu
export DEBIAN_FRONTEND=noninteractive
# libvirt of backports brings libraries of backports: the headers have to be from there, too.
printf 'Package: *\\nPin: release n=bookworm-backports\\nPin-Priority: 500\\n' \
    > /etc/apt/preferences.d/backports
apt-get update -q
apt-get -y -q full-upgrade
sed -i 's/# en_US.UTF-8/en_US.UTF-8/' /etc/locale.gen
locale-gen > /dev/null
git config --system safe.directory '*'
# Bridges of user space. ovn-controller makes br-int, and does not know OVS_DATAPATH_TYPE.
apt-get -y -q install openvswitch-switch
ovs-vsctl set open_vswitch . external-ids:ovn-bridge-datapath-type=netdev
ovs-vsctl --may-exist add-br br-ex -- set Bridge br-ex datapath_type=netdev
apt-get -y -q install libvirt-daemon-system
echo 'cgroup_controllers = [ ]' >> /etc/libvirt/qemu.conf
systemctl restart libvirtd
# Without the kernel's iSCSI the service never says that it runs.
mkdir -p /etc/systemd/system/iscsid.service.d
printf '[Service]\\nType=oneshot\\nRemainAfterExit=yes\\nPIDFile=\\nExecStartPre=\\nExecStart=\\n\
ExecStart=/bin/true\\n' > /etc/systemd/system/iscsid.service.d/container.conf
systemctl daemon-reload
"""


def build_tree(tree: Path) -> None:
    """A minimal Debian 12 with this machine's settings of apt and pip."""
    mirror = os.environ.get("NOVA_HPC_DEBIAN_MIRROR", "http://deb.debian.org/debian")
    include = f"--include={','.join(PACKAGES)}"
    run("debootstrap", "--variant=minbase", include, "bookworm", tree, mirror, **os.environ)
    sources = tree / "etc/apt/sources.list.d"
    (tree / "etc/apt/sources.list").unlink(missing_ok=True)
    for each in Path("/etc/apt/sources.list.d").glob("*.sources"):
        shutil.copy(each, sources)
    for each in Path("/usr/share/keyrings").glob("debian-archive-*"):
        shutil.copy(each, tree / "usr/share/keyrings")
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", tree / BUNDLE.lstrip("/"))
    (tree / "etc/pip.conf").write_text(f"[global]\ncert = {BUNDLE}\n")
    # sudo and systemd drop the environment; pam_env gives it back.
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_INDEX")}
    (tree / "etc/environment").write_text(
        "".join(f"{name}={value}\n" for name, value in {**kept, "PIP_CERT": BUNDLE}.items())
    )
    (tree / "etc/resolv.conf").unlink(missing_ok=True)
    (tree / "etc/resolv.conf").write_text("nameserver 10.0.2.3\n")
    (tree / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
    run("chroot", tree, "useradd", "-s", "/bin/bash", "-d", "/opt/stack", "-m", "stack")
    (tree / "opt/stack").chmod(0o755)
    rights = tree / "etc/sudoers.d/stack"
    rights.write_text("stack ALL=(ALL) NOPASSWD: ALL\n")
    rights.chmod(0o440)


@attrs.define
class Machine:
    """One container.

    :ivar name: of its network namespace, and its host name.
    :ivar tree: its root.
    :ivar shared: a folder that it sees as /opt/git.
    :ivar logs: the folder of logs.
    """

    name: str
    tree: Path
    shared: Path
    logs: Path
    _network: subprocess.Popen[bytes] | None = None
    _container: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Make the namespace and boot the tree in it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.tree / "etc/hostname").write_text(f"{self.name}\n")
        hosts = f"127.0.0.1 localhost {self.name}\n::1 localhost\n"
        (self.tree / "etc/hosts").write_text(hosts)
        run("ip", "netns", "add", self.name)
        run("ip", "netns", "exec", self.name, "ip", "link", "set", "lo", "up")
        slirp = ("slirp4netns", "--configure", "--mtu=1500", "--disable-host-loopback")
        namespace = f"/run/netns/{self.name}"
        with (self.logs / f"{self.name}.slirp").open("wb") as log:
            self._network = subprocess.Popen(
                [*slirp, "--netns-type=path", namespace, "tap0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        rights = "CAP_NET_ADMIN,CAP_NET_RAW,CAP_SYS_ADMIN,CAP_SYS_RESOURCE,CAP_IPC_LOCK"
        with (self.logs / f"{self.name}.boot").open("wb") as log:
            self._container = subprocess.Popen(
                [
                    *("systemd-nspawn", "-q", "-D", str(self.tree), "-M", self.name, "-b"),
                    *("--register=no", "--keep-unit", "--console=pipe", "--resolv-conf=off"),
                    f"--network-namespace-path={namespace}",
                    *(f"--bind-ro={self.shared}:/opt/git", "--bind=/dev/net/tun"),
                    *(f"--capability={rights}", "--system-call-filter=@keyring bpf"),
                ],
                # Neutron sets sysctls of the network, which is the container's own.
                env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            state = self.call("systemctl is-system-running", user="root", check=False)[1].strip()
            if state in ("running", "degraded"):
                return
            time.sleep(2)
        raise AssertionError(f"{self.name} did not boot: {self.logs}")

    def prepare(self, branch: str = "master") -> None:
        """What stack.sh needs to find."""
        self.call(FIRST, user="root")
        self.call(f"test -d devstack || git clone -q -b {branch} file:///opt/git/devstack.git")

    def _leader(self) -> int | None:
        assert self._container is not None
        children = Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children")
        found = children.read_text().split() if children.exists() else []
        return int(found[0]) if found else None

    def call(
        self, script: str, user: str = "stack", check: bool = True, log: str | None = None
    ) -> tuple[int, str]:
        """Run a script in the container; its status and output.

        :param log: a file of the folder of logs that gets the output, too.
        """
        leader = self._leader()
        if leader is None:
            return 1, ""
        done = subprocess.run(
            ["nsenter", "-t", str(leader), "-a", "runuser", "-l", user, "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if log is not None:
            (self.logs / log).write_text(done.stdout)
        if check:
            assert done.returncode == 0, done.stdout[-4000:]
        return done.returncode, done.stdout

    def write(self, path: str, text: str) -> None:
        """A file of the user stack, below its home."""
        target = self.tree / "opt/stack" / path
        target.write_text(text)
        owner = (self.tree / "opt/stack").stat()
        os.chown(target, owner.st_uid, owner.st_gid)

    def stop(self) -> None:
        """Power it off, and take the namespace away."""
        if self._container is not None:
            leader = self._leader()
            if leader is not None:
                os.kill(leader, signal.SIGRTMIN + 4)  # systemd's word for poweroff
            try:
                self._container.wait(60)
            except subprocess.TimeoutExpired:
                self._container.kill()
                self._container.wait()
        if self._network is not None:
            self._network.terminate()
            self._network.wait()
        subprocess.run(["ip", "netns", "delete", self.name], check=False)


def link_machines(first: Machine, second: Machine) -> None:
    """A cable between both: 192.0.2.10 and 192.0.2.11."""
    ends = ("link0", "link1")
    run("ip", "link", "add", ends[0], "netns", first.name, "type", "veth", "peer", "name", ends[1],
        "netns", second.name)  # fmt: skip
    for machine, end, address in ((first, ends[0], 10), (second, ends[1], 11)):
        inside = ("ip", "-n", machine.name)
        run(*inside, "address", "add", f"192.0.2.{address}/24", "dev", end)
        run(*inside, "link", "set", end, "up")
