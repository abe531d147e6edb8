# SPDX-License-Identifier: Apache-2.0
"""One round on this machine: runs each probe's tool once, and reads the kernel's counters.

A *setting* is a change that needs no rights (large pages, another CPU, shared memory), such as
``pages=large``: with it the same probe is a counter-experiment.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..document import GuestDocument
from ..files import Root
from ..install import TOPOLOGY
from . import facts as fact_reader
from . import readings
from .counters import Counters, read_counters, share_counters
from .facts import GuestFacts
from .fillings import fill_word, find_best_blas, find_default_port, load_program
from .gpus import GPU_USERS, count_gpus, find_gpu_cell, list_gpu_users
from .network import choose_network, is_ipv6, move_hosts, name_network
from .probes import DIAGNOSIS, DIAGNOSIS_LIMIT, OWN, PROBE_OF, PROBES, TOOL_OF, Probe
from .rdma_ports import expand_rdma_words, read_rdma_path, read_rdma_variables
from .sample import AcceptanceError, Reading, Sample
from .scratch import find_file_system, make_scratch_folder
from .toolbox import Toolbox, find_tools
from .tools import ToolRun, find_line, find_port, run_tool, start_helper, wait_for_port

_LARGE_PAGES: Final = "glibc.malloc.hugetlb=1"
#: Variables that choose another BLAS, or other kernels of it.
_OF_BLAS: Final = ("OPENBLAS_CORETYPE", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_DEBUG_CPU_TYPE")
_OPEN_MPI: Final = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
#: File systems in memory: reading them measures no disk.
_IN_MEMORY: Final = frozenset(("tmpfs", "ramfs", "devtmpfs", "rootfs"))
_WITH_PAGES: Final = ("mem_stream", "mem_random")
NO_IPV6: Final = "perftest reaches others by IPv4 only: name an IPv4 address, or such a --network"
_PER_SECOND: Final = {"us": 1e6, "ns": 1e9}
_HPL_SIZE: Final = 800
#: Matrices of the BLAS, and on a machine that is slow.
_MATRIX: Final = 640
_SMALL_MATRIX: Final = 256
#: MiB of memory that is read again and again, and on a machine that is slow.
_BLOCK: Final = 64
_SMALL_BLOCK: Final = 8
#: Scale of the work by a first look: events a second of one CPU -> part of the work. A third of
#: a second proves little if the CPU is emulated: two looks at the same machine differ by half. No
#: real CPU makes fewer than 600 events.
_TRIAL_EVENTS: Final = 60
_TRIAL_LIMIT: Final = 5.0
_SCALES: Final = ((600.0, 1.0), (200.0, 0.5), (75.0, 0.25), (30.0, 0.1), (0.0, 0.05))
_SPIN: Final = (
    "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True:\n    pass\n"
)


class MeasuringOptions(NamedTuple):
    """The caller's options for the probes."""

    #: Address of another machine that answers (``iperf3 -s`` and so on); None for this machine.
    peer: str | None = None
    #: Addresses of the machines over which one run goes; empty for none.
    hosts: tuple[str, ...] = ()
    #: Directory in which the disk is read; None for the first usable one.
    folder: str | None = None
    #: Part of the full work for probes of CPU and memory.
    scale: float = 1.0
    #: CPUs that this process may use are all that there are: a host is measured as its guest.
    within: bool = False
    #: Probes of the user.
    own: tuple[Probe, ...] = ()


