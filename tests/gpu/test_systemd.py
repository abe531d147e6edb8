# SPDX-License-Identifier: Apache-2.0
"""Slots as units of a real systemd: filters, limits, kills, and reboots of the share.

The client is a network namespace. The engine is a script that answers each connection, on all
addresses as both real engines do, and forks a process for each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nova_hpc_guest import build
from nova_hpc_guest.gpu import mps, records, units
from nova_hpc_guest.gpu.port_rule import port_of_address
from tests.gpu.systemd_machine import boot_machine, can_boot
from tests.gpu.two_guests import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_boot(), reason="needs root and systemd"),
]
SHARE_ID = "0f4b3c2a-1111-4222-8333-444455556666"
CLIENT_ID = "7a1d9e00-1111-4222-8333-444455556666"
SHARE, CLIENT, OTHER = "10.78.0.5", "10.78.0.7", "10.78.0.8"
PORT = port_of_address(CLIENT)
SLOT = units.unit_name_of(CLIENT_ID)
SERVE = "gpu-serve.service"

ENGINE = """#!/usr/bin/python3
import os, socket, sys
door = socket.socket(); door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
door.bind(("0.0.0.0", int(sys.argv[1]))); door.listen()
while True:
    one, _ = door.accept()
    if os.fork() == 0:
        # A process of the engine reaches MPS, or it does not.
        pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
        limit = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "none")
        mps = socket.socket(socket.AF_UNIX)
        try:
            mps.connect(pipes + "/control"); said = mps.recv(99).decode()
        except OSError as error:
            said = "no MPS: " + str(error)
        one.sendall(f"{said} {limit} user {os.getuid()}".encode()); os._exit(0)
    one.close()
"""
#: Listens where it is told to, or in /tmp, as NVIDIA's does.
MPS = """#!/usr/bin/python3
import os, socket, sys
assert sys.argv[1:] == ["-f"]
pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
os.makedirs(pipes, exist_ok=True)
door = socket.socket(socket.AF_UNIX); door.bind(pipes + "/control"); door.listen()
while True:
    one, _ = door.accept(); one.sendall(b"MPS"); one.close()
"""
INI = """[engine]
name = mine
server = /usr/local/bin/engine {port}
release = 1.2
[client environment]
WHERE = {address}:{port}
[memory environment]
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT = 0={mib}M
"""
METADATA = """[Service]
ExecStart=/usr/bin/python3 -m http.server --bind 127.0.0.1 --directory /srv 8775
"""


def write(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)


@pytest.fixture
def files(tmp_path):
    """What a GPU server's image has."""
    root = tmp_path / "image"
    write(root / "usr/local/bin/nova-hpc-guest", build.single_file(), 0o755)
    write(root / "usr/local/bin/engine", ENGINE, 0o755)
    write(root / "usr/bin/nvidia-cuda-mps-control", MPS, 0o755)
    write(root / "etc/nova-hpc/gpu-engines/mine.ini", INI)
    users = Path("/etc/passwd").read_text() + "nova-hpc-gpu:x:990:65534::/nonexistent:/bin/false\n"
    write(root / "etc/passwd", users)
    # The product's unit, without its condition of a virtual machine, and for another address.
    text = (Path(build.__file__).parent / "data/nova-hpc-gpu-serve.service").read_text()
    url = "http://127.0.0.1:8775/meta_data.json"
    text = text.replace("ConditionVirtualization=vm\n", "").replace(
        "gpu serve", f"gpu serve --metadata-url {url} --console /dev/null"
    )
    write(root / "etc/systemd/system" / SERVE, text)
    write(root / "etc/systemd/system/metadata.service", METADATA)
    write(root / "srv/meta_data.json", json.dumps({"uuid": SHARE_ID, "meta": items_of()}))
    return root


def items_of(memory: int = 0) -> dict[str, str]:
    slot = records.GpuSlot(CLIENT, PORT, 5, memory)
    share = records.GpuShare("sim", "mine", 2)
    return {
        records.SHARE_KEY: records.write_share(share),
        records.slot_key_of(CLIENT_ID): records.write_slot(slot),
    }


