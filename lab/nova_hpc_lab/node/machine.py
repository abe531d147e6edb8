# SPDX-License-Identifier: Apache-2.0
"""One virtual node: its files, its supervisor, its state."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nova_hpc_lab.node import cache, confdisk, emulator, qemu
from nova_hpc_lab.node.contract import HOST_ADDRESS, NodeCloud, NodeStatus, Plan, State
from nova_hpc_lab.node.image import BOOT_MODULES, Image, find_image
from nova_hpc_lab.node.initramfs import CpioArchive, add_modules, base_archive
from nova_hpc_lab.node.shape import MAX_NODES, Shape, ShapeError
from nova_hpc_lab.process import Process
from nova_hpc_lab.state import Paths


class Node:
    """A virtual HPC node of the lab.

    :param index: 1 for the first node; it determines the name (``hpc1``) and the identities of
        the devices.
    :raises ShapeError: the index is too large.
    """

    def __init__(self, index: int, shape: Shape, paths: Paths, cloud: NodeCloud) -> None:
        if not 1 <= index <= MAX_NODES:
            raise ShapeError(f"there can be 1 to {MAX_NODES} nodes, not {index}")
        self.index = index
        self.name = f"hpc{index}"
        self.shape = shape
        #: The folder of all files of this node: disk, keys, ``serial.log``, ``nova-compute.log``,
        #: ``qemu.log``, ``status.json``.
        self.folder: Path = paths.state / "nodes" / self.name
        self.log: Path = self.folder / "serial.log"
        self.compute_log: Path = self.folder / "nova-compute.log"
        self.process = Process(f"node-{self.name}", paths)
        self._paths = paths
        self._cloud = cloud
        self._written = False

    def start(self) -> None:
        """Start the node in the background; do nothing if it runs already.

        This writes the configuration (:meth:`write_config` with the cloud's files, unless that was
        called before). Then it starts the supervisor, which continues after this process ends.

        :raises LabError: the image does not exist yet, or a tool is missing.
        """
        if self.process.pid() is not None:
            return
        image = find_image(self._paths)
        if not self._written:
            self.write_config(self._cloud.compute_files(self.name, HOST_ADDRESS))
        for each in self.shape.disks:
            # A sparse file; its content survives restarts, as on a real disk.
            with (self.folder / each.file_name).open("ab") as stream:
                stream.truncate(each.size_mib << 20)
        port = _free_port()
        files = qemu.Files(
            emulator=emulator.find(self._paths).argv(),
            kernel=image.kernel,
            initramfs=self._with_own(self._initramfs(image)),
            disk=self.folder / "disk.qcow2",
            config=self.folder / "config.disk",
            serial_log=self.log,
            heartbeat=self.folder / "heartbeat",
            compute_log=self.compute_log,
            qmp=self.folder / "qmp",
            host_line=self._own("line"),
        )
        khz = emulator.frequency_khz()
        argv = qemu.command(self.name, self.index, self.shape, files, port, khz)
        plan = Plan(
            argv=tuple(argv),
            disk=str(files.disk),
            backing=str(image.disk),
            heartbeat=str(files.heartbeat),
            qmp=str(files.qmp),
            ssh_port=port,
            serial=str(files.serial_log),
        )
        plan.save(self.folder)
        host_key = (self.folder / "ssh-host-key.pub").read_text()
        (self.folder / "known-hosts").write_text(f"{self.name} {host_key}")
        (self.folder / "status.json").unlink(missing_ok=True)
        self.process.spawn([sys.executable, "-m", "nova_hpc_lab.node.supervisor", str(self.folder)])

    def stop(self) -> None:
        """End the node and wait for it; do nothing if it does not run."""
        self.process.stop(grace=30.0)

    def status(self) -> NodeStatus:
        """Read the present state; a node in a bad state raises no error."""
        try:
            known: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
            state = State(known["state"])
        except (OSError, ValueError, KeyError, TypeError):
            known, state = {}, State.STARTING
        pid = self.process.pid()
        devices = self.shape.describe(self.index)
        if pid is None:
            failed = state is State.FAILED
            return NodeStatus(
                name=self.name,
                state=State.FAILED if failed else State.ABSENT,
                restarts=known.get("restarts", 0),
                devices=devices,
                reason=str(known.get("reason", "")) if failed else "",
            )
        now = time.time()
        started, heard = known.get("started"), known.get("heartbeat")
        return NodeStatus(
            name=self.name,
            state=state,
            supervisor_pid=pid,
            qemu_pid=known.get("qemu_pid"),
            ssh_port=known.get("ssh_port"),
            uptime=None if started is None else now - started,
            heartbeat_age=None if heard is None else now - heard,
            restarts=known.get("restarts", 0),
            devices=devices,
            reason=str(known.get("phase", "")),
            restart_cause=str(known.get("reason", "")),
        )

    def ssh_argv(self, command: Sequence[str] = ()) -> list[str]:
        """Return the ``ssh`` command line that runs *command* as root in the node.

        Each word is quoted for the remote shell. Without a command, ssh opens a login shell.
        """
        try:
            port = Plan.load(self.folder).ssh_port
        except (OSError, ValueError, TypeError, KeyError):
            port = 0
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "20",
            "HostKeyAlias": self.name,
            "IdentitiesOnly": "yes",
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": f'"{self.folder / "known-hosts"}"',
        }
        argv = ["ssh", "-F", "none", "-i", str(self.folder / "ssh-key"), "-p", str(port)]
        for name, value in options.items():
            argv += ["-o", f"{name}={value}"]
        argv.append("root@127.0.0.1")
        return [*argv, shlex.join(command)] if command else argv

    def write_config(self, files: Mapping[str, str]) -> None:
        """Make the node's configuration disk; read by the node at its next start.

        :param files: the files that :meth:`NodeCloud.compute_files` returns. The project's own
            code, keys and the shape are added here.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self.folder / "config.disk"
        confdisk.make(target, self.name, self.index, self.shape, files, self.folder)
        self._written = True

    def _initramfs(self, image: Image) -> Path:
        script = (Path(__file__).parent / "inside" / "node-init.sh").read_bytes()
        folder = self._paths.cache / "node"
        name = f"boot-{cache.key_of(image.folder.name, script, *BOOT_MODULES)}"

        def make(target: Path) -> None:
            archive = base_archive(image.busybox)
            add_modules(archive, image.modules, BOOT_MODULES)
            archive.file("init", script, 0o755)
            (target / "initramfs.gz").write_bytes(archive.pack())

        return cache.entry(folder, name, make) / "initramfs.gz"

    # If ``nova-hpc prepare`` has prepared the node's own disk, the node starts with the command
    # line and the scripts that its boot loader would use: boot/line, boot/scripts/*.

    def _own(self, name: str) -> str | None:
        path = self.folder / "boot" / name
        return path.read_text().strip() if path.is_file() else None

    def _with_own(self, initramfs: Path) -> Path:
        scripts = sorted((self.folder / "boot" / "scripts").glob("*"))
        if not scripts:
            return initramfs
        more = CpioArchive()
        for path in scripts:
            more.file(f"scripts/init-top/{path.name}", path.read_bytes(), 0o755)
        # The kernel unpacks one archive after the other.
        target = self.folder / "boot" / "initramfs.gz"
        target.write_bytes(initramfs.read_bytes() + more.pack())
        return target


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
