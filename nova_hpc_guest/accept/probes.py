# SPDX-License-Identifier: Apache-2.0
"""The probes and the tools that make them, as tables.

A word in braces is filled in for each run. A missing tool leaves its probes out; the table names
its package in Debian if Debian has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from . import readings

QUICK: Final = "quick"
FULL: Final = "full"
#: The tier of probes of the user, which belong to every measurement.
OWN: Final = "own"
#: The tier of runs over all members of a cluster.
CLUSTER: Final = "cluster"
#: A probe between two members that the tier ``cluster`` has as well.
_OF_PAIRS: Final = "ib_bw"
#: Bytes that a measurement over the network sends.
_NET_BYTES: Final = "250M"
_LAMMPS: Final = (
    "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 20 0 20 0 20\n"
    "create_box 1 box\ncreate_atoms 1 box\nmass 1 1.0\nvelocity all create 1.44 87287 loop geom\n"
    "pair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\nneighbor 0.3 bin\n"
    "neigh_modify delay 0 every 20 check no\nfix 1 all nve\nthermo 100\nrun 60\n"
)
_HPCC: Final = (
    "HPLinpack benchmark input file\nnova-hpc\nHPL.out\n8\n1\n{hpl}\n1\n80\n0\n1\n1\n{ranks}\n"
    "16.0\n1\n2\n1\n4\n1\n2\n1\n1\n1\n1\n1\n1\n2\n64\n0\n0\n1\n8\n#\n0\n{hpl}\n0\n80\n"
)


class Tool(NamedTuple):
    """A program that measures: its name, its package, and how it prints its version."""

    name: str
    #: The package of Debian that has it; "" if it comes from the maker of the device.
    package: str
    #: Arguments that make it print its version; () if it cannot.
    version: tuple[str, ...] = ()
    #: Pattern of the version in that output.
    pattern: str = r"(\d+\.\d+(?:\.\d+)?)"
    #: Tested versions, by their beginnings; () if none was tested, only its documentation read.
    tried: tuple[str, ...] = ()


class Probe(NamedTuple):
    """One measurement: its unit, its floor, its tool with arguments, and its output's reader."""

    name: str
    says: str
    unit: str
    #: More is better.
    higher: bool
    #: A machine below this part of its baseline is slow.
    floor: float
    tool: str
    words: tuple[str, ...]
    read: Callable[[str, str, float], float]
    tier: str = QUICK
    #: ``one``: a single CPU, ``all``: every CPU that may be used.
    cpus: str = "one"
    #: Seconds; a tool that takes longer is ended, and that is a result.
    limit: float = 20.0
    #: The amount of work, in the unit of its value times seconds, or as a count. The best value of
    #: a run that reached its limit follows from it. 0 if unknown.
    work: float = 0.0
    #: Another probe whose run also gives this value.
    of: str | None = None
    #: The server that runs beside it if no peer is named.
    server: tuple[str, ...] = ()
    #: Needs: ``dir`` a directory to write in, ``gpu``, ``gpus`` two of them, ``rdma``, ``cells``
    #: two NUMA nodes, ``peer`` another machine, ``hosts`` a set of machines, ``topology`` NCCL's
    #: installed file, ``rights`` of root, ``scratch`` files of its own.
    needs: tuple[str, ...] = ()
    #: Files that its directory has to have.
    files: tuple[tuple[str, str], ...] = ()
    #: The file in that directory that has the result.
    result: str | None = None
    #: The setting that makes the machine its own baseline; None without one.
    alone: str | None = None
    #: The floor for that; None for :attr:`floor`.
    alone_floor: float | None = None
    #: Rounds at most; None for as many as a decision takes.
    most: int | None = None
    #: Tests of NVIDIA's requirements for AI clouds that this probe covers.
    ids: tuple[str, ...] = ()


