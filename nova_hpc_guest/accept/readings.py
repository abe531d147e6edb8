# SPDX-License-Identifier: Apache-2.0
"""Readers of tools' output: pure functions from text to numbers.

A reader takes the tool's output, the file it wrote, and the amount of work. It returns one value,
or raises ValueError if the text has another form. It finds the value by the name that the tool
prints beside or above it, never only by its place.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_NUMBER: Final = r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
#: Microseconds to which cyclictest counts single wakes; its option ``-h``.
HISTOGRAM_US: Final = 20_000
#: Microseconds to which oslat counts single times, by default; its option ``-b``.
OSLAT_US: Final = 32
#: Columns of perftest, by its own names; some contain blanks.
_PERFTEST_NAME: Final = r"#\w+|BW \w+\[[^]]*\]|[\d.]+% percentile\[\w+\]|\w+\[[^]]*\]"
#: The line with which NCCL marks its log: host, process, thread, GPU.
_NCCL_INFO: Final = r"[\w.-]+:\d+:\d+ \[\d+\] NCCL \w+ "


def read_sysbench_cpu(text: str, _: str, work: float) -> float:
    """Return sysbench's events a second, from the time that a fixed number of events took.

    :raises ValueError: the text has no such time.
    """
    return work / _find_number(r"total time:\s+" + _NUMBER + "s", text)


def read_sysbench_memory(text: str, _: str, __: float) -> float:
    """Return the MiB/s in sysbench's output."""
    return _find_number(r"\(" + _NUMBER + r" MiB/sec\)", text)


def read_cyclictest(_: str, document: str, work: float) -> float:
    """Return the 99th percentile of how late the timer woke, in microseconds.

    If more than one of a hundred wakes are later than the histogram, the value is its end: the
    percentile is at least that late.
    """
    return float(max(find_percentile(_count_wakes(document), 99), 1))


def find_percentile(counts: Mapping[int, int], percent: int) -> int:
    """Return the value that one of a hundred reaches or exceeds, for *percent* 99.

    :param counts: value -> how often it was counted; not empty.
    :param percent: part of the values that are shorter; 100 for the longest value.
    """
    above, total = 0, sum(counts.values())
    for value in sorted(filter(counts.get, counts), reverse=True):
        above += counts[value]
        if 100 * above >= (100 - percent) * total:
            break
    return value


def read_distribution(probe: str, document: str) -> dict[int, int]:
    """Return microseconds -> how often they were counted; {} if unknown, or not of this probe.

    The key :data:`HISTOGRAM_US` of wakes, and :data:`OSLAT_US` of times taken, has all longer ones.
    """
    count = {"timer_p99": _count_wakes, "oslat": _count_taken}.get(probe)
    try:
        return {} if count is None else count(document)
    except ValueError:
        return {}


def _count_wakes(document: str) -> dict[int, int]:
    """Return how late the timer woke, of cyclictest; ValueError if that is not in *document*.

    Wakes that are later than the histogram are missing from it.
    """
    thread = _find_path(_load_json(document), "thread", "0")
    counts = _read_histogram(thread, HISTOGRAM_US - 1)
    total = _read_whole(_find_path(thread, "cycles"))
    later = total - sum(counts.values())
    if total <= 0 or later < 0:
        raise ValueError(f"a histogram of {total - later} wakes of {total}")
    if later and _read_whole(_find_path(thread, "max")) < HISTOGRAM_US:
        raise ValueError(f"a histogram without {later} wakes, none of which was later than it")
    return {**counts, HISTOGRAM_US: later} if later else counts


def _count_taken(document: str) -> dict[int, int]:
    """Return times that were taken from all CPUs, of oslat; ValueError if that is not there."""
    threads = _find_path(_load_json(document), "thread")
    counts: Counter[int] = Counter()
    for thread in threads.values() if isinstance(threads, dict) else ():
        counts.update(_read_histogram(thread, OSLAT_US))
    return dict(counts)


