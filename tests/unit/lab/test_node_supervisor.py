# SPDX-License-Identifier: Apache-2.0
"""The supervisor, with a stand-in for QEMU that lives, falls silent or dies on demand."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from nova_hpc_lab.machines import started_again
from nova_hpc_lab.node.contract import NodeStatus, Plan, State
from nova_hpc_lab.node.machine import Node
from nova_hpc_lab.node.shape import Shape
from nova_hpc_lab.node.supervisor import Beat, Patience, last_words, make_overlay
from nova_hpc_lab.state import Paths

# As it was seen on a serial log; with what an earlier run had written there before.
PANIC = """\
[   17.513219] BUG: kernel NULL pointer dereference, address: 0000000000000010\r
[   17.514061] #PF: supervisor read access in kernel mode\r
[   17.521402] CPU: 1 UID: 0 PID: 45 Comm: kworker/1:1 Not tainted 6.12\r
[   17.523310] RIP: 0010:igb_ping_all_vfs+0x3c/0xb0 [igb]\r
[   17.560002] Kernel panic - not syncing: Fatal exception\r
"""

# Each start of the stand-in takes the next word of the plan of its life.
MACHINE = """\
PANIC = {panic!r}
import signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
starts = folder / "starts"
number = len(starts.read_text()) if starts.exists() else 0
with starts.open("a") as stream:
    stream.write("x")
lives = sys.argv[2:]
life = lives[min(number, len(lives) - 1)]
if "stubborn" in life:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
beat = (folder / "heartbeat").open("a", buffering=1)
def say(phase):
    beat.write(f"1.0 {phase}\\n")
if "dead" in life:
    sys.exit(3)
if "panic" in life:
    with (folder / "serial.log").open("a") as stream:
        stream.write(PANIC)
    sys.exit(0)
if "mute" not in life:
    say("booting")
    say("failed: no devices" if "broken" in life else "compute")
while True:
    time.sleep(0.05)
    if "well" in life:
        say("compute")
"""

RUN = """\
import sys
from pathlib import Path
from nova_hpc_lab.node.contract import Plan
from nova_hpc_lab.node.supervisor import Patience, Supervisor
folder = Path(sys.argv[1])
patience = Patience(first_sign=3.0, next_sign=3.0, look=0.05, end=1.0)
sys.exit(Supervisor(folder, Plan.load(folder), patience).run())
"""


@pytest.fixture
def backing(tmp_path):
    path = tmp_path / "image.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "1M"], check=True)
    return path


@pytest.fixture
def supervise(tmp_path, backing):
    """Start a supervisor whose machine has the given lives."""
    folder = tmp_path / "node"
    folder.mkdir()
    (tmp_path / "machine.py").write_text(MACHINE.replace("{panic!r}", repr(PANIC)))
    started = []

    def start(*lives):
        plan = Plan(
            argv=(sys.executable, str(tmp_path / "machine.py"), str(folder), *lives),
            disk=str(folder / "disk.qcow2"),
            backing=str(backing),
            heartbeat=str(folder / "heartbeat"),
            qmp=str(folder / "qmp"),
            ssh_port=1,
            serial=str(folder / "serial.log"),
        )
        plan.save(folder)
        process = subprocess.Popen([sys.executable, "-c", RUN, folder])
        started.append(process)
        return process, folder

    yield start
    for process in started:
        for one in (
            [*psutil.Process(process.pid).children(), process] if process.poll() is None else ()
        ):
            one.kill()
        process.wait()


def status(folder):
    try:
        return json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):
        return {}


def until(condition):
    while not condition():
        time.sleep(0.02)


def test_a_node_that_is_well_is_left_alone_and_ends_when_asked(supervise):
    process, folder = supervise("well")
    until(lambda: status(folder).get("state") == "up")
    found = status(folder)
    assert found["restarts"] == 0
    machine = psutil.Process(found["qemu_pid"])
    assert machine.ppid() == process.pid == found["supervisor_pid"]
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not machine.is_running()
    assert status(folder)["state"] == "absent"
    assert status(folder)["qemu_pid"] is None


def test_a_stop_that_comes_while_it_is_about_to_wait_is_heard():
    """Such a signal left one that waits for itself for ever, one time in some hundreds."""
    script = """if True:
        import signal, threading, time
        from pathlib import Path
        from nova_hpc_lab.node.supervisor import Supervisor
        stop = Supervisor(Path("/"), None)._stop
        handled = []
        signal.signal(signal.SIGUSR1, lambda *_: (handled.append(1), stop.set()))
        main = threading.main_thread().ident
        ended = []
        def often():
            while not ended:
                signal.pthread_kill(main, signal.SIGUSR1)
                time.sleep(0.001)
        thread = threading.Thread(target=often)
        thread.start()
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            stop.wait(0.00001)
        ended.append(1)
        thread.join()
        assert len(handled) > 20 and stop.is_set()
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_a_node_that_does_not_listen_is_ended_by_force(supervise):
    process, folder = supervise("well stubborn")
    until(lambda: status(folder).get("state") == "up")
    machine = psutil.Process(status(folder)["qemu_pid"])
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not machine.is_running()


