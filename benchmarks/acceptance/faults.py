# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.acceptance.faults FAULT WORDS...``: run WORDS with one fault.

The fault ends with WORDS. It needs root and control groups of version 1. Never run it on a machine
that other people use.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_guest.accept.gpus import list_gpu_users

#: Variable in the environment of both places, with the folder of a trial's files.
FOLDER: Final = "NOVA_HPC_TRIAL"
#: Network namespaces of both places, of the router between them and the peer, and of the peer.
HERE, ROUTER, PEER = "nhtHere", "nhtRouter", "nhtPeer"
PEER_ADDRESS: Final = "10.77.2.1"
_PR_SET_THP_DISABLE: Final = 41
_GROUPS: Final = Path("/sys/fs/cgroup")
#: Seconds until a process must use a GPU.
_START: Final = 20.0
_LARGE: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_REFERENCE: Final = "/usr/lib/x86_64-linux-gnu/blas"

Making = Callable[[dict[str, str]], contextlib.AbstractContextManager[None]]


@attrs.frozen
class Fault:
    """A fault that can be made.

    :ivar right: the causes that may be named; empty if none may.
    :ivar only: the measured probes: those that the fault slows, and those that its rules read.
    :ivar make: a context that makes the fault, and changes the environment of the command.
    :ivar both: environment of both places.
    :ivar needs: files that must exist.
    """

    says: str
    right: frozenset[str]
    only: tuple[str, ...]
    make: Making
    both: Mapping[str, str] = attrs.Factory(dict)
    needs: tuple[str, ...] = ()
    #: Whether none of our rules covers the fault.
    unknown: bool = False


@contextlib.contextmanager
def _nothing(_: dict[str, str]) -> Iterator[None]:
    yield


def _with_environment(**more: str) -> Making:
    @contextlib.contextmanager
    def make(environment: dict[str, str]) -> Iterator[None]:
        environment.update(more)
        yield

    return make


def _with_hogs(*cpus: int) -> Making:
    @contextlib.contextmanager
    def make(_: dict[str, str]) -> Iterator[None]:
        words = ["sysbench", "cpu", "--time=600", "run"]
        hogs = [
            subprocess.Popen(
                ["taskset", "-c", str(_cpu_at(cpu)), *words], stdout=subprocess.DEVNULL
            )
            for cpu in cpus
        ]
        try:
            yield
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()

    return make


def _cpu_at(place: int) -> int:
    return sorted(os.sched_getaffinity(0))[place]


@contextlib.contextmanager
def _restricted(_: dict[str, str]) -> Iterator[None]:
    os.sched_setaffinity(0, {_cpu_at(-1)})
    yield


@contextlib.contextmanager
def _without_large_pages(_: dict[str, str]) -> Iterator[None]:
    if ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_THP_DISABLE) failed")
    yield


@contextlib.contextmanager
def _without_advice(environment: dict[str, str]) -> Iterator[None]:
    environment.pop("GLIBC_TUNABLES", None)
    yield


def _with_queue(namespace: str, device: str) -> Making:
    @contextlib.contextmanager
    def make(_: dict[str, str]) -> Iterator[None]:
        words = ("qdisc", "add", "dev", device, "root", "tbf", "rate", "3gbit")
        in_namespace(namespace, "tc", *words, "burst", "1m", "latency", "20ms")
        try:
            yield
        finally:
            in_namespace(namespace, "tc", "qdisc", "del", "dev", device, "root")

    return make


