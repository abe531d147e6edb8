# SPDX-License-Identifier: Apache-2.0
"""What tools print, read; tests/data/accept/README.rst says which outputs were recorded."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest.accept import readings
from nova_hpc_guest.accept.probes import PROBE_OF, PROBES, TOOL_OF
from tests.unit.guest.accept_cases import DATA

OUTPUTS = DATA / "outputs"


def output(name: str) -> str:
    return (OUTPUTS / name).read_text()


ALL = [path.read_text() for path in sorted(OUTPUTS.iterdir())]


@pytest.mark.parametrize(
    ("probe", "file", "value"),
    [
        ("cpu_one", "sysbench-cpu.txt", 600 / 0.4680),
        ("cpu_all", "sysbench-cpu.txt", 600 / 0.4680),
        ("mem_stream", "sysbench-memory.txt", 7814.54),
        ("mem_random", "sysbench-memory.txt", 7814.54),
        ("mpi_lat", "mpi4py-ring.txt", 0.00401033 / 3000 * 1e6),
        ("lammps_lj", "lammps.txt", 73.860),
        ("hpl", "hpcc.txt", 21.3445),
        ("stream_triad", "hpcc.txt", 9.38721),
        ("random_access", "hpcc.txt", 0.0312884),
        ("fft", "hpcc.txt", 2.11043),
        ("pingpong", "hpcc.txt", 0.911234),
        ("ib_bw", "ib_write_bw.txt", 391.87),
        ("ib_lat", "ib_write_lat.txt", 1.05),
        ("h2d", "nvbandwidth.txt", 55.29),
        # The slowest of the GPUs counts.
        ("h2d", "nvbandwidth-x8.txt", 27.64),
        ("h2d", "nvbandwidth-h100.txt", 54.52),
        ("d2h", "nvbandwidth-h100-d2h.txt", 55.04),
        ("nccl_pair", "all_reduce_perf-gdr.txt", 48.37),
        ("nccl_node", "all_reduce_perf-old.txt", 264.74),
        ("link_bw", "iperf3-bidir.json", 3195.926),
        ("all_reduce", "all_reduce.txt", 0.173196),
    ],
)
def test_a_value_is_read(probe: str, file: str, value: float) -> None:
    assert PROBE_OF[probe].read(output(file), "", 600.0) == pytest.approx(value, rel=1e-5)


def test_values_in_documents_are_read() -> None:
    histogram = json.loads(output("cyclictest.json"))["thread"]["0"]["histogram"]
    late = PROBE_OF["timer_p99"].read("", output("cyclictest.json"), 300.0)
    above = sum(count for us, count in histogram.items() if int(us) > late)
    at_least = sum(count for us, count in histogram.items() if int(us) >= late)
    assert above < 0.01 * sum(histogram.values()) <= at_least
    assert PROBE_OF["oslat"].read("", output("oslat.json"), 1.0) == 20034
    end = json.loads(output("iperf3.json"))["end"]
    rate = PROBE_OF["net_bw"].read(output("iperf3.json"), "", 0.0)
    assert rate == pytest.approx(end["sum_received"]["bits_per_second"] / 1e6)
    delay = PROBE_OF["net_rtt"].read(output("iperf3.json"), "", 0.0)
    assert delay == end["streams"][0]["sender"]["mean_rtt"]
    fio = output("fio.txt")
    mean = json.loads(fio[fio.index("{") :])["jobs"][0]["read"]["clat_ns"]["mean"]
    assert PROBE_OF["disk_lat"].read(fio, "", 0.0) == pytest.approx(mean / 1000)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("all_reduce_perf-gdr.txt", ("gdrdma", "ib", "rails=0")),
        ("all_reduce_perf-no-gdr.txt", ("ib", "rails=0")),
        ("all_reduce_perf-sockets.txt", ("socket",)),
        ("all_reduce_perf-old.txt", ()),
    ],
)
def test_the_way_of_nccl_is_read(file: str, words: tuple[str, ...]) -> None:
    assert readings.find_collective_words(output(file)) == words


def test_one_gpu_has_no_bandwidth_of_a_bus() -> None:
    with pytest.raises(ValueError, match="no number above 0"):
        readings.read_collective(output("all_reduce_perf-h100.txt"), "", 0.0)


@pytest.mark.parametrize("probe", ["net_bw", "net_rtt"])
def test_what_iperf3_complains_of_is_said(probe: str) -> None:
    with pytest.raises(ValueError, match="it says 'unable to connect to server: Connection ref"):
        PROBE_OF[probe].read(output("iperf3-refused.json"), "", 0.0)
    text = '{"end": {}, "error": "unable to create a new stream: Permission denied"}'
    with pytest.raises(ValueError, match="it says 'unable to create a new stream: Permission"):
        PROBE_OF[probe].read(text, "", 0.0)


def test_sums_that_are_wrong_are_no_rate() -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        readings.read_collective(output("all_reduce_perf-wrong.txt"), "", 0.0)
    with pytest.raises(ValueError, match="no matrix"):
        readings.read_nvbandwidth(output("nvbandwidth-waived.txt"), "", 0.0)
    with pytest.raises(ValueError, match="Success"):
        PROBE_OF["hpl"].read(output("hpcc.txt").replace("Success=1", "Success=0"), "", 0.0)


def test_a_matrix_without_what_does_not_apply() -> None:
    text = (
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
        " 0       N/A     26.34\n 1     21.95       N/A\n\nSUM device_to_device 48.29\n 2 7.0\n"
    )
    assert readings.read_bandwidth_matrix(text) == [26.34, 21.95]


def test_a_diagnosis_names_what_failed() -> None:
    assert readings.read_failed_tests(output("dcgmi-pass.json")) == []
    assert readings.read_failed_tests(output("dcgmi-fail.json")) == ["pcie"]
    for text in ("", "{}", '{"DCGM Diagnostic": 3}', "rubbish"):
        with pytest.raises(ValueError):  # noqa: PT011
            readings.read_failed_tests(text)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
@given(text=st.one_of(st.text(max_size=300), st.sampled_from(ALL)))
def test_garbage_is_no_value(probe, text: str) -> None:
    """Whatever a tool prints, also that of another tool: a number above 0, or ValueError."""
    for cut in (text, text[: len(text) // 2], text.replace("1", "-"), text.replace(".", "e999")):
        try:
            value = probe.read(cut, cut, 100.0)
        except ValueError:
            continue
        assert math.isfinite(value)
        assert value > 0


def test_the_tables_belong_together() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    for probe in PROBES:
        assert probe.tool in TOOL_OF
        assert probe.of is None or probe.of in PROBE_OF
        assert bool(probe.words) == (probe.of is None)
        assert {need for need in probe.needs if need in TOOL_OF} <= set(TOOL_OF)
        assert 0 < probe.floor < 1
    text = " ".join(word for probe in PROBES for word in (*probe.words, *probe.server))
    # Never a real-time priority, whose bearer can make a machine deaf.
    for word in ("chrt", "--priority", "-p 99", "--rtprio", "SCHED_RR", "SCHED_FIFO", "sudo"):
        assert word not in text
    assert "--policy=other" in PROBE_OF["timer_p99"].words