def _read_histogram(thread: Any, last: int) -> dict[int, int]:
    histogram = _find_path(thread, "histogram")
    if not isinstance(histogram, dict):
        raise ValueError("no histogram")
    counts = {_read_whole(late): _read_whole(count) for late, count in histogram.items()}
    if max(counts, default=0) > last:
        raise ValueError(f"a histogram that goes beyond {last} us")
    return counts


def read_oslat(_: str, document: str, __: float) -> float:
    """Return the longest time that was taken from any of the CPUs, in microseconds."""
    threads = _find_path(_load_json(document), "thread")
    if not isinstance(threads, dict) or not threads:
        raise ValueError("no threads")
    return max(_expect_positive(_find_path(thread, "max")) for thread in threads.values())


def read_iperf3_rate(text: str, _: str, __: float) -> float:
    """Return the Mbit/s that arrived, from iperf3's JSON."""
    end = _find_iperf3_end(text)
    return _expect_positive(_find_path(end, "sum_received", "bits_per_second")) / 1e6


def read_iperf3_ways(text: str, _: str, __: float) -> float:
    """Return the Mbit/s that arrived in the slower direction, of iperf3's run in both at once."""
    end = _find_iperf3_end(text)
    names = ("sum_received", "sum_received_bidir_reverse")
    return min(_expect_positive(_find_path(end, name, "bits_per_second")) for name in names) / 1e6


def read_iperf3_delay(text: str, _: str, __: float) -> float:
    """Return the mean round trip that TCP saw, in microseconds, from iperf3's JSON."""
    streams = _find_path(_find_iperf3_end(text), "streams")
    if not isinstance(streams, list) or not streams:
        raise ValueError("no streams")
    return _expect_positive(_find_path(streams[0], "sender", "mean_rtt"))


def _find_iperf3_end(text: str) -> Any:
    data = _load_json(text)
    if "error" in data:
        # The tool exits with a status of success even after an error.
        raise ValueError(f"it says {ascii(data['error'])[:100]}")
    return _find_path(data, "end")


def read_fio(text: str, _: str, __: float) -> float:
    """Return the mean time of a read, in microseconds, from fio's JSON."""
    jobs = _find_path(_load_json(text), "jobs")
    if not isinstance(jobs, list) or not jobs:
        raise ValueError("no jobs")
    if _find_path(jobs[0], "error"):
        raise ValueError("the job met an error")
    return _expect_positive(_find_path(jobs[0], "read", "clat_ns", "mean")) / 1000


def read_ring(text: str, _: str, __: float) -> float:
    """Return the time of mpi4py's ring of two, in microseconds a round."""
    match = re.search(r"for (\d+) loops = " + _NUMBER + " seconds", text)
    if match is None or not int(match[1]):
        raise ValueError("no time of the ring")
    return _expect_positive(float(match[2]) / int(match[1]) * 1e6)


def read_dgemm(text: str, _: str, __: float) -> float:
    """Return the GFLOP/s that the child with the BLAS printed."""
    return _expect_positive(_find_path(_load_json(text), "gflops"))


def read_clock(text: str, _: str, __: float) -> float:
    """Return the nanoseconds for one reading of the clock that the child printed."""
    return _expect_positive(_find_path(_load_json(text), "nanoseconds"))


def read_lammps(text: str, _: str, __: float) -> float:
    """Return LAMMPS's time steps a second."""
    return _find_number(r"^Performance: .*, " + _NUMBER + " timesteps/s", text)


def read_hpcc(name: str, scale: float) -> Callable[[str, str, float], float]:
    """Return a reader of one line of HPCC's summary.

    :param name: of the line.
    :param scale: factor for its number.
    """

    def read_summary(text: str, _: str, __: float) -> float:
        if "Success=1" not in text:
            raise ValueError("HPCC did not say Success=1")
        return _find_number("^" + re.escape(name) + "=" + _NUMBER + r"\s*\n", text) * scale

    return read_summary


def read_perftest_rate(text: str, _: str, __: float) -> float:
    """Return the Gbit/s on average, as perftest's ``--report_gbits`` prints it."""
    return _read_perftest(text, "BW average[Gb/sec]")