@contextlib.contextmanager
def _group(controller: str, **values: str) -> Iterator[Path]:
    folder = _GROUPS / controller / f"nova-hpc-trial-{os.getpid()}"
    folder.mkdir()
    try:
        for name, value in values.items():
            (folder / name.replace("__", ".")).write_text(value)
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        yield folder
    finally:
        (folder.parent / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _with_quota(_: dict[str, str]) -> Iterator[None]:
    values = {"cpu__cfs_period_us": "100000", "cpu__cfs_quota_us": "60000"}
    with _group("cpu", **values):
        yield


@contextlib.contextmanager
def _with_disk_limit(_: dict[str, str]) -> Iterator[None]:
    device = Path(os.environ[FOLDER]).stat().st_dev
    limit = f"{os.major(device)}:{os.minor(device)} 500"
    with _group("blkio", blkio__throttle__read_iops_device=limit):
        yield


@contextlib.contextmanager
def _frozen(_: dict[str, str]) -> Iterator[None]:
    """Freeze the command for 40 ms of each 80, by a process outside of its group."""
    with _group("freezer") as folder:
        text = (
            "import time, sys\nstate = sys.argv[1]\ntry:\n    while True:\n"
            "        for word in ('FROZEN', 'THAWED'):\n"
            "            open(state, 'w').write(word)\n            time.sleep(0.04)\n"
            "finally:\n    open(state, 'w').write('THAWED')\n"
        )
        # The process starts in the group of this one, and leaves it before it freezes anything.
        outside = f"open({str(folder.parent / 'cgroup.procs')!r}, 'w').write('0')\n"
        state = str(folder / "freezer.state")
        helper = subprocess.Popen([sys.executable, "-c", outside + text, state])
        try:
            yield
        finally:
            helper.kill()
            helper.wait()
            Path(state).write_text("THAWED")


def _with_slow_calls(which: str) -> Making:
    @contextlib.contextmanager
    def make(environment: dict[str, str]) -> Iterator[None]:
        environment["LD_PRELOAD"] = f"{environment[FOLDER]}/slow_calls.so"
        environment["NOVA_HPC_SLOW"] = which
        yield

    return make


@contextlib.contextmanager
def _with_gpu_hog(_: dict[str, str]) -> Iterator[None]:
    """Start another process that copies to the GPU; wait until the driver lists it."""
    words = ["nvbandwidth", "-t", "host_to_device_memcpy_ce", "-i", "1000000"]
    hog = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _START
        while not list_gpu_users(os.environ) and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(1)
        yield
    finally:
        hog.kill()
        hog.wait()


def in_namespace(namespace: str, *words: str) -> None:
    """Run a program in a network namespace.

    :raises subprocess.CalledProcessError: it failed.
    """
    # ``ip netns exec`` would hide the control groups.
    subprocess.run(["nsenter", f"--net=/run/netns/{namespace}", *words], check=True)


_CPU: Final = ("cpu_one", "cpu_all", "clock")
_MEMORY: Final = ("cpu_one", "cpu_all", "mem_stream", "mem_random")
_NET: Final = ("cpu_one", "net_bw", "net_rtt")
NOTHING: Final = "none"

FAULTS: Final[Mapping[str, Fault]] = {
    NOTHING: Fault("nothing", frozenset(), (), _nothing),
    "busy": Fault("a hog on the probe's CPU", frozenset({"busy-cpu"}), _CPU, _with_hogs(-1)),
    "busy-other": Fault("a hog on the other CPU", frozenset({"busy-cpu"}), _CPU, _with_hogs(0)),
    "restricted": Fault(
        "one CPU of two (affinity)", frozenset({"cpus-restricted"}), _CPU, _restricted
    ),
    "quota": Fault("a quota of 60 % of a CPU", frozenset({"cpu-quota"}), _CPU, _with_quota),
    "frozen": Fault("frozen 40 ms of each 80", frozenset({"stopped"}), _CPU, _frozen),
    "pages-off": Fault(
        "large pages off by prctl",
        *(frozenset({"pages-off"}), _MEMORY, _without_large_pages),
        both=_LARGE,
    ),
    "pages-small": Fault(
        "no advice for large pages",
        *(frozenset({"pages-small"}), _MEMORY, _without_advice),
        both=_LARGE,
    ),
    "blas-reference": Fault(
        "the reference BLAS",
        *(frozenset({"blas-reference"}), ("cpu_one", "blas")),
        _with_environment(LD_LIBRARY_PATH=_REFERENCE),
        needs=(f"{_REFERENCE}/libblas.so.3",),
    ),
    "blas-kernel": Fault(
        "OPENBLAS_CORETYPE=Prescott",
        *(frozenset({"blas-kernel"}), ("cpu_one", "blas")),
        _with_environment(OPENBLAS_CORETYPE="Prescott"),
    ),
    "mpi-tcp": Fault(
        "MPI over TCP on one machine",
        *(frozenset({"mpi-over-tcp"}), ("cpu_one", "mpi_lat")),
        _with_environment(OMPI_MCA_btl="tcp,self"),
    ),
    "shaper": Fault(
        "tbf on the machine's own interface",
        *(frozenset({"shaper-here"}), _NET, _with_queue(HERE, "va")),
    ),
    "path": Fault(
        "tbf on a router that cannot be seen",
        *(frozenset({"path-limit"}), _NET, _with_queue(ROUTER, "mb")),
    ),
    "disk": Fault(
        "500 reads a second of a control group",
        *(frozenset({"disk-limit"}), ("cpu_one", "disk_lat"), _with_disk_limit),
    ),
    "gpu-busy": Fault(
        "another process copies to the GPU",
        *(frozenset({"gpu-busy"}), ("cpu_one", "h2d"), _with_gpu_hog),
        needs=("/proc/driver/nvidia/version",),
    ),
    "slow-read": Fault(
        "300 us in pread (LD_PRELOAD)",
        *(frozenset(), ("cpu_one", "disk_lat"), _with_slow_calls("read")),
        unknown=True,
    ),
    "slow-clock": Fault(
        "a slow clock_gettime (LD_PRELOAD)",
        *(frozenset(), ("cpu_one", "clock"), _with_slow_calls("clock")),
        unknown=True,
    ),
}


def main(words: list[str]) -> int:
    """Run WORDS with the fault, and return their exit status."""
    name, *command = words
    fault = FAULTS[name]
    environment = dict(os.environ)
    child: subprocess.Popen[bytes] | None = None
    ended = threading.Event()

    def end(number: int, _: object) -> None:
        ended.set()
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    with fault.make(environment):
        if ended.is_set():
            return 1
        child = subprocess.Popen(command, env=environment)
        return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
