# SPDX-License-Identifier: Apache-2.0
"""A GPU server and a client as two machines of QEMU, each a whole Debian with systemd.

The guest's command and its two units are the product's, and systemd runs what they write. Beyond
them there is one more address, that of their bridge: it is neither's, as another server's would be.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import attrs

from benchmarks import emulated
from nova_hpc_guest import build
from tests.gpu.guest_disk import UP, GuestDisk
from tests.gpu.two_guests import CLIENT_ADDRESS, CLIENT_ID, SHARE_ADDRESS, SHARE_ID

NETWORK: Final = "nova-hpc-gpu"
OTHER_ADDRESS: Final = "10.77.0.254"
_KERNEL: Final = (
    "root=/dev/vda rw console=ttyS0 quiet loglevel=3 net.ifnames=0 random.trust_cpu=on"
    " mitigations=off systemd.show_status=0"
)
_MEMORY: Final = "1024M"
_SERVICE: Final = Path(__file__).with_name("metadata_service.py")
#: For a program in a guest whose processor is emulated.
_LIMIT: Final = 600.0


@attrs.define
class EmulatedGuest:
    """One of the two."""

    id: str
    name: str
    address: str
    folder: Path
    key: Path
    machine: subprocess.Popen[bytes]
    processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    def words(self, *command: str) -> list[str]:
        """The command, in the guest, where root's shell reads it."""
        words = emulated.ssh_words(NETWORK, self.key, self.address, self.folder)
        return [*words, " ".join(command)]

    def run(
        self, *command: str, given: bytes = b"", timeout: float = _LIMIT
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(
            self.words(*command),
            input=given,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        texts = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, *texts)

    def call(self, *command: str, given: bytes = b"") -> str:
        """What a command prints that must not fail."""
        done = self.run(*command, given=given)
        assert not done.returncode, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Start a command; it is ended with the guests."""
        process = subprocess.Popen(
            self.words(*command), stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        self.processes.append(process)
        return process

    def tell(self, items: dict[str, str]) -> None:
        """Change what the metadata service says."""
        beside = self.folder / f"{self.name}.new"
        beside.write_text(json.dumps({"uuid": self.id, "meta": items}))
        beside.rename(self.folder / f"{self.address}.json")

    def console(self) -> str:
        """What the guest has said on its console."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def is_open(self, port: int, address: str = SHARE_ADDRESS) -> bool:
        """Whether the share's port takes connections from here."""
        return not self.run(
            "timeout", "8", "bash", "-c", f"'exec 3<>/dev/tcp/{address}/{port}'"
        ).returncode


def is_open_to_others(port: int) -> bool:
    """Whether the share's port takes connections from the address that is nobody's client."""
    code = f"import socket; socket.create_connection(('{SHARE_ADDRESS}', {port}), 8).close()"
    words = ["ip", "netns", "exec", NETWORK, sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def start_emulated_guests(
    disk: GuestDisk, folder: Path
) -> Iterator[tuple[EmulatedGuest, EmulatedGuest]]:
    """The share and the client, without anything attached, their services running."""
    with contextlib.ExitStack() as stack:
        addresses = (f"{OTHER_ADDRESS}/24", "169.254.169.254/32")
        emulated.make_network(stack, NETWORK, *addresses)
        _start(stack, "ip", "netns", "exec", NETWORK, sys.executable, str(_SERVICE), str(folder))
        pair = []
        for number, (name, own, address) in enumerate(
            (("gpu", SHARE_ID, SHARE_ADDRESS), ("vm", CLIENT_ID, CLIENT_ADDRESS))
        ):
            errors = stack.enter_context((folder / f"{name}.err").open("wb"))
            machine = _start(stack, *_words_of(number, name, address, disk, folder), errors=errors)
            guest = EmulatedGuest(own, name, address, folder, disk.key, machine)
            guest.tell({})
            pair.append(guest)
        for guest in pair:
            emulated.wait_for_line(guest.machine, folder, guest.name, UP)
        for guest in pair:
            _install(guest)
        try:
            yield pair[0], pair[1]
        finally:
            for guest in pair:
                for process in guest.processes:
                    process.kill()
                    process.wait()


def _words_of(
    number: int, name: str, address: str, disk: GuestDisk, folder: Path
) -> tuple[str, ...]:
    own = (f"systemd.hostname={name}", f"guest.address={address}")
    return (
        *("ip", "netns", "exec", NETWORK, "qemu-system-x86_64", "-name", name),
        *("-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,phys-bits=40"),
        *("-smp", "1", "-m", _MEMORY, "-nodefaults", "-no-user-config", "-display", "none"),
        *("-no-reboot", "-kernel", str(disk.kernel), "-initrd", str(disk.initrd)),
        *("-append", " ".join((_KERNEL, emulated.clock_words(), *own))),
        *("-serial", f"file:{folder}/{name}.log", "-device", "virtio-rng-pci"),
        *("-drive", f"file={disk.disk},format=raw,if=virtio,snapshot=on"),
        *("-netdev", f"tap,id=n,ifname=tap{number},script=no,downscript=no"),
        *("-device", f"virtio-net-pci,netdev=n,mac=52:54:00:77:00:0{number},romfile="),
    )


def _start(
    stack: contextlib.ExitStack, *words: str, errors: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=errors)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _install(guest: EmulatedGuest) -> None:
    """What the element of diskimage-builder does: the command, and both units."""
    command = "cat > /usr/local/bin/nova-hpc-guest && chmod 755 /usr/local/bin/nova-hpc-guest"
    guest.call(command, given=build.single_file())
    for end in ("client", "serve"):
        name = f"nova-hpc-gpu-{end}.service"
        text = (Path(build.__file__).parent / "data" / name).read_bytes()
        guest.call(f"cat > /etc/systemd/system/{name}", given=text)
    guest.call("systemctl daemon-reload")
    guest.call("systemctl enable --now nova-hpc-gpu-client nova-hpc-gpu-serve")