TOOLS: Final = (
    Tool("sysbench", "sysbench", ("--version",), tried=("1.0.20",)),
    Tool("cyclictest", "rt-tests", ("--help",), r"cyclictest V (\d+\.\d+)", ("2.40", "2.5", "2.6")),
    Tool("oslat", "rt-tests", ("--version",), r"oslat V (\d+\.\d+)", ("2.40",)),
    Tool("iperf3", "iperf3", ("--version",), r"iperf (\d+\.\d+)", ("3.12",)),
    Tool("fio", "fio", ("--version",), r"fio-(\d+\.\d+)", ("3.33",)),
    Tool("numactl", "numactl"),
    Tool("mpirun", "openmpi-bin", ("--version",), r"\) (\d+\.\d+\.\d+)", ("4.1.4",)),
    Tool("mpi4py", "python3-mpi4py"),
    Tool("blas", "libopenblas0"),
    Tool("python3", "python3"),
    Tool("hpcc", "hpcc", tried=()),
    Tool("lmp", "lammps", ("-h",), r"Simulator - (\d+ \w+ \d{4})", ("29 Sep 2021",)),
    Tool("ib_write_bw", "perftest", ("--version",), r"Version: (\d+\.\d+)"),
    Tool("ib_write_lat", "perftest", ("--version",), r"Version: (\d+\.\d+)"),
    Tool("nvbandwidth", "", ("--version",), r"[vV]ersion:? v?(\d+\.\d+)", ("0.8",)),
    Tool("all_reduce_perf", ""),
    Tool("dcgmi", "", ("--version",), r"version: (\d+\.\d+\.\d+)"),
)

_SYSBENCH_MEMORY: Final = (
    *("sysbench", "memory", "--time=0", "--memory-block-size={block}M", "--memory-oper=read"),
)
_EVENTS: Final = 1200.0
_MPI: Final = ("mpirun", "--quiet", "-np", "2")
#: The ring is the algorithm of which each member sends the same amount over each of its links.
_ALL_REDUCE: Final = (
    *("mpirun", "--quiet", "-np", "{members}", "-H", "{hosts}", "{network}", "{partition}"),
    *("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm"),
    *("4", "{mpi_python}", "-c", "{all_reduce}", "16777216"),
)
#: A tree may exceed the rate of the links between two members (nccl-tests' issue 169).
_NCCL_ALL: Final = (
    *("mpirun", "--quiet", "-np", "{members}", "-H", "{hosts}", "{network}", "{partition}"),
    *("-x", "NCCL_ALGO=Ring"),
)
_NCCL_TEST: Final = ("all_reduce_perf", "-b", "256M", "-e", "256M", "-n", "20", "-g", "{gpus}")
_HPCC_RUN: Final = {
    "tool": "hpcc",
    "words": ("mpirun", "--quiet", "-np", "{ranks}", "hpcc"),
    "tier": FULL,
    "cpus": "all",
    "limit": 900.0,
    "needs": ("scratch",),
    "files": (("hpccinf.txt", _HPCC),),
    "result": "hpccoutf.txt",
    "most": 3,
}
_OF_HPCC: Final = {"tool": "hpcc", "words": (), "tier": FULL, "of": "hpl", "most": 3}

