# SPDX-License-Identifier: Apache-2.0
"""Processes of the lab, with real processes."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from nova_hpc_lab import process
from nova_hpc_lab.errors import InterruptedStepError, LabError
from nova_hpc_lab.process import MARKER, Process, Tools, end, environment, strays
from nova_hpc_lab.services import Service, require_free
from nova_hpc_lab.state import Paths

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def paths(tmp_path):
    found = Paths(state=tmp_path / "s", cache=tmp_path / "c", venv=tmp_path / "v")
    found.make()
    yield found
    end(strays(found), first=None, grace=0.0)


def _wait(condition):
    while not condition():
        time.sleep(0.02)


def test_a_process_is_found_again_and_stopped(paths):
    pid = Process("one", paths).spawn(SLEEP)
    again = Process("one", paths)
    assert again.pid() == pid
    assert os.getsid(pid) == pid
    assert again.stop()
    assert again.pid() is None
    assert not psutil.pid_exists(pid)
    assert not again.stop()


def test_spawn_leaves_a_running_process_alone(paths):
    process = Process("one", paths)
    assert process.spawn(SLEEP) == process.spawn(SLEEP)


def test_a_process_that_ended_is_not_running(paths):
    process = Process("one", paths)
    process.spawn([sys.executable, "-c", "print('last words')"])
    _wait(lambda: process.pid() is None)
    assert process.tail() == "last words"


@pytest.mark.parametrize("change", [{"start": 1}, {"boot": "another"}, {"pid": "x"}])
def test_a_recycled_pid_is_never_killed(paths, change):
    # The pid file of a process of ours that is long gone names somebody else.
    other = subprocess.Popen(SLEEP)
    try:
        mine = Process("one", paths)
        mine.spawn(SLEEP)
        identity = json.loads(mine.pid_file.read_text())
        mine.pid_file.write_text(json.dumps({**identity, "pid": other.pid, **change}))
        assert mine.pid() is None
        assert not mine.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 1}'])
def test_a_damaged_pid_file_is_no_process(paths, text):
    process = Process("one", paths)
    process.pid_file.write_text(text)
    assert process.pid() is None


def test_stop_ends_all_that_was_started_even_in_other_sessions(paths):
    code = (
        "import subprocess, sys, time\n"
        "sub = lambda **k: subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " **k)\n"
        "sub(); sub(start_new_session=True)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    process = Process("family", paths)
    pid = process.spawn([sys.executable, "-c", code])
    _wait(lambda: "ready" in process.tail())
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    assert len(family) == 3
    process.stop()
    assert not any(psutil.pid_exists(one) for one in family)


def test_stop_ends_a_process_that_ignores_the_request(paths):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    process = Process("deaf", paths)
    pid = process.spawn([sys.executable, "-c", code])
    _wait(lambda: "ready" in process.tail())
    process.stop(grace=0.2)
    assert not psutil.pid_exists(pid)


def test_what_a_crash_left_is_found_without_a_pid_file(paths, tmp_path):
    process = Process("one", paths)
    pid = process.spawn(SLEEP)
    process.pid_file.unlink()
    assert [stray.pid for stray in strays(paths)] == [pid]
    assert strays(paths, known=[pid]) == []
    other = Paths(state=tmp_path / "other", cache=paths.cache, venv=paths.venv)
    assert strays(other) == []


def test_descendants_of_known_processes_are_no_strays(paths):
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    process = Process("family", paths)
    pid = process.spawn([sys.executable, "-c", code])
    _wait(lambda: "ready" in process.tail())
    assert strays(paths, known=[pid]) == []
    assert len(strays(paths)) == 2


def test_the_environment_points_no_client_elsewhere(paths, monkeypatch):
    monkeypatch.setenv("OS_AUTH_URL", "http://elsewhere.test")
    monkeypatch.setenv("https_proxy", "http://proxy.test")
    found = environment(paths, {"OS_KEYSTONE_CONFIG_DIR": "/etc"})
    assert found[MARKER] == str(paths.state)
    assert "OS_AUTH_URL" not in found
    assert "https_proxy" not in found
    assert found["OS_KEYSTONE_CONFIG_DIR"] == "/etc"


def test_a_program_that_is_missing_is_named(paths):
    with pytest.raises(LabError, match="cannot start one: /nowhere/program: No such file"):
        Process("one", paths).spawn(["/nowhere/program"])
    with pytest.raises(LabError, match="cannot run /nowhere/program"):
        Tools(paths).run("one", ["/nowhere/program"])


def test_a_tool_that_fails_shows_the_end_of_its_log(paths):
    code = "import sys; print('the reason'); sys.exit(3)"
    with pytest.raises(LabError, match=r"failed with status 3; .*tool\.log:\nthe reason"):
        Tools(paths).run("tool", [sys.executable, "-c", code])


def test_abort_ends_running_tools_and_refuses_new_ones(paths):
    tools = Tools(paths)
    errors = []

    def work():
        try:
            tools.run("tool", [sys.executable, "-c", "print(1, flush=True)\nwhile 1: pass"])
        except LabError as err:
            errors.append(err)

    thread = threading.Thread(target=work)
    thread.start()
    _wait(lambda: Process("tool", paths).tail())
    tools.abort()
    thread.join()
    assert isinstance(errors[0], InterruptedStepError)
    with pytest.raises(LabError, match="interrupted"):
        tools.run("tool", [sys.executable, "-c", "pass"])


def _service(paths, code, probe, port=None):
    return Service(
        name="x",
        title="Service X",
        process=Process("x", paths),
        argv=(sys.executable, "-c", code),
        environ={},
        probe=probe,
        port=port,
    )


def test_a_service_that_dies_shows_why(paths):
    def probe():
        raise LabError("no answer")

    service = _service(paths, "raise SystemExit('no licence')", probe)
    with pytest.raises(LabError, match=r"Service X ended by itself; (?s:.)*no licence"):
        service.start(threading.Event())


def test_a_process_that_ended_before_it_was_looked_at_does_not_run(paths, monkeypatch):
    monkeypatch.setattr(process, "_ticks", lambda pid: None)
    service = _service(paths, "", lambda: None)
    service.process.spawn([sys.executable, "-c", ""], {})
    assert service.process.pid() is None


def test_a_service_is_up_when_it_answers(paths):
    answers = iter([OSError("refused"), LabError("not yet"), None])

    def probe():
        answer = next(answers)
        if answer:
            raise answer

    _service(paths, "import time; time.sleep(600)", probe).start(threading.Event())
    assert next(answers, "used up") == "used up"


def test_waiting_for_a_service_can_be_aborted(paths):
    aborted = threading.Event()

    def probe():
        aborted.set()
        raise OSError("refused")

    with pytest.raises(LabError, match="interrupted"):
        _service(paths, "import time; time.sleep(600)", probe).start(aborted)


def test_a_taken_port_names_its_owner_and_the_cure():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LabError) as err:
            require_free(port, "Keystone")
        assert f"port {port}, meant for Keystone, is in use by process {os.getpid()}" in str(
            err.value
        )
        assert "--base-port" in str(err.value)
    require_free(port, "Keystone")
