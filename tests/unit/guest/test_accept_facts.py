# SPDX-License-Identifier: Apache-2.0
"""Facts and counters, read from the files of machines, and causes by them, end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_hpc_guest.accept import counters, facts, tools
from nova_hpc_guest.accept.counters import read_counters, share_counters
from nova_hpc_guest.accept.facts import GuestFacts, parse_facts, read_facts, read_group_file
from nova_hpc_guest.files import Root
from nova_hpc_guest.shared_memory import list_network_devices
from tests.unit.guest.accept_world import AcceptWorld

TICK = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AcceptWorld:
    monkeypatch.setattr("nova_hpc_guest.accept.toolbox._BLAS", ())
    monkeypatch.setattr("nova_hpc_guest.accept.tools._LOOK", 0.005)
    return AcceptWorld(tmp_path)


def facts_of(world: AcceptWorld, **environment: str) -> GuestFacts:
    return read_facts(Root(str(world.root)), environment, ())


def test_a_machine_is_read(world: AcceptWorld) -> None:
    found = facts_of(world)
    assert (found.model, found.simd, found.online) == ("Some CPU", ("avx2", "fma"), (0, 1))
    assert (found.memory_gib, found.clocksource, found.hypervisor) == (16, "tsc", False)
    assert found.allowed == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("groups", "files", "quota", "throttled", "limit"),
    [
        (
            "0::/user/job",
            {
                "sys/fs/cgroup/user/job/cpu.max": "60000 100000",
                "sys/fs/cgroup/user/job/cpu.stat": "usage_usec 5\nthrottled_usec 2500000",
                "sys/fs/cgroup/user/io.max": "8:0 riops=500",
            },
            *("60000 100000", 2.5, "8:0 riops=500"),
        ),
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000"}, None, 0.0, None),
        (
            "4:cpu,cpuacct:/job\n7:blkio:/job",
            {
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "60000",
                "sys/fs/cgroup/cpu/job/cpu.stat": "nr_throttled 3\nthrottled_time 1500000000",
                "sys/fs/cgroup/blkio/job/blkio.throttle.read_iops_device": "254:0 500",
            },
            *("60000", 1.5, "254:0 500"),
        ),
        (
            "4:cpu,cpuacct:/job",
            {"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1"},
            *(None, 0.0, None),
        ),
        # No control groups, and texts that are none.
        ("", {}, None, 0.0, None),
        ("rubbish\n0::/../../..", {"sys/fs/cgroup/cpu.max": "1 2"}, "1 2", 0.0, None),
    ],
)
def test_control_groups(world, groups, files, quota, throttled, limit) -> None:
    world.write("proc/self/cgroup", groups + "\n")
    for path, text in files.items():
        world.write(path, text + "\n")
    found = facts_of(world)
    assert (found.quota, found.disk_limit) == (quota, limit)
    assert read_counters(Root(str(world.root))).throttled == throttled
    assert read_group_file(Root(str(world.root)), "cpu", "no.such") is None


def test_only_words_of_the_environment_are_kept(world: AcceptWorld) -> None:
    found = facts_of(
        world,
        OPENBLAS_CORETYPE="Prescott",
        GLIBC_TUNABLES="glibc.malloc.hugetlb=1",
        OMPI_MCA_btl="tcp,self",
        NCCL_IB_DISABLE="1",
        NCCL_NET="/home/somebody/secret plug-in",
        AWS_SECRET="x",
        UCX_TLS="a" * 90,
    )
    assert found.settings == {
        "NCCL_IB_DISABLE": "1",
        "NCCL_NET": "?",
        "OMPI_MCA_btl": "tcp,self",
        "UCX_TLS": "?",
    }
    assert (found.blas_core, found.malloc) == ("Prescott", "glibc.malloc.hugetlb=1")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0", (0,)),
        ("", ()),
        (None, ()),
        ("rubbish,1", (1,)),
        ("3-1", ()),
        ("0-99999", tuple(range(100_000))),
    ],
)
def test_lists_of_cpus(text, cpus) -> None:
    assert facts.read_cpu_list(text) == cpus


@pytest.mark.parametrize(
    "data",
    [
        {"model": 3},
        {"online": "0-1"},
        {"online": [0, "1"]},
        {"hypervisor": 1},
        {"settings": {"a": 1}},
        {"devices": {"a": "b"}},
        {"memory_gib": 1.5},
        {"shapers": [3]},
    ],
)
def test_facts_of_other_types_are_refused(data) -> None:
    with pytest.raises(ValueError, match=next(iter(data))):
        parse_facts(data)


def test_facts_of_a_later_release_are_read() -> None:
    assert parse_facts({"model": "x", "color": "red"}) == GuestFacts(model="x")


# -- counters ---------------------------------------------------------------------------


def write_stat(world: AcceptWorld, *cpus: tuple[int, int]) -> None:
    """Ticks of each CPU: busy as user, and stolen."""
    lines = [
        f"cpu{number} {busy} 0 0 9 9 0 0 {steal} 0 0" for number, (busy, steal) in enumerate(cpus)
    ]
    world.write("proc/stat", "\n".join(["cpu  1 2 3 4", *lines, "intr 5"]) + "\n")


def test_the_planes_of_a_port_are_no_ports(world: AcceptWorld) -> None:
    """A device of type SMI has a port for each plane of the one port beside it."""
    devices = {"mlx5_0": 1, "smi1": 4}
    for name, ports in devices.items():
        for port in range(1, ports + 1):
            folder = f"sys/class/infiniband/{name}/ports/{port}"
            world.write(f"{folder}/rate", "800 Gb/sec (4X XDR)\n")
            world.write(f"{folder}/counters/port_xmit_data", "100\n")
    root = Root(str(world.root))
    assert read_facts(root, {}, ()).rdma == {"mlx5_0": 800.0}
    assert [name for name in read_counters(root).sent if name.startswith("ib:")] == ["ib:mlx5_0"]
    assert list_network_devices(root).rdma_ports == ("mlx5_0:1",)


def test_what_others_took(world: AcceptWorld) -> None:
    root = Root(str(world.root))
    world.write("proc/net/dev", "a\nb\n  lo: 1 1 0 0 0 0 0 0 500 1\neth0: 1 1 0 0 0 0 0 0 500 1\n")
    world.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "100\n")
    write_stat(world, (100, 0), (100, 0))
    before = read_counters(root)
    write_stat(world, (100 + TICK, 0), (100 + 2 * TICK, TICK))
    world.write(
        "proc/net/dev", "a\nb\n  lo: 1 1 0 0 0 0 0 0 900 1\neth0: 1 1 0 0 0 0 0 0 90500 1\n"
    )
    world.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "5100\n")
    after = read_counters(root)
    found = share_counters(before, after, (1,), own=0.5)
    assert found == counters.Counters(1.5, 1.0, 0.0, {"eth0": 90000, "ib:mlx5_0": 20000})
    # A counter that runs backwards, and a CPU that went offline, are nothing.
    assert share_counters(after, before, (0, 1, 7), 0.0) == counters.Counters(0, 0, 0, {})
    assert counters.measure_busy_cpus(before, after, (0, 1), 1.0) == 3.0
    assert counters.measure_busy_cpus(before, after, (0, 1), 0.0) == 0.0


def test_a_machine_that_counts_nothing(tmp_path: Path) -> None:
    empty = read_counters(Root(str(tmp_path)))
    assert share_counters(empty, empty, (0,), 1.0) == counters.Counters(0, 0, 0, {})


def test_pages_of_a_tool_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rollup = (
        "Rss: 90 kB\nAnonymous:  40000 kB\nAnonHugePages:  10000 kB\nPrivate_Hugetlb: 10000 kB\n"
    )
    texts = {"/proc/7/smaps_rollup": rollup, "/proc/7/task/7/schedstat": "5 1500000000 3"}
    monkeypatch.setattr(tools, "_read_text", lambda path: texts.get(path, ""))
    monkeypatch.setattr(tools, "_list_names", lambda path: ["7", "8"])
    watch = tools._Watch(7, True)
    watch.look()
    assert (watch.large_pages, watch.waited, watch.looks) == (0.5, 1.5, 1)
    texts["/proc/7/smaps_rollup"] = "Anonymous:  20000 kB\nAnonHugePages:  20000 kB\n"
    watch.look()
    assert watch.large_pages == 0.5, "little memory says nothing"


# -- causes by the kernel's counters, with tools that are processes -----------------------


def diagnose(world: AcceptWorld, saved: Path, only: str) -> dict[str, object]:
    _, out, _ = world.run("--baseline", str(saved), "--format", "json", only=only)
    return json.loads(out)


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """One CPU for this test: there is no other one to try whether that helps."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def saved(world: AcceptWorld, tmp_path: Path) -> Path:
    """A baseline of this world while it is well; its tools take some time."""
    for name in ("cpu", "all"):
        text = (world.rates / name).read_text()
        world.rate(name, f"/bin/sleep 0.1\n{text}")
    world.write("proc/self/cgroup", "0::/job\n")
    world.write("sys/fs/cgroup/job/cpu.stat", "throttled_usec 0\n")
    last = max(os.sched_getaffinity(0))
    write_stat(world, *[(0, 0)] * (last + 1))
    world.run("--save-baseline", str(tmp_path / "good.json"), only=None)
    return tmp_path / "good.json"


