# SPDX-License-Identifier: Apache-2.0
"""What tools print, read: pure functions from text to numbers.

A reader takes the tool's output, the file it wrote, and how much work it was given; it gives
one value, or raises ValueError where the text is not what the tool prints.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

_NUMBER: Final = r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"


def read_sysbench_cpu(text: str, _: str, work: float) -> float:
    """Events a second, from the time that a fixed number of events took."""
    return work / _find_number(r"total time:\s+" + _NUMBER + "s", text)


def read_sysbench_memory(text: str, _: str, __: float) -> float:
    """MiB/s."""
    return _find_number(r"\(" + _NUMBER + r" MiB/sec\)", text)


def read_cyclictest(_: str, document: str, work: float) -> float:
    """The 99th percentile of how late the timer woke, in microseconds."""
    thread = _find_path(_load_json(document), "thread", "0")
    histogram = _find_path(thread, "histogram")
    if not isinstance(histogram, dict) or not histogram:
        raise ValueError("no histogram")
    counts = sorted(((_read_whole(late), _read_whole(count)) for late, count in histogram.items()))
    total = sum(count for _, count in counts)
    left = 0.01 * total
    if total <= 0:
        raise ValueError("an empty histogram")
    for late, count in reversed(counts):
        left -= count
        if left <= 0:
            return float(max(late, 1))
    return float(max(counts[0][0], 1))


def read_oslat(_: str, document: str, __: float) -> float:
    """The longest time that was taken from any of the CPUs, in microseconds."""
    threads = _find_path(_load_json(document), "thread")
    if not isinstance(threads, dict) or not threads:
        raise ValueError("no threads")
    return max(_expect_positive(_find_path(thread, "max")) for thread in threads.values())


def read_iperf3_rate(text: str, _: str, __: float) -> float:
    """Mbit/s that arrived."""
    end = _find_iperf3_end(text)
    return _expect_positive(_find_path(end, "sum_received", "bits_per_second")) / 1e6


def read_iperf3_delay(text: str, _: str, __: float) -> float:
    """The mean round trip that TCP saw, in microseconds."""
    streams = _find_path(_find_iperf3_end(text), "streams")
    if not isinstance(streams, list) or not streams:
        raise ValueError("no streams")
    return _expect_positive(_find_path(streams[0], "sender", "mean_rtt"))


def _find_iperf3_end(text: str) -> Any:
    data = _load_json(text)
    if "error" in data:
        # It ends with a status of success all the same.
        raise ValueError(f"it says {ascii(data['error'])[:100]}")
    return _find_path(data, "end")


def read_fio(text: str, _: str, __: float) -> float:
    """The mean time of a read, in microseconds."""
    jobs = _find_path(_load_json(text[text.find("{") :]), "jobs")
    if not isinstance(jobs, list) or not jobs:
        raise ValueError("no jobs")
    if _find_path(jobs[0], "error"):
        raise ValueError("the job met an error")
    return _expect_positive(_find_path(jobs[0], "read", "clat_ns", "mean")) / 1000


def read_ring(text: str, _: str, __: float) -> float:
    """mpi4py's ring of two, microseconds a round."""
    match = re.search(r"for (\d+) loops = " + _NUMBER + " seconds", text)
    if match is None or not int(match[1]):
        raise ValueError("no time of the ring")
    return _expect_positive(float(match[2]) / int(match[1]) * 1e6)


def read_dgemm(text: str, _: str, __: float) -> float:
    """GFLOP/s, as the child that calls the library printed them."""
    return _expect_positive(_find_path(_load_json(text), "gflops"))


def read_clock(text: str, _: str, __: float) -> float:
    """Nanoseconds for one reading of the clock."""
    return _expect_positive(_find_path(_load_json(text), "nanoseconds"))


def read_lammps(text: str, _: str, __: float) -> float:
    """Time steps a second."""
    return _find_number(r"([\d.]+) timesteps/s", text)


def read_hpcc(name: str, scale: float) -> Callable[[str, str, float], float]:
    """A reader of one line of HPCC's summary."""

    def read_summary(text: str, _: str, __: float) -> float:
        if "Success=1" not in text:
            raise ValueError("HPCC did not say Success=1")
        return _find_number("^" + re.escape(name) + "=" + _NUMBER, text) * scale

    return read_summary


