# SPDX-License-Identifier: Apache-2.0
"""The command ``accept`` on machines with fake tools, which are real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nova_hpc_guest import build, command
from nova_hpc_guest.accept import result, session
from nova_hpc_guest.accept.probes import PROBES
from nova_hpc_guest.files import Root
from tests.unit.guest.accept_world import FAST, SLOW, AcceptWorld, list_processes, read_result
from tests.unit.guest.servers import run as run_on_guest
from tests.unit.pictures.faults import list_faults

# -- verdicts ---------------------------------------------------------------------------


def test_a_machine_that_is_as_it_should_be(world: AcceptWorld) -> None:
    status, out, err = world.run(only="cpu_all,mem_stream")
    assert (status, err) == (0, "")
    assert re.search(r"^cpu_all +2000 +2000  1.000  1.000-1.000 +level", out, re.M), out
    assert re.search(r"^mem_stream .* level .*against pages=large, 6 pairs$", out, re.M)
    assert "no promise of the cloud to check (this machine was given no" in out
    assert out.endswith("verdict: accepted\n")


def test_a_machine_that_is_slow_and_its_cause(world: AcceptWorld) -> None:
    world.cpu(1000.0, together=1000.0)
    status, out, _ = world.run(only="cpu_all")
    assert status == 1
    # The fake tool ends at once: what can be seen of it is that nothing was seen.
    assert "NO CAUSE FOUND for cpu_all" in out or "CAUSE vcpus-share-core" in out
    assert out.endswith("verdict: slow\n")


def test_small_pages_are_proved_by_large_ones(world: AcceptWorld) -> None:
    world.rate("memory", SLOW)
    world.rate("memory-large", FAST)
    data = read_result(world, only="mem_stream")
    (row,) = data["rows"]
    assert (data["verdict"], row["verdict"], row["against"]) == ("slow", "slow", "pages=large")
    assert row["ratio"] == pytest.approx(5 / 9, abs=1e-3)
    # No tool of these holds memory to look at: the symptom alone is no cause.
    assert (data["causes"], data["unexplained"]) == ([], ["mem_stream"])


def test_a_budget_that_is_too_short_is_undecided(world: AcceptWorld) -> None:
    data = read_result(world, "--budget", "0.01")
    assert (data["verdict"], data["status"], data["short"]) == ("undecided", 3, True)
    assert data["rows"][0]["pairs"] < 6


def test_no_tool_is_not_measurable(world: AcceptWorld) -> None:
    (world.tools / "sysbench").unlink()
    status, out, _ = world.run()
    assert status == 2
    assert "left out mem_stream: no tool sysbench (Debian's package sysbench)" in out
    assert out.endswith("verdict: not measurable\n")


def test_all_tools_are_missing(world: AcceptWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left measures itself, with Python alone."""
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    data = read_result(world, only="clock,mem_stream,net_bw,disk_lat,timer_p99,cpu_one")
    assert [row["probe"] for row in data["rows"]] == ["clock"]
    assert data["missing"]["net_bw"] == "no tool iperf3 (Debian's package iperf3)"
    assert data["missing"]["timer_p99"] == "no tool cyclictest (Debian's package rt-tests)"
    assert not data["failed"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo rubbish\n", "printed something that is not its result"),
        ("exit 7\n", "it ended with status 7"),
        ("kill -9 $$\n", "it was killed by SIGKILL"),
        ("", "printed something that is not its result"),
        ('echo "(0.00 MiB/sec)"\n', "is no number above 0"),
    ],
)
def test_a_tool_that_fails_is_named_and_never_accepted(world, text: str, reason: str) -> None:
    world.rate("memory", text)
    data = read_result(world, only="mem_stream,cpu_all")
    assert data["verdict"] == "not measurable"
    assert reason in data["failed"]["mem_stream"]
    assert [row["verdict"] for row in data["rows"]] == ["level"]