@pytest.mark.parametrize(
    ("life", "reason"),
    [
        ("dead", "QEMU ended with status 3"),
        ("mute", "no sign of life (last phase: booting)"),
        ("falls silent", "no sign of life (last phase: compute)"),
    ],
)
def test_a_node_that_dies_or_falls_silent_is_started_again(supervise, life, reason):
    _, folder = supervise(life, "well")
    until(lambda: status(folder).get("restarts") == 1 and status(folder)["state"] == "up")
    assert status(folder)["reason"].startswith(reason)


def test_a_kernel_that_died_is_the_cause_of_a_restart(supervise, capfd):
    _, folder = supervise("panic", "well")
    until(lambda: status(folder).get("restarts") == 1 and status(folder)["state"] == "up")
    assert status(folder)["reason"] == (
        "BUG: kernel NULL pointer dereference, address: 0000000000000010 in igb_ping_all_vfs;"
        " QEMU ended with status 0, see qemu.log"
    )
    said = capfd.readouterr().out
    assert "serial: Kernel panic - not syncing: Fatal exception\n" in said
    assert "restart number 1" in said


def test_the_death_of_an_earlier_run_is_not_told_again(supervise):
    _, folder = supervise("panic", "dead", "well")
    until(lambda: status(folder).get("restarts") == 2 and status(folder)["state"] == "up")
    assert status(folder)["reason"] == "QEMU ended with status 3, see qemu.log"


def test_last_words_are_few_and_of_this_run(tmp_path):
    log = tmp_path / "serial.log"
    assert last_words(log, 0) == []
    log.write_text("[    1.0] usual words\n" + PANIC + "[   18.0] more\n" * 1000)
    words = last_words(log, 0)
    assert words[0] == "BUG: kernel NULL pointer dereference, address: 0000000000000010"
    assert len(words) == 40
    assert last_words(log, len("[    1.0] usual words\n" + PANIC.replace("\r", ""))) == []


def test_a_node_that_never_starts_is_given_up(supervise):
    process, folder = supervise("dead")
    assert process.wait() == 1
    assert status(folder)["state"] == "failed"
    assert (folder / "starts").read_text() == "xxxx"


def test_a_node_that_says_why_it_fails_is_given_up_sooner(supervise):
    process, folder = supervise("broken")
    assert process.wait() == 1
    assert status(folder)["reason"] == "failed: no devices"
    assert (folder / "starts").read_text() == "xx"


def test_a_disk_that_cannot_be_made_is_told(supervise, backing):
    backing.unlink()
    process, folder = supervise("well")
    assert process.wait() == 1
    assert status(folder)["state"] == "failed"
    assert str(backing) in status(folder)["reason"]