def count_while_it_runs(world: AcceptWorld, path: str, text: str, rate: float) -> None:
    """The probe of one CPU is at *rate*, and meanwhile a file of the kernel's changes.

    *text* has $N for a number that grows with each run.
    """
    place = world.root / path
    counter = world.folder / "count"
    counter.write_text("0")
    world.rate(
        "cpu",
        f"read N < {counter}; N=$((N + 1)); echo $N > {counter}\n/bin/sleep 0.1\n"
        f'printf "{text}" > {place}\necho "total time: {1200 / rate:.5f}s"\n',
    )


def test_a_quota_is_named(world: AcceptWorld, saved: Path) -> None:
    world.write("sys/fs/cgroup/job/cpu.max", "60000 100000\n")
    count_while_it_runs(
        world, "sys/fs/cgroup/job/cpu.stat", "throttled_usec $((N * 90000))\\n", 600
    )
    data = diagnose(world, saved, "cpu_one,mem_stream")
    (cause,) = data["causes"]
    assert cause["cause"] == "cpu-quota"
    assert cause["says"] == "the kernel stopped the probe for its CPU quota (60000 100000)"
    # Without what the kernel counts the same symptom has another name, or none.
    world.cpu(600.0)
    assert "cpu-quota" not in str(diagnose(world, saved, "cpu_one")["causes"])


@pytest.mark.parametrize(("column", "name"), [("steal", "steal"), ("busy", "busy-cpu")])
def test_time_of_others_is_named(one_cpu, world, saved, column: str, name: str) -> None:
    last = max(os.sched_getaffinity(0))
    ticks = int(0.3 * TICK)
    busy, stolen = (f"$((N * {ticks}))", "0") if column == "busy" else ("0", f"$((N * {ticks}))")
    lines = "".join(f"cpu{cpu} {busy} 0 0 0 0 0 0 {stolen} 0 0\\n" for cpu in range(last + 1))
    count_while_it_runs(world, "proc/stat", lines, 500)
    data = diagnose(world, saved, "cpu_one")
    assert [cause["cause"] for cause in data["causes"]] == [name], data["causes"]
    assert data["status"] == 1
