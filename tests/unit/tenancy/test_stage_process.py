# SPDX-License-Identifier: Apache-2.0
"""The process that has a service VM: its answers, its deadline, its end with nova-compute."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova_hpc.tenancy.stage import domain, process, report, spare_capacity
from nova_hpc.tenancy.stage.domain import ServiceVmMachine
from nova_hpc.tenancy.stage.process import LateError
from nova_hpc.tenancy.stage.runner import ServiceVmRunner
from nova_hpc.tenancy.stage.spare_capacity import ShortError

FAKE = Path(__file__).parent / "fake_libvirt"
GPU, VF = "0000:41:00.0", "10000:e1:00.7"
OTHER = "0000:42:00.0"
VM = "0d6a4f6e-1111-4222-8333-444455556666"


def environ():
    return {"PYTHONPATH": os.pathsep.join([str(FAKE), *(each for each in sys.path if each)])}


@pytest.fixture
def host(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2000000 kB\n")
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-7\n")
    (tmp_path / "kernel").write_text("")
    return tmp_path


@pytest.fixture
def runner(host):
    def make(does, timeout=20.0, **more):
        (host / "does").write_text(does)
        machine = ServiceVmMachine(str(host / "kernel"), str(host / "kernel"))
        return ServiceVmRunner(
            uri=f"fake://{host}",
            machine=machine,
            timeout=timeout,
            checks=lambda role: ("memory",),
            root=host,
            execute=functools.partial(process.run_stage_program, more=environ()),
            **more,
        )

    return make


@pytest.mark.parametrize(
    ("does", "verdict", "problem"),
    [
        ("pass", "", ""),
        ("refuse", "BAR 0, MiB 1: zeros are not read as written", ""),
        ("unable", None, "check foo cannot be run"),
        ("silent", None, f"says nothing of {GPU}"),
        ("die", None, "has ended without an answer"),
        ("fail", None, "Cannot access kernel"),
    ],
)
def test_answers(host, runner, does, verdict, problem):
    found = runner(does).run(VM, {GPU: "gpu"})
    assert found.verdicts.get(GPU) == verdict
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)
    assert list(host.glob("*.domain")) == []


def test_an_answer_for_one_device_is_none_for_another(runner):
    found = runner("refuse").run(VM, {GPU: "gpu", OTHER: "gpu"})
    assert f"says nothing of {OTHER}" in found.problem


@pytest.mark.parametrize(
    ("does", "words"), [("hang", "No working init found"), ("forge", "within 1 seconds")]
)
def test_a_vm_that_gives_no_answer_of_this_run(host, runner, does, words):
    found = runner(does, timeout=1.0).run(VM, {GPU: "gpu"})
    assert words in found.problem
    assert "gave no answer within 1 seconds" in found.problem
    assert list(host.glob("*.domain")) == []


def test_a_libvirt_that_hangs(runner, monkeypatch):
    monkeypatch.setattr("nova_hpc.tenancy.stage.runner._GRACE", 1.0)
    monkeypatch.setattr("nova_hpc.tenancy.stage.runner._END", 1.0)
    found = runner("stuck", timeout=1.0)
    outcome = found.run(VM, {GPU: "gpu"})
    assert "did not end within 2 seconds and was killed" in outcome.problem
    assert "may still have it" in found.end(VM, [GPU])


def test_the_vm_ends_with_the_process_that_has_asked_for_it(host, runner):
    """nova-compute is killed: its pipe closes, the child goes, libvirt ends the VM."""
    runner("hang")
    xml = domain.build_service_domain(
        VM, ServiceVmMachine("/k", "/i"), [GPU], {0}, "a" * 32, ["memory"]
    )
    asked = {"uri": f"fake://{host}", "xml": xml, "nonce": "a" * 32, "seconds": 600}
    argv = [sys.executable, "-s", "-m", "nova_hpc.tenancy.stage.attendant", "run"]
    code = (
        "import json, sys; from nova_hpc.tenancy.stage import process;"
        "process.run_stage_program(json.loads(sys.argv[1]), 600, json.loads(sys.argv[2]))"
    )
    words = [json.dumps([*argv, json.dumps(asked)]), json.dumps(environ())]
    parent = subprocess.Popen([sys.executable, "-c", code, *words], env={**os.environ, **environ()})
    try:
        path = host / f"{VM}.domain"
        deadline = time.monotonic() + 120
        while not path.exists() or not path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child = int(path.read_text().split("\n")[0])
        assert child != parent.pid
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.05)


def test_what_was_left_is_ended_and_nothing_else(host, runner):
    found = runner("pass")
    assert found.end(VM, [GPU]) is None  # there is none
    xml = domain.build_service_domain(VM, ServiceVmMachine("/k", "/i"), [GPU], {0}, "a" * 32, [])
    (host / f"{VM}.domain").write_text(f"0\n{xml}")
    assert found.end(VM, [GPU]) is None
    assert list(host.glob("*.domain")) == []
    (host / f"{VM}.domain").write_text(f"0\n<domain><uuid>{VM}</uuid></domain>")
    assert "is no service VM" in found.end(VM, [GPU])
    assert len(list(host.glob("*.domain"))) == 1


def test_a_program_that_is_missing_killed_or_fails():
    with pytest.raises(LateError, match="cannot start"):
        process.run_stage_program(["/nowhere/at/all"], 5)
    with pytest.raises(LateError, match="signal 9"):
        process.run_stage_program(["/bin/sh", "-c", "kill -9 $$"], 20)
    with pytest.raises(LateError, match="status 7"):
        process.run_stage_program(["/bin/sh", "-c", "exit 7"], 20)
    with pytest.raises(LateError, match="did not end within"):
        process.run_stage_program(["/bin/sleep", "600"], 0.2)


# -- the host's reserve ---------------------------------------------------------------


def test_a_node_without_memory_or_files_starts_nothing(host, runner):
    (host / "proc/meminfo").write_text("MemAvailable:    300000 kB\n")
    found = runner("pass").run(VM, {GPU: "gpu"})
    assert found.host
    assert "292 MiB of memory left for itself" in found.problem
    (host / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    assert "does not say" in runner("pass").run(VM, {GPU: "gpu"}).problem
    (host / "proc/meminfo").write_text("MemAvailable:    3000000 kB\n")
    dedicated = runner("pass", dedicated=frozenset(range(8)))
    assert "all CPUs" in dedicated.run(VM, {GPU: "gpu"}).problem
    (host / "kernel").unlink()
    found = runner("pass").run(VM, {GPU: "gpu"})
    assert found.host
    assert "[hpc]clean_vm_kernel: there is no file" in found.problem


@given(*[st.frozensets(st.integers(0, 9))] * 3)
def test_cpus_are_never_those_of_servers(online, dedicated, shared):
    try:
        found = spare_capacity.spare_cpus_of(online, dedicated, shared)
    except ShortError:
        assert online <= dedicated
        return
    assert found
    assert found <= online - dedicated
    assert found.isdisjoint(shared) or online - dedicated <= shared


# -- the domain -----------------------------------------------------------------------


def test_the_domain():
    machine = ServiceVmMachine("/boot/k", "/boot/i", memory_mib=256, arguments="nokaslr")
    text = domain.build_service_domain(
        VM, machine, [GPU, VF], {3, 1}, "b" * 32, ["memory", "mine"], {"0": {"ecc": True}, "1": {}}
    )
    root = etree.fromstring(text)
    assert domain.is_service_vm(text, VM.upper())
    assert not domain.is_service_vm(text, "another")
    assert not domain.is_service_vm("<broken", VM)
    assert root.findtext("name").startswith(domain.PREFIX)
    assert root.find("memoryBacking") is None
    assert (root.findtext("memory"), root.find("vcpu").get("cpuset")) == ("256", "1,3")
    assert root.find("cputune/emulatorpin").get("cpuset") == "1,3"
    line = root.findtext("os/cmdline")
    assert "nokaslr nova_hpc.nonce=" + "b" * 32 in line
    assert "nova_hpc.checks=memory,mine nova_hpc.pins=" in line
    assert [dict(each.attrib) for each in root.iterfind("devices/hostdev/source/address")] == [
        {"domain": "0x0", "bus": "0x41", "slot": "0x0", "function": "0x0"},
        {"domain": "0x10000", "bus": "0xe1", "slot": "0x0", "function": "0x7"},
    ]
    assert all(each.get("managed") == "no" for each in root.iterfind("devices/hostdev"))
    ports = root.findall("devices/controller[@model='pcie-root-port']")
    assert [(e.get("index"), e.find("address").get("slot")) for e in ports] == [
        ("1", "0x10"),
        ("2", "0x11"),
    ]
    for kind in ("disk", "interface", "graphics"):
        assert root.find(f"devices/{kind}") is None
    with pytest.raises(ValueError, match="16 devices"):
        domain.build_service_domain(VM, machine, [GPU] * 16, {0}, "b" * 32, [])
    with pytest.raises(ValueError, match="longer than"):
        domain.build_service_domain(VM, machine, [GPU], {0}, "b" * 32, ["x" * 2000])


# -- the answer -----------------------------------------------------------------------

_RESULTS = st.dictionaries(
    st.text("0123456789", max_size=2),
    st.fixed_dictionaries({"ok": st.booleans()}, optional={"reason": st.text()}),
)
_NONCE = "c" * 32


@given(_RESULTS, st.text(), st.text())
def test_an_answer_is_found_among_noise(results, before, after):
    text = f"{before}\n{report.format_report_line(_NONCE, results)}\r\n{after}"
    assert report.find_stage_report(text, _NONCE) == results
    assert report.find_stage_report(text, "d" * 32) is None


@given(_RESULTS, st.integers(0, 5000), st.binary(max_size=4))
def test_a_damaged_answer_is_none(results, place, piece):
    line = report.format_report_line(_NONCE, results)
    place %= len(line)
    text = line[:place] + piece.decode("latin-1") + line[place + len(piece) :]
    assert report.find_stage_report(text, _NONCE) in (None, results)


def test_an_answer_of_another_version():
    line = report.format_report_line(_NONCE, {})
    body = line.split(" ", 3)[3].replace('"v": 1', '"v": 2')
    import zlib

    text = f"{report.MARK} {_NONCE} {zlib.crc32(body.encode()):08x} {body}"
    with pytest.raises(report.ReportError, match="version 2"):
        report.find_stage_report(text, _NONCE)
    body = '{"v": 1, "results": {"0": {"ok": 1}}}'
    text = f"{report.MARK} {_NONCE} {zlib.crc32(body.encode()):08x} {body}"
    with pytest.raises(report.ReportError, match="cannot be read"):
        report.find_stage_report(text, _NONCE)
