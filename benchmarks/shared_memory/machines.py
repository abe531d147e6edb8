# SPDX-License-Identifier: Apache-2.0
"""Two machines of QEMU with one segment, and a network of their own: tap devices and a bridge."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from benchmarks.emulated import MachineError, clock_words, make_network, ssh_words, wait_for_line
from benchmarks.shared_memory.root_disk import RootDisk
from nova_hpc.placement.segment_shape import SegmentShape
from nova_hpc.tenancy.segments import label
from nova_hpc_guest import terms

NETWORK: Final = "nova-hpc-shm"
SHAPE: Final = SegmentShape(part_mib=64, parts=2)
_SERVERS: Final = tuple(str(uuid.uuid5(uuid.NAMESPACE_DNS, f"vm{number}")) for number in range(2))
_KERNEL: Final = (
    "root=/dev/vda rw console=ttyS0 quiet loglevel=3 init=/usr/local/sbin/bench-init"
    " net.ifnames=0 random.trust_cpu=on mitigations=off"
)


@attrs.frozen
class Machines:
    """Two running machines."""

    disk: RootDisk
    folder: Path

    def run(self, number: int, command: str, limit: float = 600) -> str:
        """The output of a shell command in a machine.

        :raises MachineError: the command fails, or does not end in time.
        """
        try:
            done = subprocess.run(
                [*ssh_words(NETWORK, self.disk.key, f"10.99.0.{number + 1}"), command],
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"vm{number}: not done after {limit:g} s: {command}") from error
        if done.returncode:
            raise MachineError(
                f"vm{number}: status {done.returncode}: {command}\n{done.stdout}{done.stderr}"
            )
        return done.stdout


@contextlib.contextmanager
def start_machines(disk: RootDisk, folder: Path, accelerator: str) -> Iterator[Machines]:
    """Start two machines, and end them after the block.

    :param accelerator: ``kvm`` or ``tcg``.
    :raises MachineError: a machine does not start.
    """
    with contextlib.ExitStack() as stack:
        make_network(stack, NETWORK, "10.99.0.254/24")
        segment = _make_segment(stack)
        processes = []
        for number in range(2):
            process = subprocess.Popen(
                _command_of(number, disk, folder, segment, accelerator),
                stdin=subprocess.DEVNULL,
                stderr=(folder / f"vm{number}.err").open("wb"),
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for number, process in enumerate(processes):
            wait_for_line(process, folder, f"vm{number}", "MACHINE-UP")
        yield Machines(disk, folder)


def _make_segment(stack: contextlib.ExitStack) -> Path:
    """Make the file of the segment, as a node does."""
    path = Path(f"/dev/shm/nova-hpc-bench-{os.getpid()}")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    stack.callback(path.unlink)
    try:
        os.posix_fallocate(handle, 0, SHAPE.file_bytes)
        os.pwrite(handle, label.write_label(SHAPE, uuid.uuid4()), label.LABEL_AT)
        os.pwrite(handle, label.write_head(SHAPE, uuid.uuid4()), label.DEVICE_AT)
        for part, server in enumerate(_SERVERS):
            os.pwrite(handle, label.write_member(server), label.member_place_of(part))
    finally:
        os.close(handle)
    return path


def _command_of(
    number: int, disk: RootDisk, folder: Path, segment: Path, accelerator: str
) -> list[str]:
    promise = folder / f"vm{number}.json"
    promise.write_text(
        json.dumps(
            {
                "schema": "nova-hpc/guest",
                "version": 1,
                "topology": "flat",
                "cells": [],
                "devices": [],
                "shared_memory": {
                    "bytes": SHAPE.part_bytes,
                    "part": number,
                    "parts": SHAPE.parts,
                },
            }
        )
    )
    kernel = f"{_KERNEL} vm={number}"
    processor = "host"
    if accelerator == "tcg":
        kernel += f" {clock_words()}"
        processor = "max,phys-bits=40"
    fast = os.access("/dev/vhost-net", os.W_OK) and accelerator == "kvm"
    return [
        *("ip", "netns", "exec", NETWORK, "qemu-system-x86_64", "-name", f"vm{number}"),
        *("-machine", "q35,nvdimm=on", "-accel", _accelerator_words(accelerator)),
        *("-cpu", processor, "-smp", "2", "-m", "1024M,slots=2,maxmem=8G"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(disk.kernel), "-initrd", str(disk.initrd), "-append", kernel),
        *("-serial", f"file:{folder}/vm{number}.log"),
        *("-drive", f"file={disk.disk},format=raw,if=virtio,snapshot=on"),
        "-netdev",
        f"tap,id=n,ifname=tap{number},script=no,downscript=no{',vhost=on' if fast else ''}",
        *("-device", f"virtio-net-pci,netdev=n,mac=52:54:00:99:00:0{number},romfile="),
        *("-fw_cfg", f"name={terms.DOCUMENT},file={promise}"),
        "-object",
        f"memory-backend-file,id=shared,mem-path={segment},size={SHAPE.file_bytes},share=on",
        *("-device", "nvdimm,id=nv0,memdev=shared,unarmed=off"),
    ]


def _accelerator_words(accelerator: str) -> str:
    return "tcg,thread=multi,tb-size=256" if accelerator == "tcg" else accelerator