def test_a_foreign_process_with_a_known_number_is_not_touched(supervise, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        process, folder = supervise("well")
        until(lambda: status(folder).get("state") == "up")
        mine = status(folder)["qemu_pid"]
        # Whatever a file says, only its own child is ended.
        (folder / "status.json").write_text(json.dumps({"qemu_pid": other.pid}))
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert other.poll() is None
        assert not psutil.pid_exists(mine)
        other.kill()


def test_the_disk_is_kept_while_it_belongs_to_the_image(tmp_path, backing):
    disk = tmp_path / "disk.qcow2"
    make_overlay(disk, backing)
    first = disk.stat().st_ino
    make_overlay(disk, backing)
    assert disk.stat().st_ino == first
    other = tmp_path / "other.qcow2"
    other.write_bytes(backing.read_bytes())
    make_overlay(disk, other)
    shown = subprocess.run(
        ["qemu-img", "info", "--output=json", disk], capture_output=True, check=True
    )
    assert json.loads(shown.stdout)["full-backing-filename"] == str(other)


def test_a_disk_over_an_image_that_was_made_again_is_replaced(tmp_path, backing):
    disk = tmp_path / "disk.qcow2"
    make_overlay(disk, backing)
    old = backing.stat()
    subprocess.run(["qemu-io", "-c", "write -P 7 0 64k", disk], check=True, capture_output=True)
    used = disk.stat().st_blocks
    os.utime(backing, ns=(old.st_atime_ns, old.st_mtime_ns + 1))
    make_overlay(disk, backing)
    assert disk.stat().st_blocks < used


@pytest.mark.parametrize("marked", [True, False])
def test_a_damaged_disk_is_replaced(tmp_path, backing, marked):
    disk = tmp_path / "disk.qcow2"
    if marked:
        make_overlay(disk, backing)
    disk.write_bytes(b"no disk at all")
    make_overlay(disk, backing)
    subprocess.run(["qemu-img", "check", "-q", disk], check=True)


def test_half_a_line_is_no_sign_of_life(tmp_path):
    path = tmp_path / "beat"
    beat = Beat(path)
    beat.look(1.0)
    assert beat.last is None
    path.write_text("12.5 dev")
    beat.look(2.0)
    assert beat.last is None
    with path.open("a") as stream:
        stream.write("ices\n\xff odd")
    beat.look(3.0)
    assert (beat.last, beat.phase) == (3.0, "devices")
    beat.look(9.0)
    patience = Patience(first_sign=5.0, next_sign=4.0)
    assert beat.last == 3.0
    assert not beat.silent(7.0, 0.0, patience)
    assert beat.silent(7.1, 0.0, patience)
    assert Beat(path).silent(5.1, 0.0, patience)
    assert not Beat(path).silent(4.9, 0.0, patience)


class Cloud:
    def compute_files(self, host, host_address):
        return {"nova.conf": f"[DEFAULT]\nhost = {host}\n"}


def node(tmp_path):
    paths = Paths(state=tmp_path / "s", cache=tmp_path / "c", venv=tmp_path / "v")
    return Node(2, Shape.load("two-socket"), paths, Cloud())


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"state": "odd"}', '{"state": "up"}'])
def test_the_state_of_a_node_that_does_not_run_can_always_be_told(tmp_path, text):
    found = node(tmp_path)
    if text is not None:
        found.folder.mkdir(parents=True)
        (found.folder / "status.json").write_text(text)
    assert found.status().state is State.ABSENT
    assert found.status().qemu_pid is None
    assert len(found.status().devices) == 6


def test_a_node_that_was_given_up_says_why(tmp_path):
    found = node(tmp_path)
    found.folder.mkdir(parents=True)
    (found.folder / "status.json").write_text('{"state": "failed", "reason": "no devices"}')
    assert (found.status().state, found.status().reason) == (State.FAILED, "no devices")


def test_every_word_of_a_command_reaches_the_node_as_it_is(tmp_path):
    argv = node(tmp_path).ssh_argv(["sh", "-c", "echo $HOME; ls 'a b'"])
    assert argv[-2] == "root@127.0.0.1"
    again = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {argv[-1]}"], capture_output=True, text=True, check=True
    )
    assert again.stdout.splitlines() == ["sh", "-c", "echo $HOME; ls 'a b'"]
    assert "StrictHostKeyChecking=yes" in argv


def test_stopping_a_node_that_does_not_run_does_nothing(tmp_path):
    node(tmp_path).stop()
    assert not list(tmp_path.iterdir())


def test_a_restart_and_its_cause_are_told(tmp_path):
    found = node(tmp_path)
    assert started_again(found.status()) == ""
    status = NodeStatus("hpc2", State.STARTING, restarts=2, restart_cause="Oops: 0000")
    assert started_again(status) == ", started again 2 times (Oops: 0000)"
