# SPDX-License-Identifier: Apache-2.0
"""A GPU server and a client as two network namespaces, each with a root of its own.

In both runs the guest's command as it is packed for guests. A file takes the metadata service's
place, and a program of 60 lines systemd's: it starts what a unit says, as the unit's user, and
ends the whole of it. It has no filter of addresses (``IPAddressDeny``), so that a port is open to
whoever asks as long as the engine has it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import attrs

from nova_hpc_guest import build
from nova_hpc_guest.gpu import announcements, records
from nova_hpc_guest.gpu.port_rule import port_of_address

HERE: Final = Path(__file__).parent
SHARE_ID: Final = "0f4b3c2a-1111-4222-8333-444455556666"
CLIENT_ID: Final = "7a1d9e00-1111-4222-8333-444455556666"
SHARE_ADDRESS, CLIENT_ADDRESS = "10.77.0.5", "10.77.0.7"
PORT: Final = port_of_address(CLIENT_ADDRESS)
_SERVICE: Final = "http://127.0.0.1:8775/meta_data.json"
#: Tells the namespaces of several pairs apart.
_PAIRS: Final = itertools.count()
#: Runs words in a namespace and a root, with this machine's processes and devices.
_ENTER: Final = (
    'mount --rbind /proc "$1/proc"; mount --rbind /dev "$1/dev"; '
    'mount --rbind /sys "$1/sys"; R=$1; shift; exec chroot "$R" "$@"'
)


_IP: Final = """#!/bin/sh
case "$*" in
    "link add hpc-gpu0 type wireguard") exec wireguard-go hpc-gpu0 ;;