def test_a_probe_at_its_limit_is_a_result(world, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [probe._replace(limit=0.3) if probe.name == "mem_stream" else probe for probe in PROBES]
    monkeypatch.setattr("nova_hpc_guest.accept.measuring.PROBES", tuple(quick))
    world.rate(
        "memory", '[ -n "$GLIBC_TUNABLES" ] && { ' + FAST.strip() + "; exit; }\n/bin/sleep 60\n"
    )
    real = session.list_probes
    by_name = {probe.name: probe for probe in quick}
    monkeypatch.setattr(
        session, "list_probes", lambda *a: tuple(by_name[one.name] for one in real(*a))
    )
    monkeypatch.setattr("nova_hpc_guest.accept.options.PAIRS", {"quick": 6, "full": 25})
    data = read_result(world)
    (row,) = data["rows"]
    assert row["at_limit"] is True
    # No run of it can have been faster than all of its work in all of that time.
    assert row["test"] == pytest.approx(6144 / 0.35, rel=0.3)


def test_a_version_that_was_not_tried_is_named(world: AcceptWorld) -> None:
    text = (world.tools / "sysbench").read_text()
    world.tool("sysbench", text.replace("1.0.20", "2.7.1"))
    status, out, _ = world.run()
    assert status == 0
    assert "note sysbench 2.7.1: not tried with this version" in out
    world.tool("sysbench", text.replace("sysbench 1.0.20", "\377\376"))
    assert read_result(world)["tools"]["sysbench"] == {"version": "?", "tried": False}
    world.tool("numactl", "#!/bin/sh\n")
    _, out, _ = world.run()
    assert "note sysbench: it does not say its version" in out
    assert "numactl" not in out, "it measured nothing here"


# -- the promise ------------------------------------------------------------------------


def run_guest(guest, world: AcceptWorld, *arguments: str):
    before = dict(os.environ)
    os.environ.update(world.environment)
    try:
        return run_on_guest(
            guest, "accept", "--busy", "--only", "mem_stream", "--format", "json", *arguments
        )
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_a_promise_that_is_kept(guest, world: AcceptWorld) -> None:
    status, out, _ = run_guest(guest, world)
    data = json.loads(out)
    assert (status, data["promise"]["given"], data["promise"]["findings"]) == (0, True, [])


def test_a_broken_promise_is_a_finding_without_a_benchmark(guest, world: AcceptWorld) -> None:
    (guest.root / "sys/bus/pci/devices" / guest.folders["0000:1a:00.0"].name).unlink()
    status, out, _ = run_guest(guest, world)
    data = json.loads(out)
    assert (status, data["verdict"]) == (1, "promise broken")
    assert [one["kind"] for one in data["promise"]["findings"] if one["wrong"]] == ["device"]
    assert run_guest(guest, world, "--skip", "device")[0] == 0


def test_a_document_that_the_cloud_did_not_write(world: AcceptWorld) -> None:
    place = world.root / "sys/firmware/qemu_fw_cfg/by_name/opt/org.nova-hpc/guest.json/raw"
    place.parent.mkdir(parents=True)
    place.write_text('{"schema": "nova-hpc/guest", "version": 1, "topology": "sphere"}')
    data = read_result(world)
    assert data["verdict"] == "promise broken"
    assert "topology is 'sphere'" in data["promise"]["findings"][0]["text"]


# -- refusals ---------------------------------------------------------------------------


def write_stat(world: AcceptWorld, busy: int) -> None:
    world.write("proc/stat", f"cpu  0\ncpu0 {busy} 0 0 0 0 0 0 0\ncpu1 {busy} 0 0 0 0 0 0 0\n")


def test_a_busy_machine_is_refused(world: AcceptWorld, monkeypatch) -> None:
    from nova_hpc_guest.accept import refusal

    busy = [0]

    def sleep(seconds: float) -> None:
        busy[0] += int(seconds * os.sysconf("SC_CLK_TCK"))
        write_stat(world, busy[0])

    write_stat(world, 0)
    refused = refusal.refuse_busy_machine(Root(str(world.root)), (0, 1), sleep)
    assert refused is not None
    assert "other processes keep 2.0 of 2 CPUs busy" in refused.text
    assert refusal.refuse_busy_machine(Root(str(world.root)), (0, 1), lambda _: None) is None
    # No /proc/stat: nothing is known, and nothing refused.
    (world.root / "proc/stat").unlink()
    assert refusal.refuse_busy_machine(Root(str(world.root)), (0, 1), lambda _: None) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tier", "full"], "say --yes"),
        (["--only", "nothing"], "is not one of cpu_one"),
        (["--only", "hpl"], "needs --tier full"),
        (["--baseline", "a", "--beside", "b"], "choose one"),
        (["--save-baseline", "a", "--only", "blas"], "does not go with"),
        (["--budget", "0"], "no number of seconds"),
        (["--budget", "1e9"], "no number of seconds"),
        (["--peer=-oProxyCommand=x"], "no name or address"),
        (["--peer", "a b"], "no name or address"),
        (["--skip", "everything"], "is not one of device"),
        (["--format", "xml"], "invalid choice"),
        (["--scale", "0"], "no part from 0.01 to 1"),
        (["--scale", "1.5"], "no part from 0.01 to 1"),
    ],
)
def test_options_that_make_no_sense(world, arguments, words, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        command.main(["accept", *arguments])
    assert error.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "no JSON object"),
        ("rubbish", "not JSON"),
        ('{"blas": 2}', "no ratio from 0 to 1"),
        ('{"blas": true}', "no ratio from 0 to 1"),
        ('{"blast": 0.5}', "is no probe"),
    ],
)
def test_floors_that_are_none(world: AcceptWorld, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "floors").write_text(text)
    status, out, _ = world.run("--floors", str(tmp_path / "floors"))
    assert status == 2
    assert words in out