def read_perftest_delay(text: str, _: str, __: float) -> float:
    """Return the typical latency of a write, in microseconds, from perftest's output."""
    return _read_perftest(text, "t_typical[usec]")


def _read_perftest(text: str, name: str) -> float:
    """Return the value below a name of perftest's heading, in the last row.

    :raises ValueError: there is no such heading or row.
    """
    lines = text.splitlines()
    headings = [number for number, line in enumerate(lines) if name in line]
    if not headings:
        raise ValueError(f"no heading with {name}")
    names = re.findall(_PERFTEST_NAME, lines[headings[-1]])
    rows = [line for line in lines[headings[-1] + 1 :] if re.match(r"\s*\d", line)]
    if not rows:
        raise ValueError("no row below the heading")
    return _read_cell(names, rows[-1], name)


def _read_cell(names: Sequence[str], row: str, name: str) -> float:
    """Return the number of a row below a name; of names that are there twice the first.

    :raises ValueError: the row has not as many fields as the heading has names; it is quoted.
    """
    fields = row.split()
    if len(fields) != len(names) or name not in names:
        raise ValueError(f"{row.strip()[:70]!a} is no row of {len(names)} columns with {name}")
    return _expect_positive(float(_expect_number(fields[names.index(name)])))


def read_nvbandwidth(text: str, _: str, __: float) -> float:
    """Return the rate of the slowest GPU, in GB/s, from the matrix of nvbandwidth's first test."""
    values = read_bandwidth_matrix(text)
    if not values:
        raise ValueError("no matrix")
    return min(values)


def read_bandwidth_matrix(text: str) -> list[float]:
    """Return the numbers of nvbandwidth's first matrix, without inapplicable ones; [] without one.

    :raises ValueError: a row has not as many numbers as there are columns, or the sum that ends the
        matrix is missing.
    """
    lines = iter(text.splitlines())
    if not any(re.match(r"\s*memcpy .* bandwidth \(GB/s\)", line) for line in lines):
        return []
    columns = next(lines, "").split()
    values: list[float] = []
    for number, line in enumerate(lines):
        cells = line.split()
        if line.startswith("SUM"):
            return values
        if not cells:
            continue
        if len(cells) != 1 + len(columns) or cells[0] != str(number):
            raise ValueError(f"{line.strip()[:70]!a} is no row of {len(columns)} GPUs")
        numbers = [cell for cell in cells[1:] if cell != "N/A"]
        values.extend(_expect_positive(float(_expect_number(cell))) for cell in numbers)
    raise ValueError("the matrix has no end: no line begins with SUM")


def read_collective(text: str, _: str, __: float) -> float:
    """Return bus bandwidth of nccl-tests or rccl-tests in GB/s, out of place, for the largest size.

    :raises ValueError: the output is incomplete, ambiguous, or reports wrong results.
    """
    ranks = re.findall(r"^#\s+Rank\s+(\d+)\s.*?\bPid\s+(\d+) on", text, re.MULTILINE)
    if len({rank for rank, _ in ranks}) < len(set(ranks)):
        raise ValueError(
            "each process is alone: this all_reduce_perf was built without MPI (make MPI=1)"
        )
    lines = _remove_nccl_log(text).splitlines()
    headings = {
        tuple(line.lstrip("# ").split())
        for line in lines
        if re.match(r"#\s+size\s+count\s+type\s", line)
    }
    rows = {line.strip() for line in lines if re.match(r"\s*\d+\s+\d+\s", line)}
    if len(headings) != 1 or not rows:
        raise ValueError("no heading with size, count and type, or no row of a size below it")
    if re.search(r"^#\s*Out of bounds values\s*:\s*[1-9]", text, re.MULTILINE):
        raise ValueError("values that were reduced are wrong (out of bounds)")
    (names,) = headings
    sizes = {row: _read_cell(names, row, "size") for row in rows}
    largest = [row for row, size in sizes.items() if size == max(sizes.values())]
    if len(largest) > 1:
        raise ValueError(f"{largest[0][:70]!a} is one of {len(largest)} rows of one size")
    return _read_cell(names, largest[0], "busbw")