esac
exec /usr/bin/ip "$@"
"""


@attrs.define
class Guest:
    """One of the two."""

    id: str
    address: str
    namespace: str
    root: Path
    items: Path
    processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    def words(self, *command: str) -> list[str]:
        """The command, in the guest."""
        enter = ("unshare", "--mount", "sh", "-ec", _ENTER, "enter", str(self.root))
        return ["ip", "netns", "exec", self.namespace, *enter, *command]

    def run(self, *command: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.words(*command), capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self, *command: str, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Start a command; it is ended with the guest."""
        process = subprocess.Popen(
            self.words(*command), stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        self.processes.append(process)
        return process

    def tell(self, items: dict[str, str]) -> None:
        """Change what the metadata service says."""
        beside = self.items / "new"
        beside.write_text(json.dumps({"uuid": self.id, "meta": items}))
        beside.rename(self.items / "meta_data.json")

    def console(self) -> str:
        """What the guest has said on its console."""
        return (self.root / "run/console").read_text()

    def pids(self, word: str) -> list[int]:
        """Processes in the namespace whose program has this name."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True
        )
        found = []
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/exe").readlink().name == word:
                    found.append(pid)
        return found

    def is_open(self, port: int, address: str = SHARE_ADDRESS) -> bool:
        """Whether the other guest's port takes connections from here."""
        code = f"import socket; socket.create_connection(('{address}', {port}), 5).close()"
        words = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", code]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def make_two_guests(engine_root: Path, folder: Path) -> Iterator[tuple[Guest, Guest]]:
    """The share and the client, without anything attached, their services running."""
    name = f"hpcgpu{os.getpid()}-{next(_PAIRS)}"
    with contextlib.ExitStack() as stack:
        pair = []
        for role, own, address in (
            ("gpu", SHARE_ID, SHARE_ADDRESS),
            ("vm", CLIENT_ID, CLIENT_ADDRESS),
        ):
            root = _mount_root(stack, engine_root, folder / role)
            namespace = f"{name}-{role}"
            call("ip", "netns", "add", namespace)
            stack.callback(call, "ip", "netns", "delete", namespace)
            items = folder / f"{role}-items"
            items.mkdir()
            guest = Guest(own, address, namespace, root, items)
            guest.tell({})
            stack.callback(_end_guest, guest)
            pair.append(guest)
        share, client = pair
        ends = (("v0", share), ("v1", client))
        call(
            *("ip", "link", "add", "v0", "netns", share.namespace, "type", "veth"),
            *("peer", "name", "v1", "netns", client.namespace),
        )
        for device, guest in ends:
            for words in (
                ("addr", "add", f"{guest.address}/24", "dev", device),
                ("link", "set", "lo", "up"),
                ("link", "set", device, "up"),
            ):
                call("ip", "-n", guest.namespace, *words)
            _install(guest)
        for verb, guest in (("serve", share), ("client", client)):
            log = stack.enter_context((folder / f"{verb}.log").open("wb"))
            guest.start(
                *("nova-hpc-guest", "gpu", verb, "--metadata-url", _SERVICE),
                *("--console", "/run/console"),
                output=log,
            )
        yield share, client


def attach(share: Guest, client: Guest, engine: str = "pocl") -> None:
    """Write what ``openstack hpc gpu attach`` writes."""
    slot = records.GpuSlot(CLIENT_ADDRESS, PORT, 1764000000)
    pointer = records.GpuClient(SHARE_ID, SHARE_ADDRESS, CLIENT_ADDRESS, PORT, engine)
    share.tell(
        {
            records.SHARE_KEY: records.write_share(records.GpuShare("sim", engine, 2)),
            records.slot_key_of(CLIENT_ID): records.write_slot(slot),
        }
    )
    client.tell({records.CLIENT_KEY: records.write_client(pointer)})


def keys_of(*guests: Guest) -> list[str]:
    """What the guests have said on their consoles, as the user's command reads it."""

    def read(guest: Guest) -> str:
        said = announcements.read_announcements(guest.console())
        return announcements.require_one_key(said, guest.id) or ""

    wait_for("the keys", lambda: all(map(read, guests)), 60)
    return list(map(read, guests))


def attach_encrypted(share: Guest, client: Guest, engine: str = "pocl") -> None:
    """Write what ``openstack hpc gpu attach --encrypt`` writes."""
    share_key, client_key = keys_of(share, client)
    slot = records.GpuSlot(CLIENT_ADDRESS, PORT, 1764000000, 0, client_key)
    pointer = records.GpuClient(SHARE_ID, SHARE_ADDRESS, CLIENT_ADDRESS, PORT, engine, share_key)
    record = records.GpuShare("sim", engine, 2, 0, True)
    share.tell(
        {
            records.SHARE_KEY: records.write_share(record),
            records.slot_key_of(CLIENT_ID): records.write_slot(slot),
        }
    )
    client.tell({records.CLIENT_KEY: records.write_client(pointer)})


def detach(share: Guest, client: Guest, engine: str = "pocl") -> None:
    """Write what ``openstack hpc gpu detach`` writes."""
    client.tell({})
    share.tell({records.SHARE_KEY: records.write_share(records.GpuShare("sim", engine, 2))})


def hold_job(
    client: Guest, folder: Path, seconds: float = 60
) -> tuple[subprocess.Popen[bytes], Path]:
    """A job on the share that has had its first result and goes on; its process, and what it says.

    PoCL-R's own client (6.0) dies or hangs now and then while it begins: then there is another try.
    """
    for attempt in range(4):
        log = folder / f"job-{attempt}.log"
        words = ("nova-hpc-guest", "gpu", "run", "--", "/opt/opencl_job", "hold")
        job = client.start(*words, output=log.open("wb"))
        with contextlib.suppress(AssertionError):
            wait_for("the job's first result", lambda: _says_result(job, log), seconds)  # noqa: B023
            if job.poll() is None:
                return job, log
        job.terminate()
        job.wait()
        # A slot whose engine has died comes again with the next round.
        time.sleep(5)
    raise AssertionError(f"no job had a result: {log.read_text()}")


def _says_result(job: subprocess.Popen[bytes], log: Path) -> bool:
    return b" 0 wrong" in log.read_bytes() or job.poll() is not None


def wait_for(what: str, holds: object, seconds: float) -> float:
    """Wait until a function is true; how long that took.

    :raises AssertionError: it is not within *seconds*.
    """
    begun = time.monotonic()
    while not holds():  # type: ignore[operator]
        if time.monotonic() - begun > seconds:
            raise AssertionError(f"{what} did not come within {seconds:g} seconds")
        time.sleep(0.2)
    return time.monotonic() - begun


def _mount_root(stack: contextlib.ExitStack, engine_root: Path, folder: Path) -> Path:
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(parents=True)
    root = folder / "root"
    options = f"lowerdir={engine_root},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    call("mount", "-t", "overlay", "overlay", "-o", options, str(root))
    stack.callback(call, "umount", "--lazy", str(root))
    return root


def _install(guest: Guest) -> None:
    """The guest's command, its services' ends, the job, and the user of engines."""
    command = guest.root / "usr/local/bin/nova-hpc-guest"
    command.write_bytes(build.single_file())
    command.chmod(0o755)
    stand_in = guest.root / "usr/local/bin/systemctl"
    shutil.copy(HERE / "unit_runner.py", stand_in)
    stand_in.chmod(0o755)
    shutil.copy(HERE / "opencl_job.c", guest.root / "opt")
    (guest.root / "run/console").touch()
    # A kernel without WireGuard: its program in user space makes the same interface.
    ip = guest.root / "usr/local/bin/ip"
    ip.write_text(_IP)
    ip.chmod(0o755)
    with (guest.root / "etc/passwd").open("a") as stream:
        stream.write("nova-hpc-gpu:x:990:65534::/nonexistent:/usr/sbin/nologin\n")
    built = guest.run(
        *("gcc", "-O2", "-Wno-deprecated-declarations", "/opt/opencl_job.c", "-lOpenCL"),
        *("-o", "/opt/opencl_job"),
    )
    assert not built.returncode, built.stderr
    server = ("-m", "http.server", "--bind", "127.0.0.1", "--directory", str(guest.items), "8775")
    process = subprocess.Popen(
        ["ip", "netns", "exec", guest.namespace, sys.executable, *server],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    guest.processes.append(process)


def _end_guest(guest: Guest) -> None:
    done = subprocess.run(
        ["ip", "netns", "pids", guest.namespace], capture_output=True, text=True, check=False
    )
    for pid in map(int, done.stdout.split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in guest.processes:
        process.kill()
        process.wait()


def call(*words: str) -> None:
    """Run a program that must not fail."""
    subprocess.run(words, check=True, capture_output=True)


def have_root() -> bool:
    """Whether namespaces and roots can be made here."""
    needed = ("ip", "unshare", "mount", "mmdebstrap")
    return os.geteuid() == 0 and hasattr(socket, "AF_PACKET") and all(map(shutil.which, needed))