@contextlib.contextmanager
def connected(machine):
    """A client's network namespace, with a second address that is no client's."""
    name = f"hpcsd{os.getpid()}"

    def call(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    call("ip", "netns", "add", name)
    try:
        call(
            *("ip", "-n", name, "link", "add", "v1", "type", "veth"),
            *("peer", "name", "v0", "netns", str(machine.init)),
        )
        for address in (CLIENT, OTHER):
            call("ip", "-n", name, "address", "add", f"{address}/24", "dev", "v1")
        for link in ("lo", "v1"):
            call("ip", "-n", name, "link", "set", link, "up")
        machine.run("ip", "address", "add", f"{SHARE}/24", "dev", "v0")
        machine.run("ip", "link", "set", "v0", "up")
        yield name
    finally:
        call("ip", "netns", "delete", name)


def ask(name: str, port: int = PORT, source: str = CLIENT) -> str:
    """What the share's port answers; empty: it is closed."""
    code = (
        "import socket\n"
        f"one = socket.create_connection(('{SHARE}', {port}), 3, ('{source}', 0))\n"
        "one.settimeout(5); print(one.recv(200).decode(), end='')"
    )
    words = ["ip", "netns", "exec", name, sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def tell(machine, items):
    given = json.dumps({"uuid": SHARE_ID, "meta": items})
    machine.run("sh", "-c", "cat > /srv/new && mv /srv/new /srv/meta_data.json", given=given)


def serve(machine):
    machine.run("systemctl", "start", "metadata.service")
    wait_for("metadata", lambda: machine.state_of("metadata.service") == "active", 30)
    time.sleep(1)
    machine.run("systemctl", "start", SERVE)


def said_by(machine, unit=SERVE):
    return machine.run("journalctl", "-q", "--no-pager", "-o", "cat", "-u", unit).stdout


def test_filters_limits_and_kills(files, tmp_path):
    with boot_machine(tmp_path / "m", files) as machine, connected(machine) as name:
        serve(machine)
        wait_for("the slot", lambda: ask(name), 60)
        # The engine has its port on all addresses; the unit's filter is what closes it.
        assert ask(name).endswith("none user 990")
        assert ask(name, source=OTHER) == ""
        assert ask(name, PORT + 3).startswith(f"nova-hpc-gpu 1 {CLIENT_ID} mine 1.2")
        assert ask(name, PORT + 3, OTHER) == ""
        assert not machine.run("ls", f"{units.FOLDER}/nova-hpc-gpu-filter.service").stdout

        # A limit: MPS runs outside /tmp, and each process of the engine reaches it.
        tell(machine, items_of(4096))
        wait_for("MPS", lambda: ask(name) == "MPS 0=4096M user 990", 60)
        mode = machine.run("stat", "-c", "%a %u", mps.PIPES).stdout
        assert mode == "700 990\n"
        # Without MPS no slot with a limit runs; the next round brings both.
        engine = machine.pid_of(SLOT)
        machine.run("systemctl", "kill", "-s", "KILL", mps.UNIT)
        wait_for("the slot's end", lambda: machine.pid_of(SLOT) != engine, 30)
        wait_for("MPS again", lambda: ask(name) == "MPS 0=4096M user 990", 60)

        # The service that follows the metadata is killed: slots go on.
        engine = machine.pid_of(SLOT)
        machine.run("systemctl", "kill", "-s", "KILL", SERVE)
        wait_for("serve again", lambda: machine.state_of(SERVE) == "active", 30)
        assert machine.pid_of(SLOT) == engine
        # A slot that is killed comes again, and one that is taken away is closed.
        machine.run("systemctl", "kill", "-s", "KILL", SLOT)
        wait_for("the slot again", lambda: ask(name) == "MPS 0=4096M user 990", 60)
        tell(machine, {})
        wait_for("the end", lambda: not ask(name), 60)
        wait_for("the unit's end", lambda: machine.state_of(SLOT) == "inactive", 30)


def test_jobs_of_a_client(files, tmp_path):
    """Killed commands, killed slots and reboots, with the product's own command on the client."""
    own = tmp_path / "client"
    pointer = records.GpuClient(SHARE_ID, SHARE, CLIENT, PORT, "mine")
    write(own / "etc/nova-hpc/gpu-engines/mine.ini", INI)
    metadata = {"uuid": CLIENT_ID, "meta": {records.CLIENT_KEY: records.write_client(pointer)}}
    write(tmp_path / "web/meta_data.json", json.dumps(metadata))
    command = tmp_path / "nova-hpc-guest"
    write(command, build.single_file(), 0o755)
    for boot in range(2):
        machine_files = files
        with (
            boot_machine(tmp_path / f"m{boot}", machine_files) as machine,
            connected(machine) as name,
        ):
            inside = ["ip", "netns", "exec", name]
            web = subprocess.Popen(
                [
                    *(*inside, sys.executable, "-m", "http.server", "--bind", "127.0.0.1"),
                    *("--directory", str(tmp_path / "web"), "8775"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                _use_as_client(machine, name, [*inside, str(command), "gpu"], own, boot)
            finally:
                web.kill()
                web.wait()


def _use_as_client(machine, name, gpu, own, boot):
    def run(*words):
        return subprocess.run(
            [*gpu, *words], capture_output=True, text=True, check=False, timeout=120
        )

    url = "http://127.0.0.1:8775/meta_data.json"
    follow = ("client", "--root", str(own), "--once", "--metadata-url", url)
    wait_for("the environment", lambda: run(*follow, "--console", "/dev/null").returncode == 0, 30)
    # Before the share serves, as after its reboot.
    shown = run("show", "--root", str(own))
    assert shown.returncode == 1
    assert "the share does not answer" in shown.stdout
    serve(machine)
    wait_for("the slot", lambda: ask(name, PORT + 3), 60)
    shown = run("show", "--root", str(own))
    assert (shown.returncode, "the share answers" in shown.stdout) == (0, True)

    words = [*gpu, "run", "--root", str(own), "--", "sh", "-c", "echo $$; exec sleep 600"]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    number = int(job.stdout.readline())
    os.kill(job.pid, signal.SIGKILL)
    wait_for("the job's end", lambda: not Path(f"/proc/{number}").exists(), 30)
    job.communicate()
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    job.stdout.readline()
    if boot == 0:
        machine.run("systemctl", "kill", "-s", "KILL", SLOT)
    else:
        os.kill(machine.init, signal.SIGKILL)  # the power goes
    _, said = job.communicate(timeout=60)
    assert (job.returncode, f"share {SHARE_ID} is gone" in said) == (75, True)


def test_a_systemd_without_a_filter_serves_no_slot(files, tmp_path):
    """With control groups of version 1 it warns, and starts the unit all the same."""
    with boot_machine(tmp_path / "m", files, legacy=True) as machine, connected(machine) as name:
        serve(machine)
        wait_for("the refusal", lambda: "IPAddressDeny= has no effect here" in said_by(machine), 60)
        assert ask(name) == ""
        assert machine.state_of(SLOT) == "inactive"