PROBES: Final = (
    Probe(
        *("cpu_one", "one CPU", "events/s", True, 0.95, "sysbench"),
        words=("sysbench", "cpu", "--time=0", "--events={events}", "run"),
        read=readings.read_sysbench_cpu,
        work=_EVENTS,
        alone="cpu=other",
        ids=("BM01-02",),
    ),
    Probe(
        *("cpu_all", "all CPUs at once", "events/s", True, 0.95, "sysbench"),
        words=(
            *("sysbench", "cpu", "--time=0", "--threads={threads}", "--events={all_events}", "run"),
        ),
        read=readings.read_sysbench_cpu,
        cpus="all",
        work=_EVENTS,
        alone="cpus=sum",
        # Cores run slower together than one by itself, and threads of one core share it.
        alone_floor=0.60,
        ids=("BM01-02",),
    ),
    Probe(
        *("mem_stream", "reading memory in order", "MiB/s", True, 0.90, "sysbench"),
        words=(*_SYSBENCH_MEMORY, "--memory-total-size={mib}M", "run"),
        read=readings.read_sysbench_memory,
        work=6144.0,
        alone="pages=large",
        ids=("BM01-02",),
    ),
    Probe(
        *("mem_random", "reading memory anywhere", "MiB/s", True, 0.90, "sysbench"),
        words=(
            *_SYSBENCH_MEMORY,
            *("--memory-access-mode=rnd", "--memory-total-size={mib}M", "run"),
        ),
        read=readings.read_sysbench_memory,
        work=128.0,
    ),
    Probe(
        *("mem_near", "memory of the NUMA node of the CPU", "MiB/s", True, 0.90, "sysbench"),
        words=(
            *("numactl", "--cpunodebind={cell}", "--membind={memory_cell}"),
            *_SYSBENCH_MEMORY,
            *("--memory-total-size={mib}M", "run"),
        ),
        read=readings.read_sysbench_memory,
        work=3072.0,
        needs=("numactl", "cells"),
        alone="cell=other",
    ),
    Probe(
        *("blas", "the BLAS that programs get", "GFLOP/s", True, 0.90, "blas"),
        words=("{python}", "-I", "-S", "-c", "{dgemm}", "{library}", "{size}"),
        read=readings.read_dgemm,
        work=1.57,
        alone="blas=default",
        ids=("BM01-02",),
    ),
    Probe(
        *("timer_p99", "how late a timer wakes (99 of 100)", "us", False, 0.33, "cyclictest"),
        words=(
            *("cyclictest", "-q", "--policy=other", "-a", "{cpu}", "-t", "1", "-i", "250"),
            *("-l", "1200", "-h", str(readings.HISTOGRAM_US), "--json={json}"),
        ),
        read=readings.read_cyclictest,
        work=1200.0,
        needs=("rights",),
    ),
    Probe(
        *("clock", "reading the time", "ns", False, 0.50, "python3"),
        words=("{python}", "-I", "-S", "-c", "{clock_program}", "{clock}"),
        read=readings.read_clock,
        work=36_000.0,
        alone="clock=coarse",
    ),
    Probe(
        *("mpi_lat", "MPI between two ranks here", "us", False, 0.67, "mpirun"),
        words=(*_MPI, "{mpi_python}", "-m", "mpi4py.bench", "ringtest", "-n", "8", "-l", "3000"),
        read=readings.read_ring,
        work=3000.0,
        cpus="all",
        needs=("mpi4py",),
        alone="btl=shared",
        ids=("VMAAS14-01",),
    ),
    Probe(
        *("net_bw", "TCP, one stream", "Mbit/s", True, 0.90, "iperf3"),
        words=(
            *("iperf3", "-c", "{peer}", "-p", "{port}", "-n", _NET_BYTES, "-P", "{streams}", "-J"),
        ),
        read=readings.read_iperf3_rate,
        work=2097.0,
        cpus="all",
        server=("iperf3", "-s", "-p", "{port}", "-B", "127.0.0.1"),
        ids=("VMAAS14-01",),
    ),
    Probe(
        *("net_rtt", "TCP, round trip under load", "us", False, 0.50, "iperf3"),
        words=(),
        read=readings.read_iperf3_delay,
        of="net_bw",
    ),
    Probe(
        *("disk_lat", "reading 4 KiB of the disk", "us", False, 0.67, "fio"),
        words=(
            *("fio", "--name=nova-hpc", "--filename={file}", "--size=64M", "--rw=randread"),
            *("--bs=4k", "--direct=1", "--ioengine=psync", "--number_ios=1000"),
            *("--randrepeat=0", "--output-format=json"),
        ),
        read=readings.read_fio,
        work=1000.0,
        needs=("dir",),
        ids=("HSS02-01",),
    ),
    Probe(
        *("oslat", "longest time taken from a CPU", "us", False, 0.33, "oslat"),
        words=("oslat", "-q", "-D", "10", "-c", "{cpu_list}", "--json={json}"),
        read=readings.read_oslat,
        work=1.0,
        tier=FULL,
        cpus="all",
        limit=60.0,
        needs=("rights",),
        most=6,
    ),
    Probe(
        *("lammps_lj", "LAMMPS, Lennard-Jones melt", "steps/s", True, 0.95, "lmp"),
        words=("{lammps}", "-in", "{scratch}/lj.in", "-log", "none"),
        read=readings.read_lammps,
        work=60.0,
        tier=FULL,
        limit=120.0,
        needs=("scratch",),
        files=(("lj.in", _LAMMPS),),
        ids=("BM01-02",),
    ),
    Probe(
        *("hpl", "HPCC: HPL", "GFLOP/s", True, 0.95),
        read=readings.read_hpcc("HPL_Tflops", 1000),
        **_HPCC_RUN,  # type: ignore[arg-type]
    ),
    Probe(
        *("stream_triad", "HPCC: STREAM triad, all ranks", "GB/s", True, 0.90),
        read=readings.read_hpcc("StarSTREAM_Triad", 1),
        **_OF_HPCC,  # type: ignore[arg-type]
    ),
    Probe(
        *("random_access", "HPCC: RandomAccess, one rank", "GUP/s", True, 0.90),
        read=readings.read_hpcc("SingleRandomAccess_GUPs", 1),
        **_OF_HPCC,  # type: ignore[arg-type]
    ),
    Probe(
        *("fft", "HPCC: FFT, one rank", "GFLOP/s", True, 0.95),
        read=readings.read_hpcc("SingleFFT_Gflops", 1),
        **_OF_HPCC,  # type: ignore[arg-type]
    ),
    Probe(
        *("pingpong", "HPCC: average ping-pong", "us", False, 0.67),
        read=readings.read_hpcc("AvgPingPongLatency_usec", 1),
        **_OF_HPCC,  # type: ignore[arg-type]
    ),
    Probe(
        *("ib_bw", "RDMA writes, host memory", "Gbit/s", True, 0.90, "ib_write_bw"),
        words=(
            *("ib_write_bw", "{rdma}", "-F", "-s", "1048576", "-n", "2000"),
            *("--report_gbits", "-p", "{port}", "{peer}"),
        ),
        read=readings.read_perftest_rate,
        work=16.8,
        cpus="all",
        server=("ib_write_bw", "{rdma}", "-F", "-s", "1048576", "-n", "2000", "-p", "{port}"),
        needs=("rdma",),
        alone="ceiling=rdma",
        ids=("VMAAS14-01",),
    ),
    Probe(
        *("ib_lat", "RDMA write of 2 bytes", "us", False, 0.67, "ib_write_lat"),
        words=("ib_write_lat", "{rdma}", "-F", "-n", "10000", "-p", "{port}", "{peer}"),
        read=readings.read_perftest_delay,
        work=10_000.0,
        server=("ib_write_lat", "{rdma}", "-F", "-n", "10000", "-p", "{port}"),
        needs=("rdma",),
    ),
    Probe(
        *("h2d", "host to GPU", "GB/s", True, 0.90, "nvbandwidth"),
        words=("nvbandwidth", "-t", "host_to_device_memcpy_ce"),
        read=readings.read_nvbandwidth,
        work=8.0,
        cpus="all",
        limit=60.0,
        needs=("gpu",),
        alone="ceiling=pcie",
        alone_floor=0.70,
        ids=("SDN26-01",),
    ),
    Probe(
        *("d2h", "GPU to host", "GB/s", True, 0.90, "nvbandwidth"),
        words=("nvbandwidth", "-t", "device_to_host_memcpy_ce"),
        read=readings.read_nvbandwidth,
        work=8.0,
        cpus="all",
        limit=60.0,
        needs=("gpu",),
        alone="ceiling=pcie",
        alone_floor=0.70,
        ids=("SDN26-01",),
    ),
    Probe(
        *("h2d_near", "GPU from the NUMA node it was promised at", "GB/s", True, 0.95),
        tool="nvbandwidth",
        words=(
            *("numactl", "--cpunodebind={gpu_cell}", "--membind={gpu_memory_cell}"),
            *("nvbandwidth", "-t", "host_to_device_memcpy_ce"),
        ),
        read=readings.read_nvbandwidth,
        work=8.0,
        cpus="all",
        limit=60.0,
        needs=("numactl", "gpu", "cells", "gpu_cell"),
        alone="cell=other",
        ids=("SDN26-01",),
    ),
    Probe(
        *("nccl_node", "all-reduce of this machine's GPUs", "GB/s", True, 0.90),
        tool="all_reduce_perf",
        words=("all_reduce_perf", "-b", "256M", "-e", "256M", "-n", "20", "-g", "{gpus}"),
        read=readings.read_collective,
        work=5.4,
        cpus="all",
        limit=120.0,
        # A single GPU sends nothing: nccl-tests prints a bandwidth of 0.
        needs=("gpu", "gpus"),
        ids=("VMAAS13-01",),
    ),
    Probe(
        *("nccl_pair", "all-reduce with the peer's GPU", "GB/s", True, 0.90),
        tool="all_reduce_perf",
        words=(
            *("mpirun", "--quiet", "-np", "2", "-H", "localhost,{peer}", "-x", "NCCL_DEBUG=INFO"),
            "{partition}",
            *("all_reduce_perf", "-b", "256M", "-e", "256M", "-n", "20", "-g", "1"),
        ),
        read=readings.read_collective,
        work=5.4,
        tier=FULL,
        cpus="all",
        limit=180.0,
        needs=("gpu", "peer", "mpirun"),
        ids=("VMAAS13-01",),
    ),
    Probe(
        *("link_bw", "TCP both ways, the slower one", "Mbit/s", True, 0.80, "iperf3"),
        words=("iperf3", "-c", "{peer}", "-p", "{port}", "-t", "1", "--bidir", "-J"),
        read=readings.read_iperf3_ways,
        tier=CLUSTER,
        cpus="all",
        server=("iperf3", "-s", "-p", "{port}", "-B", "127.0.0.1"),
        ids=("VMAAS14-01",),
    ),
    Probe(
        *("all_reduce", "all-reduce over all members", "GB/s", True, 0.80, "mpirun"),
        words=_ALL_REDUCE,
        read=readings.read_bus_bandwidth,
        tier=CLUSTER,
        cpus="all",
        limit=90.0,
        needs=("mpi4py", "hosts"),
        ids=("VMAAS14-01",),
    ),
    Probe(
        *("nccl_all", "all-reduce over all members' GPUs", "GB/s", True, 0.80),
        tool="all_reduce_perf",
        words=(*_NCCL_ALL, *_NCCL_TEST),
        read=readings.read_collective,
        tier=CLUSTER,
        cpus="all",
        limit=180.0,
        needs=("gpu", "mpirun", "hosts"),
        ids=("VMAAS13-01",),
    ),
    Probe(
        *("nccl_topo", "the same with the promised topology file", "GB/s", True, 0.95),
        tool="all_reduce_perf",
        words=(*_NCCL_ALL, "-x", "NCCL_TOPO_FILE={topology}", *_NCCL_TEST),
        read=readings.read_collective,
        tier=CLUSTER,
        cpus="all",
        limit=180.0,
        needs=("gpu", "mpirun", "topology", "hosts"),
        ids=("VMAAS13-01",),
    ),
)

TOOL_OF: Final = {tool.name: tool for tool in TOOLS}
PROBE_OF: Final = {probe.name: probe for probe in PROBES}
#: Tests that pass or fail, without a number.
DIAGNOSIS: Final = ("dcgmi", "diag", "-r", "1", "-j")
DIAGNOSIS_LIMIT: Final = 300.0


def list_probes(
    tier: str, only: tuple[str, ...] = (), own: tuple[Probe, ...] = ()
) -> tuple[Probe, ...]:
    """Return the probes of a tier and the user's own; only the named ones if *only* names some."""
    tiers = (QUICK, FULL, OWN) if tier == FULL else (tier, OWN)
    return tuple(
        probe
        for probe in (*PROBES, *own)
        if (probe.tier in tiers or (tier == CLUSTER and probe.name == _OF_PAIRS))
        and (not only or probe.name in only)
    )