def read_bus_bandwidth(text: str, _: str, __: float) -> float:
    """Return the bus bandwidth of our all-reduce in GB/s, from its JSON."""
    return _expect_positive(_find_path(_load_json(text), "busbw"))


def _remove_nccl_log(text: str) -> str:
    """Remove NCCL's log from the table: it goes into the same stream, even within a row.

    A mark counts within a line if another line begins with it: "-1node1:..." may be -1 and node1.
    """
    for mark in sorted(set(re.findall("^" + _NCCL_INFO, text, re.MULTILINE)), key=len):
        text = re.sub(re.escape(mark) + r"[^\n]*\n?", "", text)
    return text


def find_collective_words(text: str) -> tuple[str, ...]:
    """Return words for the transports that NCCL or RCCL took, from its log at level INFO.

    HPC-X brings a network of its own, which the log calls ``IBext`` or ``IBext_v8``.
    """
    words = []
    if re.search(r"via NET/\S+/GDRDMA", text):
        words.append("gdrdma")
    if re.search(r"via NET/IB(?:ext\w*)?/|NET/IB(?:ext\w*)? : Using|Using network IB", text):
        words.append("ib")
    if re.search(r"(?:Using network Socket|via NET/Socket)", text):
        words.append("socket")
    pairs = set(re.findall(r"via NET/IB(?:ext\w*)?/(\d+)", text))
    if pairs:
        words.append(f"rails={','.join(sorted(pairs))}")
    return tuple(words)


def read_failed_tests(text: str) -> list[str]:
    """Return names of the tests of ``dcgmi diag -j`` that failed.

    :raises ValueError: the text is not a report of a diagnosis.
    """
    data = _load_json(text)
    reports = [report for report in (data, *data.values()) if isinstance(report, dict)]
    for report in reports:
        if report.get("runtime_error"):
            raise ValueError(f"it says {ascii(report['runtime_error'])[:100]}")
    categories = [report["test_categories"] for report in reports if "test_categories" in report]
    if len(categories) != 1 or not isinstance(categories[0], list):
        raise ValueError("no test_categories")
    failed = []
    for category in categories[0]:
        for test in _find_path(category, "tests"):
            results, summary = test.get("results", []), test.get("test_summary", {})
            if not isinstance(results, list) or not (results or summary):
                raise ValueError("a test without results and summary")
            stated = [
                _find_path(result, "status") for result in (*results, *([summary] * bool(summary)))
            ]
            if any(str(word).lower().startswith("fail") for word in stated):
                failed.append(str(_find_path(test, "name"))[:60])
    return failed


def _load_json(text: str) -> dict[str, Any]:
    """Parse the one JSON object of a text; there may be lines of warnings before and after it.

    :raises ValueError: there is none, or there are several.
    """
    begin = re.search(r"^\s*\{", text, re.MULTILINE)
    if begin is None:
        raise ValueError("no JSON object")
    try:
        data, end = json.JSONDecoder().raw_decode(text, begin.end() - 1)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if re.search(r"^\s*\{", text[end:], re.MULTILINE):
        raise ValueError("more than one JSON object")
    return dict(data)


def _find_path(value: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise ValueError(f"no {key}")
        value = value[key]
    return value


def _find_number(pattern: str, text: str) -> float:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ValueError("no such line as it prints")
    return _expect_positive(float(_expect_number(match[1])))


def _expect_number(text: str) -> str:
    if not re.fullmatch(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text, re.ASCII):
        raise ValueError(f"{text[:20]!a} is no number")
    return text


def _expect_positive(value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{ascii(value)[:20]} is no number above 0")
    return float(value)


def _read_whole(text: Any) -> int:
    if isinstance(text, bool) or not re.fullmatch(r"\d{1,12}", str(text), re.ASCII):
        raise ValueError(f"{ascii(text)[:20]} is no whole number")
    return int(text)
