# SPDX-License-Identifier: Apache-2.0
"""Tables of tools: the number below its name, or a refusal, whatever happened to the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest.accept import readings
from nova_hpc_guest.accept.probes import PROBE_OF
from tests.unit.guest.accept_cases import DATA
from tests.unit.guest.test_accept_readings import output

#: Probe, its recorded output, and its value.
TABLES = {
    "all_reduce_perf-gdr.txt": ("nccl_pair", 48.37),
    "all_reduce_perf-old.txt": ("nccl_node", 264.74),
    "ib_write_bw.txt": ("ib_bw", 391.87),
    "ib_write_lat.txt": ("ib_lat", 1.05),
    "nvbandwidth-x8.txt": ("h2d", 27.64),
}
MARK = "node:1887:1901 [0] NCCL INFO "
OLD = """\
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   268435456      67108864     float     sum    40122    6.69   11.71  4e-07    40120    6.69   11.71  4e-07
# Out of bounds values : 0 OK
"""  # noqa: E501


def read_value(probe: str, text: str) -> float:
    return PROBE_OF[probe].read(text, "", 600.0)


def test_a_time_without_a_point_is_no_root() -> None:
    """Before: 4e-07 GB/s, from a column counted from the left."""
    assert read_value("nccl_node", OLD) == 11.71


def test_a_log_within_a_row_is_taken_out() -> None:
    row = next(line for line in output("all_reduce_perf-gdr.txt").splitlines() if "-1" in line[:60])
    cut = row.index("-1") + 2
    broken = f"{row[:cut]}{MARK}AllReduce: time 2512.0\n{MARK}AllReduce: again\n{row[cut:]}"
    text = output("all_reduce_perf-gdr.txt").replace(row, broken)
    assert read_value("nccl_pair", text) == 48.37
    # No line begins with this mark, so -1other may be the host.
    unknown = text.replace(f"-1{MARK}", "-1other:9:9 [0] NCCL INFO ")
    with pytest.raises(ValueError, match="is no row of 13 columns"):
        read_value("nccl_pair", unknown)


def test_processes_that_do_not_know_each_other_are_named() -> None:
    text = output("all_reduce_perf-gdr.txt").replace("Rank  1", "Rank  0")
    with pytest.raises(ValueError, match="built without MPI"):
        read_value("nccl_pair", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{MARK}Using network IBext_v8", ("ib",)),
        (f"{MARK}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext_v8/1", ("ib", "rails=1")),
        (f"{MARK}... via NET/IBext/0/GDRDMA/Shared", ("gdrdma", "ib", "rails=0")),
        (f"{MARK}NET/IB : No device found.\n{MARK}Using network Socket", ("socket",)),
    ],
)
def test_the_way_over_a_network_of_its_own(text: str, words: tuple[str, ...]) -> None:
    assert readings.find_collective_words(text) == words


@pytest.mark.parametrize(("later", "value"), [(0, 9.0), (11, 9.0), (12, 20_000.0), (300, 20_000.0)])
def test_wakes_later_than_the_histogram_count(later: int, value: float) -> None:
    """Before: 300 of 1,200 wakes above 20 ms, and 9 us were read."""
    histogram = {"3": 1100 - later, "9": 100}
    document = {"thread": {"0": {"histogram": histogram, "cycles": 1200, "max": 30_000}}}
    assert PROBE_OF["timer_p99"].read("", json.dumps(document), 1200.0) == value


def test_a_histogram_of_more_wakes_than_there_were() -> None:
    document = {"thread": {"0": {"histogram": {"3": 5}, "cycles": 4}}}
    with pytest.raises(ValueError, match="5 wakes of 4"):
        PROBE_OF["timer_p99"].read("", json.dumps(document), 1200.0)


def test_a_histogram_that_lacks_wakes_which_were_not_late() -> None:
    thread = {"histogram": {"3": 900}, "cycles": 1200, "max": 9}
    with pytest.raises(ValueError, match="without 300 wakes"):
        PROBE_OF["timer_p99"].read("", json.dumps({"thread": {"0": thread}}), 1200.0)


@pytest.mark.parametrize(
    ("file", "probe", "value"),
    [
        ("allreduce_info_in_row.txt", "nccl_pair", 106.86),
        ("allreduce_old_slow.txt", "nccl_pair", 11.71),
        ("allreduce_two_alone.txt", "nccl_pair", "built without MPI"),
        ("iperf3_warned.txt", "net_bw", 9400.0),
        ("iperf3_warned.txt", "net_rtt", 85.0),
        ("nccl_plugin_no_gdr.txt", "nccl_pair", "no heading"),
    ],
)
def test_outputs_that_users_reported(
    captures: Path, file: str, probe: str, value: float | str
) -> None:
    text = (captures / "reports/accept" / file).read_text()
    if isinstance(value, str):
        with pytest.raises(ValueError, match=value):
            read_value(probe, text)
    else:
        assert read_value(probe, text) == value


def test_a_warning_before_or_after_a_document_is_passed_over() -> None:
    text = output("iperf3.json")
    warned = f"warning: this system does not seem to support IPv6 - trying IPv4\n{text}\nbye\n"
    assert read_value("net_bw", warned) == read_value("net_bw", text)
    with pytest.raises(ValueError, match="more than one"):
        read_value("net_bw", text + text)


def _diagnosis(*tests: dict[str, object]) -> str:
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": list(tests)}]}})


def test_forms_of_a_diagnosis() -> None:
    failed = {"status": "Fail"}
    for test in (
        {"name": "memory", "results": [{"gpu_id": "0", **failed}]},
        {"name": "memory", "test_summary": failed},
        {"name": "memory", "results": [{"status": "Pass"}], "test_summary": {"status": "FAILED"}},
    ):
        text = f"Successfully ran diagnostic for group.\n{_diagnosis(test)}\n"
        assert readings.read_failed_tests(text) == ["memory"]
    for text, reason in (
        (_diagnosis({"name": "memory"}), "without results"),
        (_diagnosis({"name": "memory", "results": [{}]}), "no status"),
        ('{"DCGM Diagnostic": {"runtime_error": "no GPUs"}}', "it says 'no GPUs'"),
    ):
        with pytest.raises(ValueError, match=reason):
            readings.read_failed_tests(text)


#: Probe, an output of its tool, and the file that the tool writes beside it, if any.
OUTPUTS = (
    *((probe, name, "") for name, (probe, _) in TABLES.items()),
    *(("cpu_one", "sysbench-cpu.txt", ""), ("mem_stream", "sysbench-memory.txt", "")),
    *(("mpi_lat", "mpi4py-ring.txt", ""), ("lammps_lj", "lammps.txt", "")),
    *((name, "hpcc.txt", "") for name in ("hpl", "stream_triad", "random_access", "fft")),
    *(("pingpong", "hpcc.txt", ""), ("disk_lat", "fio.txt", "")),
    *(("net_bw", "iperf3.json", ""), ("net_rtt", "iperf3.json", "")),
    *(("link_bw", "iperf3-bidir.json", ""), ("all_reduce", "all_reduce.txt", "")),
    *(("timer_p99", "", "cyclictest.json"), ("oslat", "", "oslat.json")),
    *(("h2d", "nvbandwidth-h100.txt", ""), ("d2h", "nvbandwidth-h100-d2h.txt", "")),
)


def read_output(probe: str, text: str, document: str) -> float:
    return PROBE_OF[probe].read(text, document, 600.0)


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, float, str, str]:
    """An output to which one or two things have happened: probe, right value, text, document."""
    probe, *names = draw(st.sampled_from(OUTPUTS))
    texts = [(DATA / "outputs" / name).read_text() if name else "" for name in names]
    value = read_output(probe, *texts)
    damaged = [_damage(draw, text) if text else "" for text in texts]
    return probe, value, damaged[0], damaged[1]


def _damage(draw: st.DrawFn, text: str) -> str:
    for _ in range(draw(st.integers(1, 2))):
        lines = text.splitlines(keepends=True)
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        place = draw(st.integers(0, len(lines[at])))
        match draw(st.sampled_from(["cut", "line", "drop", "noise", "join", "twice", "columns"])):
            case "cut":
                text = text[: draw(st.integers(0, len(text)))]
            case "drop":
                text = "".join(lines[:at] + lines[at + 1 :])
            case "line":
                text = "".join([*lines[:at], f"{MARK}x 5 5.5\n", *lines[at:]])
            case "noise":
                noise = draw(st.sampled_from([f"{MARK}5 6\n", "warning: 7 8\n", "[1,0]<stdout>: "]))
                text = "".join(
                    [*lines[:at], lines[at][:place] + noise + lines[at][place:], *lines[at + 1 :]]
                )
            case "join":
                text = "".join([*lines[:at], lines[at].rstrip("\n"), *lines[at + 1 :]])
            case "twice":
                text += text
            case "columns":
                text = _drop_column(lines, draw(st.integers(1, 12)))
    return text


def _drop_column(lines: list[str], number: int) -> str:
    """The table of a release that does not print one column of nccl-tests or perftest."""
    done = []
    for line in lines:
        heading = line.startswith("#") and " count " in line
        row = line.split()[:1] and line.split()[0].isdigit() and len(line.split()) > 8
        fields = line.lstrip("#").split()
        if (heading or row) and len(fields) > number:
            del fields[number]
            line = ("# " if heading else " ") + "  ".join(fields) + "\n"
        done.append(line)
    return "".join(done)


@given(damages())
def test_a_damaged_output_gives_its_number_or_a_refusal(
    case: tuple[str, float, str, str],
) -> None:
    probe, value, text, document = case
    try:
        found = read_output(probe, text, document)
    except ValueError:
        return
    # In place it is nearly the same: a release without the column of the other has this one.
    assert found in (value, 265.04)