class LocalMachine:
    """This machine, ready to be measured: it runs the tools of probes and reads the counters."""

    def __init__(
        self,
        root: Root,
        options: MeasuringOptions,
        promise: GuestDocument | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root
        self._options = options
        self._promise = promise
        self.scale = options.scale
        found = os.environ if environment is None else environment
        #: Tools print numbers with decimal points, whatever the user's language is.
        self._environment = {
            **{name: value for name, value in found.items() if not name.startswith("LC_")},
            "LC_ALL": "C",
            "LANGUAGE": "C",
        }
        self.toolbox: Toolbox = find_tools(self._environment)
        self._shapers = self.toolbox.list_shapers(self._environment)
        self.facts: GuestFacts = self._read_facts(self._environment)

    def _read_facts(self, environment: Mapping[str, str]) -> GuestFacts:
        facts = fact_reader.read_facts(self._root, environment, self._shapers)
        return facts._replace(online=facts.allowed) if self._options.within else facts

    def measure_round(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None = None
    ) -> Sample:
        """Run each probe once.

        :param settings: settings of the round, as ``{"pages": "large"}``.
        """
        settings = settings or {}
        values: dict[str, Reading] = {}
        missing: dict[str, str] = {}
        failed: dict[str, str] = {}
        blas = None
        wanted = {probe.name for probe in probes}
        for probe in (*PROBES, *self._options.own):
            followers = [other for other in probes if other.of == probe.name]
            if probe.of is not None or not (probe.name in wanted or followers):
                continue
            both = [*([probe] if probe.name in wanted else []), *followers]
            obstacle = self.find_obstacle(probe)
            if obstacle is not None:
                missing.update({one.name: obstacle for one in both})
                continue
            try:
                given, problem, library = self._run_probe(probe, both, settings)
            except _MissingRightError as error:
                missing.update({one.name: str(error) for one in both})
                continue
            values.update(given)
            blas = library or blas
            if problem is not None:
                failed.update({one.name: problem for one in both if one.name not in values})
        facts = self._read_facts(self._choose_environment(settings))._replace(blas=blas)
        return Sample(facts, values, missing, failed)

    def find_scale(self) -> float:
        """Choose the part of the probes' work that suits this machine: an emulated one is slow."""
        if not self.toolbox.has("sysbench"):
            return 1.0
        words = [*PROBE_OF["cpu_one"].words]
        command = [word.replace("{events}", str(_TRIAL_EVENTS)) for word in words]
        # The first run of a program on an emulated CPU is translated on its way.
        rate = max(self._run_trial(command) for _ in range(2))
        return next((scale for least, scale in _SCALES if rate >= least), _SCALES[-1][1])

    def _run_trial(self, command: Sequence[str]) -> float:
        """Return sysbench's events a second; 0.0 if it does not end, and the most if unreadable."""
        done = run_tool(command, self._environment, _TRIAL_LIMIT, self.facts.allowed[-1:])
        try:
            return readings.read_sysbench_cpu(done.output, "", _TRIAL_EVENTS)
        except ValueError:
            return 0.0 if done.at_limit else _SCALES[0][0]

    @contextlib.contextmanager
    def answer_probe(self, probe: Probe) -> Iterator[subprocess.Popen[bytes]]:
        """Run the server of another machine's probe; once it listens, the block begins.

        :raises AcceptanceError: it cannot be run here, or does not listen.
        """
        obstacle = self.find_obstacle(probe)
        if obstacle is not None:
            raise AcceptanceError(f"{probe.name} cannot be answered: {obstacle}")
        port = find_default_port(probe)
        fillings = {"port": str(port)}
        words = self._fill_words(probe.server, fillings)
        if "-B" in words:
            # The address of the loopback.
            at = words.index("-B")
            del words[at : at + 2]
        with start_helper(words, self._environment) as server:
            if not wait_for_port(port, server):
                raise AcceptanceError(f"{probe.tool} does not listen on port {port}")
            yield server

    def diagnose_gpus(self) -> tuple[list[str], str | None]:
        """Run NVIDIA's DCGM; return its failed tests, and why it did not run (None if it did)."""
        if not count_gpus(self.facts) or not self.toolbox.has("dcgmi"):
            return [], "no dcgmi, or no GPU"
        done = run_tool(DIAGNOSIS, self._environment, DIAGNOSIS_LIMIT)
        try:
            # The tool exits with a status of its own if a test failed.
            return readings.read_failed_tests(done.output), None
        except ValueError as error:
            return [], done.problem or f"dcgmi printed something else: {error}"

    def find_obstacle(self, probe: Probe, alone: bool = True) -> str | None:
        """Explain why a probe cannot be made here, as in ``no tool fio``; None if it can.

        :param alone: False if the hosts of a run over several machines will be named.
        """
        gpus = count_gpus(self.facts)
        if gpus < probe.needs.count("gpu") + probe.needs.count("gpus"):
            return "one GPU" if gpus else "no GPU"
        if "rdma" in probe.needs and isinstance(
            path := read_rdma_path(self._root, self._promise), str
        ):
            return path
        if "peer" in probe.needs and self._options.peer is None:
            return "no --peer"
        if "rdma" in probe.needs and is_ipv6(self._options.peer or ""):
            return NO_IPV6
        if "cells" in probe.needs and self.facts.nodes < 2:
            return "one NUMA node"
        if "gpu_cell" in probe.needs and find_gpu_cell(self._promise) is None:
            return "the cloud did not say near which NUMA node the GPUs are"
        # A missing program of the user is no obstacle: its run fails.
        for tool in (probe.tool, *probe.needs) if probe.tier != OWN else ():
            if tool in TOOL_OF and not self.toolbox.has(tool):
                package = TOOL_OF[tool].package
                where = f"Debian's package {package}" if package else "it comes with the device"
                return f"no tool {tool} ({where})"
        if "dir" in probe.needs and self._find_folder() is None:
            return "no directory on a disk to write in (--dir)"
        if "topology" in probe.needs and not Path(TOPOLOGY).exists():
            return f"no {TOPOLOGY} (nova-hpc-guest install)"
        if alone and "hosts" in probe.needs and not self._options.hosts:
            return "it runs over all members of a cluster: openstack hpc cluster accept"
        return None

    def _find_folder(self) -> str | None:
        # A folder of its own is made in it.
        places: tuple[str, ...] = ("/var/tmp", "/tmp", ".")  # nosec B108
        if self._options.folder:
            places = (self._options.folder,)
        for place in places:
            folder = os.path.abspath(place)  # noqa: PTH100
            if os.access(folder, os.W_OK | os.X_OK) and find_file_system(folder) not in _IN_MEMORY:
                return folder
        return None

    def _run_probe(
        self, probe: Probe, wanted: Sequence[Probe], settings: Mapping[str, str]
    ) -> tuple[dict[str, Reading], str | None, str | None]:
        """Run a probe's tool; return the readings of *wanted*, why it failed, the BLAS used."""
        try:
            with contextlib.ExitStack() as stack:
                return self._run_in_place(probe, wanted, settings, stack)
        except OSError as error:
            return {}, f"{probe.tool}: {error.strerror or error}", None

    def _run_in_place(
        self,
        probe: Probe,
        wanted: Sequence[Probe],
        settings: Mapping[str, str],
        stack: contextlib.ExitStack,
    ) -> tuple[dict[str, Reading], str | None, str | None]:
        cpus = self._choose_cpus(probe, settings)
        environment = self._choose_environment(settings)
        fillings = self._fill_in(probe, settings, cpus, stack)
        command = self._fill_words(probe.words, fillings)
        if probe.tier != OWN:
            command = self._place_hosts(command, stack)
            # In srun's step mpirun would take the step's node for all that it may use.
            environment = {
                name: value for name, value in environment.items() if name[:6] != "SLURM_"
            }
        if settings.get("idle") == "busy":
            # Any other process on the CPU has priority over it.
            stack.enter_context(start_helper([self.toolbox.python, "-c", _SPIN], environment, cpus))
        if probe.server and self._options.peer is None:
            server = self._fill_words(probe.server, fillings)
            helper = stack.enter_context(start_helper(server, environment))
            wait_for_port(int(fillings["port"]), helper)
        users = (list_gpu_users(environment) or []) if "gpu" in probe.needs else []
        before = read_counters(self._root)
        done = run_tool(
            command,
            environment,
            probe.limit,
            cpus,
            probe.name in _WITH_PAGES,
            fillings.get("scratch"),
        )
        _expect_rights(probe, done)
        counted = share_counters(before, read_counters(self._root), cpus, done.cpu)
        text = done.output
        if probe.result is not None and done.problem is None:
            text = _read_result(Path(fillings["scratch"]) / probe.result)
        work = self._amount_of(probe) * (int(fillings["threads"]) if probe.name == "cpu_all" else 1)
        values: dict[str, Reading] = {}
        problem = None
        for one in wanted:
            found, why = _read_value(one, done, text, work)
            if found is None:
                problem = why
            else:
                values[one.name] = _build_reading(found, done, counted, probe, len(users))
        library = None
        if probe.name == "blas" and values:
            library = str(readings._load_json(text).get("library"))
        return values, problem, library

    def _amount_of(self, probe: Probe) -> float:
        """Return the work of a run in the probe's own unit; memory is read in whole blocks."""
        if probe.name in ("cpu_one", "cpu_all"):
            return float(max(1, int(probe.work * self.scale)))
        if probe.name == "mem_random":
            # An emulated CPU takes 20 s, which is the limit, to read 64 MiB anywhere.
            return float(max(1, int(probe.work * self.scale) // _BLOCK) * self._block_size())
        if probe.name in ("mem_stream", "mem_near"):
            block = self._block_size()
            return float(max(block, int(probe.work * self.scale) // block * block))
        if probe.name == "blas":
            return probe.work * (self._matrix_size() / _MATRIX) ** 3
        return probe.work

    def _block_size(self) -> int:
        # A CPU that is emulated has no caches, than which a block has to be larger.
        return _SMALL_BLOCK if self.scale < 1 else _BLOCK

    def _matrix_size(self) -> int:
        return _SMALL_MATRIX if self.scale < 1 else _MATRIX

    def _choose_cpus(self, probe: Probe, settings: Mapping[str, str]) -> tuple[int, ...]:
        allowed = self.facts.allowed
        if settings.get("cpus") == "all":
            allowed = self.facts.online
        elif settings.get("cpus") == "even":
            allowed = allowed[::2]
        elif settings.get("cpus") == "first":
            allowed = allowed[: (len(allowed) + 1) // 2]
        if probe.cpus == "all":
            return allowed
        # The last one: the first has more of the interrupts.
        return (allowed[0 if settings.get("cpu") == "other" else -1],)

    def _choose_environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        environment = {**self._environment, **_OPEN_MPI}
        if settings.get("pages") == "large":
            environment["GLIBC_TUNABLES"] = _LARGE_PAGES
        if settings.get("blas") == "default":
            for name in _OF_BLAS:
                environment.pop(name, None)
        if settings.get("btl") == "shared":
            for name in list(environment):
                if name.startswith(("OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl", "UCX_")):
                    del environment[name]
            environment.update(OMPI_MCA_btl="vader,self", OMPI_MCA_pml="ob1")
        if settings.get("gdr") == "off":
            environment["NCCL_NET_GDR_LEVEL"] = "LOC"
        if settings.get("nccl") == "default":
            for name in list(environment):
                if name.startswith(("NCCL_", "UCX_")):
                    del environment[name]
        if settings.get("topology") == "install":
            environment["NCCL_TOPO_FILE"] = TOPOLOGY
        if settings.get("rails") == "own":
            environment["NCCL_CROSS_NIC"] = "0"
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return {**read_rdma_variables(self._root, self._promise), **environment}

    def _fill_words(self, words: Sequence[str], fillings: Mapping[str, str]) -> list[str]:
        expanded = expand_rdma_words(words, self._root, self._promise)
        routes = self._root.text("/proc/net/route") or ""
        place = [at for at, word in enumerate(expanded) if word == "{network}"]
        if place:
            network = choose_network(routes, self._options.hosts)
            expanded[place[0] : place[0] + 1] = name_network(network)
        return [fill_word(word, fillings) for word in expanded]

    def _place_hosts(self, command: Sequence[str], stack: contextlib.ExitStack) -> list[str]:
        """Write the file of hosts of an mpirun that needs one; return its command."""
        if not move_hosts(command, "")[1]:
            return list(command)
        path = Path(stack.enter_context(make_scratch_folder(self._find_folder())), "hosts")
        words, text = move_hosts(command, str(path))
        path.write_text(text, encoding="ascii")
        return words

    def _fill_in(
        self,
        probe: Probe,
        settings: Mapping[str, str],
        cpus: Sequence[int],
        stack: contextlib.ExitStack,
    ) -> dict[str, str]:
        """Return the values of the words in braces of a probe's command, for this run."""
        half = settings.get("cpus") in ("even", "first")
        threads = len(cpus) if half else len(self.facts.online)
        cell = 0
        gpu_cell = find_gpu_cell(self._promise) or 0
        cells = max(1, self.facts.nodes)
        step = 1 if settings.get("cell") == "other" else 0
        best = find_best_blas() if settings.get("blas") == "default" else None
        fillings = {
            "cpu": str(cpus[0]),
            "cpu_list": ",".join(map(str, cpus)),
            "threads": str(threads),
            "events": str(int(self._amount_of(probe))),
            "all_events": str(int(self._amount_of(probe)) * threads),
            "mib": str(int(self._amount_of(probe))),
            "block": str(self._block_size()),
            "size": str(self._matrix_size()),
            "cell": str(cell),
            "memory_cell": str((cell + step) % cells),
            "gpu_cell": str((gpu_cell + step) % cells),
            "gpu_memory_cell": str((gpu_cell + step) % cells),
            "gpus": str(count_gpus(self.facts)),
            "python": self.toolbox.python,
            "mpi_python": self.toolbox.mpi_python or self.toolbox.python,
            "lammps": "lmp",
            "dgemm": load_program("child_dgemm.py"),
            "all_reduce": load_program("child_all_reduce.py"),
            "clock_program": load_program("child_clock.py"),
            "clock": "coarse" if settings.get("clock") == "coarse" else "real",
            "library": best or self.toolbox.blas or "libblas.so.3",
            "peer": self._options.peer or "127.0.0.1",
            "hosts": ",".join(self._options.hosts),
            "members": str(len(self._options.hosts)),
            "topology": TOPOLOGY,
            "port": str(find_port() if self._options.peer is None else find_default_port(probe)),
            "streams": settings.get("streams", "1"),
            "ranks": str(len(cpus)),
            "hpl": str(_HPL_SIZE),
        }
        if "dir" in probe.needs:
            folder = self._find_folder() or "."
            scratch = stack.enter_context(make_scratch_folder(folder))
            fillings["file"] = f"{scratch}/read"
        if "scratch" in probe.needs:
            scratch = stack.enter_context(make_scratch_folder(self._find_folder()))
            fillings["scratch"] = scratch
            for name, text in probe.files:
                Path(scratch, name).write_text(fill_word(text, fillings), encoding="ascii")
        return fillings


def _build_reading(
    value: float, done: ToolRun, counted: Counters, probe: Probe, users: int
) -> Reading:
    words = readings.find_collective_words(done.output) if probe.name.startswith("nccl") else ()
    if users:
        words += (f"{GPU_USERS}{users}",)
    return Reading(
        value=value,
        wall=done.wall,
        own=done.cpu,
        others=counted.others,
        steal=counted.steal,
        waited=done.waited,
        watched=done.watched,
        throttled=counted.throttled,
        sent=counted.sent,
        large_pages=done.large_pages,
        at_limit=done.at_limit,
        words=words,
        counts=readings.read_distribution(probe.name, done.document),
    )


class _MissingRightError(Exception):
    """A tool lacks a right; the text names the right and the cure."""


def _expect_rights(probe: Probe, done: ToolRun) -> None:
    """Raise an error for the right that a failed tool lacks, unless it failed otherwise."""
    # The tools of rt-tests check for the right to a priority, even if they need none.
    if "rights" not in probe.needs or done.problem is None or done.at_limit:
        return
    if "RLIMIT_RTPRIO" in done.output:
        raise _MissingRightError(
            f"{probe.tool} does nothing without the right to real-time priorities: run this "
            "command as root, or where ulimit -r and the control group give it"
        )
    if os.geteuid() != 0:
        raise _MissingRightError(f"{probe.tool} failed without root: run this command as root")


def _read_value(
    probe: Probe, done: ToolRun, text: str, work: float
) -> tuple[float | None, str | None]:
    """Return the value of one run with this amount of work, or the reason why it has none."""
    if done.at_limit:
        # It did less than all of its work in that time: this is the best value that it can have.
        if probe.of is None and probe.work > 0:
            rate = work / done.wall
            return (rate if probe.higher else _PER_SECOND[probe.unit] / rate), None
        return None, f"{probe.tool}: {done.problem}"
    if done.problem is not None:
        # mpirun's explanations follow the line of ssh or of the rank that failed.
        line = find_line(done.output, 0 if "hosts" in probe.needs else -1)
        return None, f"{probe.tool}: {done.problem}" + (f": {line!a}" if line else "")
    try:
        return probe.read(text, done.document, work), None
    except ValueError as error:
        return None, f"{probe.tool} printed something that is not its result: {error}"


def _read_result(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[: 1 << 20]
    except OSError:
        return ""