def test_the_operator_may_change_the_floors(world: AcceptWorld, tmp_path: Path) -> None:
    world.rate("memory", SLOW)
    world.rate("memory-large", FAST)
    assert world.run()[0] == 1
    (tmp_path / "floors").write_text('{"mem_stream": 0.5}')
    assert world.run("--floors", str(tmp_path / "floors"))[0] == 0


# -- views ------------------------------------------------------------------------------


def test_a_picture(world: AcceptWorld) -> None:
    world.rate("memory", SLOW)
    world.rate("memory-large", FAST)
    status, out, _ = world.run("--format", "svg", only="mem_stream,cpu_all")
    assert status == 1
    assert list_faults(out) == []
    picture = ElementTree.fromstring(out)
    texts = "".join(picture.itertext())
    assert "mem_stream" in texts
    assert "0.56 (0.56-0.56) slow" in texts
    assert "no cause found: mem_stream" in texts


def test_junit(world: AcceptWorld) -> None:
    world.rate("memory", SLOW)
    world.rate("memory-large", FAST)
    world.rate("cpu", "exit 3\n")
    _, out, _ = world.run("--format", "junit", only="mem_stream,cpu_one")
    suite = ElementTree.fromstring(out)
    kinds = {case.get("classname"): [each.tag for each in case] for case in suite}
    assert kinds == {"mem_stream": ["failure"], "cpu_one": ["error"]}
    assert (suite.get("failures"), suite.get("errors")) == ("1", "1")


def test_published_figures_stand_beside(world: AcceptWorld) -> None:
    data = read_result(world, "--compare", "published")
    assert len(data["published"]) == 85
    assert all(row["why"] for row in data["published"])
    _, out, _ = world.run("--compare", "published")
    assert "LAMMPS LJ, 32 cores" in out
    assert "not comparable: SPEC's benchmarks are not free" in out


def test_nobody_is_told_a_name_or_a_number_of_the_machine(world: AcceptWorld) -> None:
    world.write("etc/hostname", "secret-host\n")
    world.write("proc/sys/kernel/hostname", "secret-host\n")
    world.write("sys/class/dmi/id/product_serial", "secret-serial\n")
    for form in ("text", "json", "svg", "junit"):
        _, out, _ = world.run("--format", form)
        assert "secret" not in out
        assert os.uname().nodename not in out or len(os.uname().nodename) < 4
    assert "secret" not in world.run("--sample")[1]


# -- strange machines -------------------------------------------------------------------


def test_256_cpus(world: AcceptWorld) -> None:
    world.write("sys/devices/system/cpu/online", "0-255\n")
    world.cpu(1000.0, together=256_000.0)
    world.rate("all", f'echo "total time: {1200 * 256 / 256_000:.5f}s"\n')
    data = read_result(world, only="cpu_all")
    assert data["rows"][0]["base"] == pytest.approx(256_000, rel=1e-3)
    assert data["verdict"] == "accepted"