def read_perftest_rate(text: str, _: str, __: float) -> float:
    """Gbit/s on average, as ``--report_gbits`` prints it."""
    return _find_column(text, r"BW average\[Gb/sec\]", 3)


def read_perftest_delay(text: str, _: str, __: float) -> float:
    """The typical latency of a write, in microseconds."""
    return _find_column(text, r"t_typical\[usec\]", 4)


def read_nvbandwidth(text: str, _: str, __: float) -> float:
    """The slowest of the GPUs, in GB/s, from the matrix of the first test."""
    values = read_bandwidth_matrix(text)
    if not values:
        raise ValueError("no matrix")
    return min(values)


def read_bandwidth_matrix(text: str) -> list[float]:
    """The numbers of nvbandwidth's first matrix, without what does not apply."""
    values: list[float] = []
    within = False
    for line in text.splitlines():
        if re.match(r"\s*memcpy .* bandwidth \(GB/s\)", line):
            within = True
        elif within and re.match(r"\s*\d+\s+(?:[\d.]+|N/A)", line):
            cells = line.split()
            if all(re.fullmatch(r"\d+", cell) for cell in cells):
                continue  # the heading: numbers of the columns
            numbers = [cell for cell in cells[1:] if cell != "N/A"]
            values.extend(_expect_positive(float(_expect_number(cell))) for cell in numbers)
        elif within and line.startswith("SUM"):
            break
    return values


def read_collective(text: str, _: str, __: float) -> float:
    """Bus bandwidth of nccl-tests and rccl-tests, out of place, at the largest size, in GB/s."""
    rows = [
        fields
        for fields in (line.split() for line in text.splitlines())
        if len(fields) >= 8 and fields[0].isdigit() and fields[1].isdigit()
    ]
    if not rows:
        raise ValueError("no row of a size")
    if re.search(r"^#\s*Out of bounds values\s*:\s*[1-9]", text, re.MULTILINE):
        raise ValueError("values that were reduced are wrong (out of bounds)")
    largest = max(rows, key=lambda fields: int(fields[0]))
    # size, count, type, redop, [root,] time, algbw, busbw, ...
    start = 5 if re.fullmatch(r"-?\d+", largest[4]) and "." not in largest[4] else 4
    if len(largest) < start + 3:
        raise ValueError("a row without bandwidths")
    return _expect_positive(float(_expect_number(largest[start + 2])))


def find_collective_words(text: str) -> tuple[str, ...]:
    """The ways that NCCL or RCCL took, from its log at level INFO."""
    words = []
    if re.search(r"via NET/IB/\d+(?:\(\d+\))?/GDRDMA|via NET/\S+/GDRDMA", text):
        words.append("gdrdma")
    if re.search(r"NET/IB\b", text):
        words.append("ib")
    if re.search(r"(?:Using network Socket|via NET/Socket)", text):
        words.append("socket")
    pairs = set(re.findall(r"via NET/IB/(\d+)", text))
    if pairs:
        words.append(f"rails={','.join(sorted(pairs))}")
    return tuple(words)


def read_failed_tests(text: str) -> list[str]:
    """Names of the tests of ``dcgmi diag -j`` that failed.

    :raises ValueError: it is no report of a diagnosis.
    """
    data = _load_json(text[text.find("{") :])
    report = data.get("DCGM Diagnostic", data.get("DCGM GPU Diagnostic", data))
    categories = report.get("test_categories") if isinstance(report, dict) else None
    if not isinstance(categories, list):
        raise ValueError("no test_categories")
    failed = []
    for category in categories:
        for test in _find_path(category, "tests"):
            results = _find_path(test, "results")
            summary = test.get("test_summary") or {}
            stated = [result.get("status") for result in results] + [summary.get("status")]
            if any(isinstance(word, str) and word.lower() == "fail" for word in stated):
                failed.append(str(_find_path(test, "name"))[:60])
    return failed


def _load_json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    return data


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


def _find_column(text: str, heading: str, column: int) -> float:
    """The column of the last row below perftest's heading."""
    match = re.search(heading, text)
    if match is None:
        raise ValueError("no heading of results")
    rows = [line.split() for line in text[match.end() :].splitlines()]
    rows = [fields for fields in rows if len(fields) > column and fields[0].isdigit()]
    if not rows:
        raise ValueError("no row below the heading")
    return _expect_positive(float(_expect_number(rows[-1][column])))


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
