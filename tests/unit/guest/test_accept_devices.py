# SPDX-License-Identifier: Apache-2.0
"""All probes by fake tools that print what tools/outputs have: words, servers, files, devices.

Nothing here was tried on hardware; tests/data/accept/README.rst says which outputs are recorded.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from nova_hpc_guest.accept import measuring
from nova_hpc_guest.accept.measuring import LocalMachine, MeasuringOptions
from nova_hpc_guest.accept.probes import PROBE_OF, Probe, list_probes
from nova_hpc_guest.accept.refusal import refuse_used_gpus
from nova_hpc_guest.accept.scratch import find_file_system
from nova_hpc_guest.document import GuestDevice, GuestDocument
from nova_hpc_guest.files import Root
from tests.unit.guest.accept_cases import DATA
from tests.unit.guest.accept_world import AcceptWorld

OUTPUTS = DATA / "outputs"
#: A tool that logs its words and prints a file, or writes it where it is told to.
_TOOL = """#!/bin/sh
echo "{name} $*" >> {log}
for word in "$@"; do
    case "$word" in --json=*) cat {output} > "${{word#--json=}}"; exit ;; esac
done
{before}
cat {output}
"""
_SERVER = """
import socket, sys
server = socket.socket()
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
while True:
    server.accept()
"""
#: The server that a tool starts for itself: its last word or the one after -p is the port.
_IPERF3 = '[ "$1" = -s ] && exec {python} {server} $3'
_PERFTEST = (
    'case "$*" in *127.0.0.1|*192.0.2.7) ;; *-p*) exec {python} {server} "${{*##*-p }}" ;; esac'
)
GPU = GuestDevice(0, "gpu", "10de", "2330", "030200", 1, 0, (), None, 32.0, 16)
PROMISE = GuestDocument("mirror", (), (GPU,))


class DeviceWorld(AcceptWorld):
    """A machine with two GPUs, an adapter, two NUMA nodes, and every tool."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = folder / "log"
        self.log.write_text("")
        for number, address in enumerate(("0000:1a:00.0", "0000:1b:00.0")):
            place = f"sys/bus/pci/devices/{address}"
            self.write(f"{place}/class", "0x030200\n")
            self.write(f"{place}/vendor", "0x10de\n")
            self.write(f"{place}/device", "0x2330\n")
            self.write(f"sys/devices/system/node/node{number}/cpulist", f"{number}\n")
        self.write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n")
        server = folder / "server.py"
        server.write_text(_SERVER)
        places = {"python": sys.executable, "server": server}
        listens = _PERFTEST.format(**places)
        for name, output, before in (
            ("cyclictest", "cyclictest.json", ""),
            ("oslat", "oslat.json", ""),
            ("iperf3", "iperf3.json", _IPERF3.format(**places)),
            ("fio", "fio.txt", ""),
            ("mpirun", "mpi4py-ring.txt", ""),
            ("lmp", "lammps.txt", ""),
            ("hpcc", "hpcc.txt", ""),
            ("ib_write_bw", "ib_write_bw.txt", listens),
            ("ib_write_lat", "ib_write_lat.txt", listens),
            ("nvbandwidth", "nvbandwidth.txt", ""),
            ("all_reduce_perf", "all_reduce_perf-old.txt", ""),
            ("dcgmi", "dcgmi-fail.json", ""),
        ):
            self.print_file(name, output, before)
        log = f'echo "numactl $*" >> {self.log}'
        self.tool("numactl", f'#!/bin/sh\n{log}\nshift 2\nexec "$@"\n')

    def print_file(self, name: str, output: str, before: str = "") -> None:
        self.tool(
            name,
            _TOOL.format(
                log=str(self.log),
                name=name,
                output=str(OUTPUTS / output),
                before=before,
            ),
        )

    def machine(self, promise: GuestDocument | None = PROMISE, **options: str) -> LocalMachine:
        environment = {**self.environment, "PATH": f"{self.tools}:/usr/bin:/bin"}
        return LocalMachine(Root(str(self.root)), MeasuringOptions(**options), promise, environment)

    def words(self, tool: str) -> list[str]:
        """The last words that a tool was started with for measuring."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return next(line for line in reversed(lines) if line[0] == tool)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceWorld:
    monkeypatch.setattr("nova_hpc_guest.accept.toolbox._BLAS", ())
    monkeypatch.setattr("nova_hpc_guest.accept.toolbox._HAS_MPI", "print('3.1.4')")
    monkeypatch.setattr(measuring, "_IN_MEMORY", frozenset())
    return DeviceWorld(tmp_path)


def measure(world: DeviceWorld, name: str, settings=None, **options):
    sample = world.machine(**options).measure_round([PROBE_OF[name]], settings)
    assert not sample.failed, sample.failed
    assert not sample.missing, sample.missing
    return sample.readings[name]


def test_mpirun_reads_hosts_with_addresses_of_ipv6_from_a_file(world: DeviceWorld) -> None:
    keep = (
        f'while [ $# -gt 1 ]; do [ "$1" = --hostfile ] && cp "$2" {world.folder}/hosts; shift; done'
    )
    world.print_file("mpirun", "all_reduce_perf-gdr.txt", keep)
    assert measure(world, "nccl_pair", peer="fd00::2").value == 48.37
    assert (world.folder / "hosts").read_text() == "localhost slots=1\nfd00::2 slots=1\n"
    words = world.words("mpirun")
    assert words[:6] == ["mpirun", "--quiet", "-np", "2", "--mca", "regx"]
    assert "-H" not in words
    assert not Path(words[words.index("--hostfile") + 1]).exists()
    assert world.machine(peer="fd00::2").find_obstacle(PROBE_OF["ib_bw"]) == measuring.NO_IPV6
    assert world.machine(peer="10.0.0.2").find_obstacle(PROBE_OF["ib_bw"]) is None


def test_mpirun_does_not_know_of_sruns_step(
    world: DeviceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {**world.environment, "SLURM_NODELIST": "train-1"}
    monkeypatch.setattr(DeviceWorld, "environment", step)
    world.print_file("mpirun", "mpi4py-ring.txt", f"env > {world.folder}/variables")
    measure(world, "mpi_lat")
    variables = (world.folder / "variables").read_text()
    assert "OMPI_ALLOW_RUN_AS_ROOT=1\n" in variables
    assert "SLURM_" not in variables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timer_p99", None),
        ("net_bw", None),
        ("net_rtt", None),
        ("disk_lat", None),
        ("mpi_lat", 1.3368),
        ("lammps_lj", 73.86),
        ("oslat", 20034),
        ("ib_bw", 391.87),
        ("ib_lat", 1.05),
        ("h2d", 55.29),
        ("d2h", 55.29),
        ("h2d_near", 55.29),
        ("nccl_node", 264.74),
    ],
)
def test_a_probe_is_made(world: DeviceWorld, name: str, value: float | None) -> None:
    reading = measure(world, name)
    assert reading.wall > 0
    if value is not None:
        assert reading.value == pytest.approx(value, rel=1e-3)


def test_the_words_that_tools_are_started_with(world: DeviceWorld, tmp_path: Path) -> None:
    measure(world, "timer_p99")
    words = " ".join(world.words("cyclictest"))
    assert re.search(r"--policy=other -a \d+ -t 1 .*--json=/proc/self/fd/\d+$", words), words
    measure(world, "net_bw", {"streams": "4"})
    assert re.search(r"-c 127.0.0.1 -p \d+ .*-P 4 -J$", " ".join(world.words("iperf3")))
    measure(world, "disk_lat", folder=str(tmp_path))
    file = re.search(r"--filename=(\S+)", " ".join(world.words("fio")))
    assert file is not None
    assert file[1].startswith(f"{tmp_path}/nova-hpc-accept-")
    assert not Path(file[1]).parent.exists()
    measure(world, "mpi_lat")
    assert world.words("mpirun")[1:6] == ["--quiet", "-np", "2", sys.executable, "-m"]
    measure(world, "nccl_node")
    assert world.words("all_reduce_perf")[-2:] == ["-g", "2"]
    measure(world, "h2d_near")
    for text in world.log.read_text().splitlines():
        assert "{" not in text, "a word that was not filled in"


def remove_gpu(world: DeviceWorld, address: str) -> None:
    shutil.rmtree(world.root / "sys/bus/pci/devices" / address)


def test_one_gpu_reduces_nothing(world: DeviceWorld) -> None:
    remove_gpu(world, "0000:1b:00.0")
    wanted = [PROBE_OF[name] for name in ("nccl_node", "h2d")]
    sample = world.machine().measure_round(wanted)
    assert (sample.missing, sample.failed) == ({"nccl_node": "one GPU"}, {})
    assert set(sample.readings) == {"h2d"}
    remove_gpu(world, "0000:1a:00.0")
    missing = world.machine().measure_round(wanted).missing
    assert missing == {"nccl_node": "no GPU", "h2d": "no GPU"}


def test_a_gpu_that_others_use_is_refused(world: DeviceWorld) -> None:
    environment = {"PATH": f"{world.tools}:/usr/bin:/bin"}
    of_gpu = [PROBE_OF["h2d"]]
    assert refuse_used_gpus(of_gpu, environment) is None, "no nvidia-smi: nothing is known"
    say = '#!/bin/sh\necho "$*" > $0.words\n'
    world.tool("nvidia-smi", f"{say}printf '77\\n 9\\n9\\n'\n")
    refused = refuse_used_gpus(of_gpu, environment)
    assert refused is not None
    assert (refused.kind, "(pid 9, 77)" in refused.text) == ("gpu-busy", True)
    words = (world.tools / "nvidia-smi.words").read_text()
    assert words == "--query-compute-apps=pid --format=csv,noheader\n"
    assert refuse_used_gpus([PROBE_OF["cpu_one"]], environment) is None
    assert measure(world, "h2d").words == ("gpu-users=2",)
    world.tool("nvidia-smi", "#!/bin/sh\necho 77; exit 9\n")
    refused = refuse_used_gpus(of_gpu, environment)
    assert refused is not None
    assert "nobody knows who uses the GPUs" in refused.text
    assert measure(world, "h2d").words == ()
    for text in ("", "echo No running processes found", "echo 7x", "echo [N/A]"):
        world.tool("nvidia-smi", f"#!/bin/sh\n{text}\n")
        assert refuse_used_gpus(of_gpu, environment) is None, text
    assert measure(world, "h2d").words == ()
    many = " ".join(f"echo {number};" for number in range(1, 9))
    world.tool("nvidia-smi", f"#!/bin/sh\n{many}\n")
    refused = refuse_used_gpus(of_gpu, environment)
    assert refused is not None
    assert "(pid 1, 2, 3, 4, 5, ...)" in refused.text


@pytest.mark.parametrize(
    ("user", "says", "left_out"),
    [
        (1000, "either run as root or increase RLIMIT_RTPRIO limits.", True),
        (1000, "anything", True),
        # Root, in a control group without a share of real time.
        (0, "Probably missing capabilities, either run as root or increase RLIMIT_RTPRIO", True),
        (0, "anything", False),
    ],
)
def test_who_may_not_have_real_time_priorities(
    world: DeviceWorld, monkeypatch, user: int, says: str, left_out: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    world.tool("cyclictest", f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    world.print_file("nvbandwidth", "nvbandwidth.txt", "exit 1")
    sample = world.machine().measure_round([PROBE_OF["timer_p99"], PROBE_OF["h2d"]])
    assert set(sample.failed) == {"h2d"} | (set() if left_out else {"timer_p99"})
    assert set(sample.missing) == ({"timer_p99"} if left_out else set())
    reason = sample.missing.get("timer_p99", "")
    assert ("run this command as root" in reason) == left_out
    # Of the right it speaks only if the tool does.
    assert ("real-time" in reason) == ("RLIMIT_RTPRIO" in says)


def test_a_peer_that_is_named_is_asked(world: DeviceWorld) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        measure(world, "net_bw", peer="192.0.2.7")
    assert world.words("iperf3")[1:5] == ["-c", "192.0.2.7", "-p", "5201"]
    measure(world, "ib_bw", peer="192.0.2.7")
    assert world.words("ib_write_bw")[-3:] == ["-p", "18515", "192.0.2.7"]
    world.print_file("mpirun", "all_reduce_perf-no-gdr.txt")
    reading = measure(world, "nccl_pair", peer="192.0.2.7")
    assert (reading.value, reading.words) == (27.07, ("ib", "rails=0"))
    assert "localhost,192.0.2.7" in world.words("mpirun")


def test_hpcc_gets_a_file_and_leaves_none(world: DeviceWorld, tmp_path: Path) -> None:
    # Asked for its version, it is where this test was started, and leaves nothing there.
    text = (
        "test -e hpccinf.txt || exit 0; "
        f"cp hpccinf.txt {tmp_path}/seen; cp {OUTPUTS}/hpcc.txt hpccoutf.txt; exit"
    )
    world.print_file("mpirun", "hpcc.txt", text)
    wanted = [PROBE_OF[name] for name in ("hpl", "fft", "stream_triad")]
    sample = world.machine(folder=str(tmp_path)).measure_round(wanted)
    assert sample.failed == {}
    assert {name: reading.value for name, reading in sample.readings.items()} == {
        "hpl": pytest.approx(21.3445),
        "fft": 2.11043,
        "stream_triad": 9.38721,
    }
    assert not list(tmp_path.glob("nova-hpc-accept-*"))
    lines = (tmp_path / "seen").read_text().splitlines()
    ranks = str(len(world.machine().facts.allowed))
    # Problem size, and the grid of 1 by all ranks.
    assert (lines[5], lines[10:12]) == ("800", ["1", ranks])
    assert len(lines) == 36


def test_a_diagnosis_that_fails_is_a_finding(world: DeviceWorld) -> None:
    assert world.machine().diagnose_gpus() == (["pcie"], None)
    world.print_file("dcgmi", "dcgmi-pass.json")
    assert world.machine().diagnose_gpus() == ([], None)
    world.print_file("dcgmi", "fio.txt")
    assert world.machine().diagnose_gpus()[1] == "dcgmi printed something else: no test_categories"


def test_settings_change_one_thing(world: DeviceWorld) -> None:
    machine = world.machine()
    machine._environment.update(
        OMPI_MCA_btl="tcp,self",
        UCX_TLS="tcp",
        NCCL_IB_DISABLE="1",
        OPENBLAS_CORETYPE="Prescott",
        LD_LIBRARY_PATH="/somewhere",
    )
    plain = machine._choose_environment({})
    assert plain["OMPI_MCA_btl"] == "tcp,self"
    shared = machine._choose_environment({"btl": "shared"})
    assert (shared["OMPI_MCA_btl"], "UCX_TLS" in shared) == ("vader,self", False)
    blas = machine._choose_environment({"blas": "default"})
    assert not {"OPENBLAS_CORETYPE", "LD_LIBRARY_PATH"} & set(blas)
    assert "NCCL_IB_DISABLE" not in machine._choose_environment({"nccl": "default"})
    assert machine._choose_environment({"gdr": "off"})["NCCL_NET_GDR_LEVEL"] == "LOC"
    large = machine._choose_environment({"pages": "large"})
    assert large["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    own = machine._choose_environment({"rails": "own", "topology": "install"})
    assert (own["NCCL_CROSS_NIC"], own["NCCL_TOPO_FILE"][:14]) == ("0", "/run/nova-hpc/")
    settings = {setting for setting, probe in _settings()}
    assert settings <= {"pages", "cpu", "cpus", "blas", "clock", "btl", "cell", "streams"} | {
        "gdr",
        "nccl",
        "topology",
        "rails",
        "idle",
        "ceiling",
    }


def _settings() -> list[tuple[str, str]]:
    from nova_hpc_guest.accept.causes import CAUSES

    pairs = [(cause.setting, cause.name) for cause in CAUSES if cause.setting]
    pairs += [(probe.alone, probe.name) for probe in list_probes("full") if probe.alone]
    return [(setting.partition("=")[0], name) for setting, name in pairs]


def test_the_cpus_of_a_setting(world: DeviceWorld) -> None:
    machine = world.machine()
    machine.facts = machine.facts._replace(online=tuple(range(8)), allowed=(1, 2, 3, 4))

    def cpus(name: str, **settings: str) -> tuple[int, ...]:
        return machine._choose_cpus(PROBE_OF[name], settings)

    assert cpus("cpu_one") == (4,)
    assert cpus("cpu_one", cpu="other") == (1,)
    assert cpus("cpu_all") == (1, 2, 3, 4)
    assert cpus("cpu_all", cpus="all") == tuple(range(8))
    assert cpus("cpu_all", cpus="even") == (1, 3)
    assert cpus("cpu_all", cpus="first") == (1, 2)


@pytest.mark.parametrize(
    ("rate", "scale", "events", "mib", "size"),
    [
        (4000.0, 1.0, "1200", "6144", "640"),
        (299.0, 0.5, "600", "3072", "256"),
        (10.0, 0.05, "60", "304", "256"),  # Blocks of 8 MiB instead of 64.
    ],
)
def test_a_slow_machine_is_given_less_work(world, rate, scale, events, mib, size) -> None:
    world.rate("cpu", f'echo "total time: {60 / rate:.5f}s"\n')
    machine = world.machine()
    machine.scale = machine.find_scale()
    assert machine.scale == scale
    with contextlib.ExitStack() as stack:
        filled = [
            machine._fill_in(PROBE_OF[name], {}, (0,), stack)
            for name in ("cpu_one", "mem_stream", "blas")
        ]
    assert [filled[0]["events"], filled[1]["mib"], filled[2]["size"]] == [events, mib, size]
    # What is measured is a rate: it stays the same.
    world.rate("cpu", f'echo "total time: {int(events) / rate:.5f}s"\n')
    reading = machine.measure_round([PROBE_OF["cpu_one"]]).readings["cpu_one"]
    assert reading.value == pytest.approx(rate, rel=1e-3)


def test_near_is_measured_at_the_promised_node(world: DeviceWorld) -> None:
    words = []
    for setting in ({}, {"cell": "other"}):
        measure(world, "h2d_near", setting)
        words.append(world.words("numactl")[1:3])
        measure(world, "mem_near", setting)
        words.append(world.words("numactl")[1:3])
    assert words == [
        ["--cpunodebind=1", "--membind=1"],
        ["--cpunodebind=0", "--membind=0"],
        ["--cpunodebind=0", "--membind=0"],
        ["--cpunodebind=0", "--membind=1"],
    ]


def without_gpus(world: DeviceWorld) -> None:
    shutil.rmtree(world.root / "sys/bus/pci/devices")


def without_adapter(world: DeviceWorld) -> None:
    shutil.rmtree(world.root / "sys/class/infiniband")


def without_second_node(world: DeviceWorld) -> None:
    shutil.rmtree(world.root / "sys/devices/system/node/node1")


def with_everything(_: DeviceWorld) -> None:
    pass


@pytest.mark.parametrize(
    ("name", "break_it", "reason"),
    [
        ("h2d", without_gpus, "no GPU"),
        ("ib_bw", without_adapter, "no RDMA device"),
        ("mem_near", without_second_node, "one NUMA node"),
        ("nccl_pair", with_everything, "no --peer"),
    ],
)
def test_what_is_not_there_leaves_its_probe_out(world, name, break_it, reason) -> None:
    break_it(world)
    sample = world.machine().measure_round([PROBE_OF[name]])
    assert (sample.readings, sample.failed) == ({}, {})
    assert sample.missing == {name: reason}


def test_a_gpu_of_no_promised_node_has_no_near_one(world: DeviceWorld) -> None:
    for promise in (None, PROMISE._replace(devices=(GPU, GPU._replace(number=1, cell=0)))):
        sample = world.machine(promise).measure_round([PROBE_OF["h2d_near"]])
        assert "near which NUMA node" in sample.missing["h2d_near"]


def test_a_root_that_cannot_be_written(world: DeviceWorld, monkeypatch) -> None:
    monkeypatch.setattr(LocalMachine, "_find_folder", lambda _: None)
    sample = world.machine().measure_round([PROBE_OF["disk_lat"], PROBE_OF["timer_p99"]])
    assert sample.missing == {"disk_lat": "no directory on a disk to write in (--dir)"}
    assert set(sample.readings) == {"timer_p99"}


def test_memory_is_no_disk(world: DeviceWorld, monkeypatch, tmp_path: Path) -> None:
    kind = find_file_system(str(tmp_path))
    assert kind
    monkeypatch.setattr(measuring, "_IN_MEMORY", frozenset((kind,)))
    sample = world.machine(folder=str(tmp_path)).measure_round([PROBE_OF["disk_lat"]])
    assert set(sample.missing) == {"disk_lat"}


def test_a_server_that_does_not_start_is_named(world: DeviceWorld) -> None:
    world.tool("iperf3", "#!/bin/sh\necho 'iperf3: error - unable to connect'\nexit 1\n")
    sample = world.machine().measure_round([PROBE_OF["net_bw"], PROBE_OF["net_rtt"]])
    assert set(sample.failed) == {"net_bw", "net_rtt"}
    assert "it ended with status 1: 'iperf3: error - unable to connect'" in sample.failed["net_bw"]


def test_every_probe_has_a_limit() -> None:
    for probe in list_probes("full"):
        assert isinstance(probe, Probe)
        assert 0 < probe.limit <= 900


def test_a_sample_of_all_of_it_is_json(world: DeviceWorld) -> None:
    from nova_hpc_guest.accept.sample import build_sample_data, parse_sample

    wanted = [probe for probe in list_probes("quick") if probe.name not in ("clock", "blas")]
    sample = world.machine().measure_round(wanted)
    assert sample.failed == {}
    text = json.dumps(build_sample_data(sample))
    assert parse_sample(json.loads(text)).readings == sample.readings
    assert sample.facts.devices == {"10de:2330": 2}
    assert sample.facts.rdma == {"mlx5_0": 400.0}
    assert sample.facts.nodes == 2