def test_a_machine_without_anything_to_read(tmp_path: Path) -> None:
    """No /proc, no /sys, no control groups."""
    world = AcceptWorld(tmp_path)
    world.root = tmp_path / "empty"
    world.root.mkdir()
    data = read_result(world)
    assert data["verdict"] == "accepted"
    assert (data["boot"], data["facts"]["model"]) == (None, None)


def test_other_languages_do_not_matter(world: AcceptWorld) -> None:
    text = (world.tools / "sysbench").read_text()
    world.tool("sysbench", text.replace("#!/bin/sh\n", '#!/bin/sh\n[ "$LC_ALL" = C ] || exit 9\n'))
    before = dict(os.environ)
    try:
        os.environ.update(LC_ALL="de_DE.UTF-8", LANG="de_DE.UTF-8")
        assert world.run()[0] == 0
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize(
    ("scale", "stream", "random"),
    [("1", (64, 6144), (64, 128)), ("0.5", (8, 3072), (8, 8)), ("0.1", (8, 608), (8, 8))],
)
def test_a_slow_machine_reads_less_memory(
    world: AcceptWorld, scale: str, stream: tuple[int, int], random: tuple[int, int]
) -> None:
    """One that is emulated reads 3 MiB a second anywhere: 64 would take it the whole limit."""
    text = (world.tools / "sysbench").read_text()
    world.tool("sysbench", text.replace("name=$1;", 'echo "$*" >>"$RATES/words"; name=$1;'))
    assert world.run("--sample", "--scale", scale, only="mem_stream,mem_random")[0] == 0
    words = (world.rates / "words").read_text()
    found = re.findall(r"--memory-block-size=(\d+)M .*--memory-total-size=(\d+)M", words)
    assert [tuple(map(int, each)) for each in found] == [stream, random]


# -- ended ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_when_it_is_ended(world: AcceptWorld, number: int) -> None:
    mark = f"{world.rates}/hang"
    world.rate("hang", "trap '' TERM INT\nwhile true; do /bin/sleep 0.1; done\n")
    world.rate("memory", f"/bin/sh {mark} &\n/bin/sh {mark}\n")
    child = world.start("--only", "mem_stream")
    until = time.monotonic() + 20
    while len(list_processes(mark)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(list_processes(mark)) >= 2
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 2
    assert out == ""
    assert err == f"nova-hpc-guest: ended by {signal.Signals(number).name}\n"
    assert list_processes(mark) == []


# -- packed -----------------------------------------------------------------------------


def test_it_is_part_of_the_one_file(world: AcceptWorld, tmp_path: Path) -> None:
    packed = tmp_path / "nova-hpc-guest"
    packed.write_bytes(build.single_file())
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            packed,
            "accept",
            "--root",
            world.root,
            "--busy",
            "--only",
            "clock,mem_stream",
            "--compare",
            "published",
        ],
        capture_output=True,
        text=True,
        cwd="/",
        env=world.environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "verdict: accepted" in done.stdout
    assert "GPU-LIBSVM" in done.stdout


def test_user_data_have_no_room_for_it(tmp_path: Path) -> None:
    packed = tmp_path / "nova-hpc-guest"
    packed.write_bytes(build.single_file(accept=False))
    done = subprocess.run(
        [sys.executable, "-I", "-S", packed, "accept"], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 2
    assert "invalid choice: 'accept'" in done.stderr


def test_all_of_it_is_packed() -> None:
    folder = Path(build.__file__).parent / "accept"
    files = {f"accept/{path.name}" for path in folder.iterdir() if path.is_file()}
    assert set(build._ACCEPT) == files


def test_a_result_without_rows_is_never_accepted() -> None:
    from nova_hpc_guest.accept.facts import GuestFacts

    bare = result.AcceptanceResult("quick", None, GuestFacts())
    assert (bare.verdict, bare.status) == ("not measurable", 2)
    assert set(result.STATUSES.values()) == {0, 1, 2, 3}
