# SPDX-License-Identifier: Apache-2.0
"""The host's work on dedicated CPUs: what is a fault, what is none, and what is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import cpuset
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import Node, NumaNode
from nova_hpc_tools.doctor import checks_quiet, facts_quiet
from nova_hpc_tools.doctor.checks_quiet import HostCounters, Interrupt, KernelThread
from nova_hpc_tools.site.layout_cures import render_cure
from tests.unit.doctor.quiet_tree import ADAPTER, CPU, FAULTS, GUEST, NVME, QuietTree

SIZES = (2, 64, 256)
CPUS = st.frozensets(st.integers(0, 40))


@pytest.fixture(params=SIZES)
def tree(request, tmp_path, monkeypatch):
    """A quiet host with 2, 64 or 256 CPUs; every eighth one has the host's work."""
    online = frozenset(range(request.param))
    dedicated = {cpu for cpu in online if cpu % 8} - {0}
    made = QuietTree(tmp_path, online, frozenset(dedicated))
    made.write()
    monkeypatch.setattr(facts_quiet, "sleep", made.wait)
    return made


def look(tree, declared=True, here=True, dedicated=None, not_booted=()):
    tree.counters()
    node = Node("tree", numa_nodes=(NumaNode(id=0, cpus=tree.online),))
    facts = facts_quiet.read_quiet_facts(
        tree.root, node, tree.dedicated if dedicated is None else dedicated, declared, here
    )
    return {found.check: found for found in checks_quiet.check_quiet_cpus(facts, not_booted)}


def test_a_quiet_host_has_nothing(tree):
    # Since the boot all counters are high, and what servers cause goes on.
    tree.more = {name: dict.fromkeys(tree.dedicated, 5000) for name in (GUEST, "RES", "NMI", "PIN")}
    tree.guest = 200
    assert look(tree) == {}
    # irqbalance leaves isolated CPUs alone by itself.
    tree.environment = "LANG=C\0IRQBALANCE_BANNED_CPULIST=\0"
    assert look(tree) == {}


@pytest.mark.parametrize("check", FAULTS)
def test_one_fault_is_one_finding(tree, check):
    make, _ = FAULTS[check]
    make(tree)
    assert list(look(tree)) == [check]


@pytest.mark.parametrize("check", FAULTS)
def test_what_is_unreadable_is_unknown(tree, check):
    for make, _ in FAULTS.values():
        make(tree)
    assert set(look(tree)) == set(FAULTS)
    _, path = FAULTS[check]
    tree.broken.add(path)
    tree.put(path, "")
    assert set(look(tree)) == set(FAULTS) - {check}


@pytest.mark.parametrize("path", ["/proc/interrupts", "/proc/stat", "/proc/40/schedstat"])
def test_counters_that_are_unreadable_are_unknown(tree, path):
    for check in ("cpus-interrupted", "cpus-kernel-threads", "cpus-ticking"):
        FAULTS[check][0](tree)
    without = {
        "/proc/interrupts": {"cpus-kernel-threads"},
        "/proc/stat": {"cpus-interrupted", "cpus-kernel-threads"},
        "/proc/40/schedstat": {"cpus-interrupted", "cpus-ticking"},
    }
    tree.broken.add(path)
    assert set(look(tree)) == without[path]


def test_the_texts(tmp_path, monkeypatch):
    tree = QuietTree(tmp_path, frozenset(range(8)), frozenset({4, 5, 6, 7}))
    tree.write()
    monkeypatch.setattr(facts_quiet, "sleep", tree.wait)
    for make, _ in FAULTS.values():
        make(tree)
    assert {name: (found.seen, render_cure(found.cure)) for name, found in look(tree).items()} == {
        "cpus-interrupted": (
            "In 2 s, interrupts of the host fired on dedicated CPUs: 130 nvme0q1 (7).",
            "echo 0-3 > /proc/irq/130/smp_affinity_list, for each of them and at each start.",
        ),
        "cpus-kernel-threads": (
            "In 2 s, kernel threads ran on dedicated CPUs: kcompactd0 (7).",
            "taskset -pc 0-3 40, for each of them and at each start; for kworker the mask of "
            "CPUs 0-3 in /sys/devices/virtual/workqueue/cpumask.",
        ),
        "cpus-ticking": (
            "The tick does not stop on dedicated CPUs 4-7, though each runs one vCPU and no "
            "other thread.",
            "echo 1 > /sys/kernel/tracing/events/timer/tick_stop/enable; the lines of "
            "/sys/kernel/tracing/trace name the dependency= that keeps it.",
        ),
        "irqbalance-unbanned": (
            "irqbalance may move interrupts to dedicated CPUs 4-7.",
            "Take IRQBALANCE_BANNED_CPULIST and IRQBALANCE_BANNED_CPUS out of "
            "/etc/default/irqbalance (/etc/sysconfig/irqbalance), and systemctl restart "
            "irqbalance: it then leaves isolated CPUs alone.",
        ),
        "halt-polling": (
            "KVM does not poll for a vCPU that waits: halt_poll_ns is 0.",
            "echo 200000 > /sys/module/kvm/parameters/halt_poll_ns, and take halt_poll_ns=0 out "
            "of modprobe.d and the kernel's command line.",
        ),
        "numa-balancing": (
            "kernel.numa_balancing is 1.",
            "sysctl -w kernel.numa_balancing=0, and for each start nova-hpc prepare --write /.",
        ),
    }


# --- which CPUs are judged ----------------------------------------------------------------


@pytest.mark.parametrize(("name", "word"), [("isolated", "isolcpus"), ("nohz_full", "nohz_full")])
@pytest.mark.parametrize("value", ["", "(null)"])
def test_a_kernel_without_the_words(tree, name, word, value, monkeypatch):
    """One finding says it; what follows from it is not counted."""
    threaded, _ = FAULTS["cpus-kernel-threads"]
    threaded(tree)
    tree.put(f"{CPU}/{name}", value)
    monkeypatch.setattr(facts_quiet, "sleep", lambda seconds: pytest.fail("two readings"))
    (found,) = look(tree).values()
    assert found.check == "cpus-not-isolated"
    assert f" in {word}: {cpuset.format_list(tree.dedicated)}." in found.seen
    # The restart that is due is said by another finding.
    assert look(tree, not_booted=(f"{word}=1",)) == {}
    # A kernel that does not say it is unknown.
    tree.broken.add(f"{CPU}/{name}")
    tree.put(f"{CPU}/{name}", "")
    monkeypatch.setattr(facts_quiet, "sleep", tree.wait)
    assert "cpus-not-isolated" not in look(tree)


def test_a_host_that_is_not_declared(tree):
    """An operator who isolates CPUs otherwise wants them quiet; without that, nothing is wished."""
    for check in ("cpus-interrupted", "cpus-kernel-threads", "cpus-ticking"):
        FAULTS[check][0](tree)
    found = {"cpus-interrupted", "cpus-kernel-threads", "cpus-ticking"}
    assert set(look(tree, declared=False)) == found
    # The operator's own isolation without nohz_full: the tick is meant.
    tree.put(f"{CPU}/nohz_full", "(null)")
    assert set(look(tree, declared=False)) == found - {"cpus-ticking"}
    tree.put(f"{CPU}/isolated", "")
    assert look(tree, declared=False) == {}


def test_counters_of_a_capture_do_not_go_on(tree, monkeypatch):
    monkeypatch.setattr(facts_quiet, "sleep", lambda seconds: pytest.fail("two readings"))
    for make, _ in FAULTS.values():
        make(tree)
    assert set(look(tree, here=False)) == {"halt-polling", "numa-balancing"}
    assert look(tree, dedicated=frozenset()) == {}


def test_the_cpu_of_the_boot_keeps_its_work(tree):
    assert look(tree, dedicated=tree.dedicated | {0}) == {}


def test_an_interrupt_that_has_moved_away_is_no_fault(tree):
    FAULTS["cpus-interrupted"][0](tree)
    tree.direct(NVME, tree.of_host)
    assert look(tree) == {}
    # A timer of Arm is on each CPU, and is directed to none.
    tree.direct(NVME, ())
    assert look(tree) == {}


def test_a_guest_that_sleeps_uses_the_timer(tree):
    FAULTS["cpus-ticking"][0](tree)
    tree.guest = 0
    assert look(tree) == {}


@pytest.mark.parametrize(
    ("environment", "banned"),
    [
        ("IRQBALANCE_BANNED_CPULIST=0-1023", True),
        ("IRQBALANCE_BANNED_CPUS=" + ",".join(["ffffffff"] * 8), True),
        ("IRQBALANCE_BANNED_CPUS=1", False),
        ("IRQBALANCE_BANNED_CPULIST=none", True),  # unknown
        ("", True),
    ],
)
def test_the_ban_list_of_irqbalance(tree, environment, banned):
    tree.environment = f"A=B\0{environment}\0"
    assert look(tree).keys() == (set() if banned else {"irqbalance-unbanned"})


# --- /proc/interrupts ---------------------------------------------------------------------


def test_an_offline_cpu_has_no_column():
    text = "           CPU0       CPU2       CPU7\n 31:  5  6  7  IO-APIC   4-edge  a, b\nERR:  9"
    rows = checks_quiet.parse_interrupts(text, frozenset({1, 2, 7}))
    assert rows == {"31": Interrupt("IO-APIC 4-edge a, b", {2: 6, 7: 7})}


@pytest.mark.parametrize("text", ["", "\n 31: 5", "CPU0 CPUx\n 31: 5 6", "31: 5 6 7\n"])
def test_a_table_without_a_header(text):
    with pytest.raises(ValueError, match="no line with the CPUs"):
        checks_quiet.parse_interrupts(text, frozenset({0}))


@given(
    st.dictionaries(st.integers(0, 999), st.tuples(*[st.integers(0, 9)] * 41), max_size=4),
    CPUS.filter(bool),
    CPUS,
)
def test_the_table_is_read_as_it_is_written(rows, online, cpus):
    columns = sorted(online)
    lines = [" ".join(["     ", *(f"CPU{cpu}" for cpu in columns)])]
    for label, counts in rows.items():
        lines.append(f"{label}: {' '.join(str(counts[cpu]) for cpu in columns)}  chip  7-edge x")
    found = checks_quiet.parse_interrupts("\n".join(lines), cpus)
    assert found == {
        str(label): Interrupt("chip 7-edge x", {cpu: counts[cpu] for cpu in online & cpus})
        for label, counts in rows.items()
    }


_COUNTS = st.dictionaries(st.integers(0, 6), st.integers(0, 3), max_size=6)
_LABELS = st.sampled_from([NVME, ADAPTER, "LOC"])


@given(st.dictionaries(_LABELS, st.tuples(_COUNTS, _COUNTS)))
def test_fired_interrupts_against_brute_force(rows):
    before, after = (
        HostCounters(at, {label: Interrupt("dev", pair[at]) for label, pair in rows.items()})
        for at in (0, 1)
    )
    expected = {}
    for label in (NVME, ADAPTER):
        old, new = rows.get(label, ({}, {}))
        fired = [c for c in range(7) if c in old and c in new and new[c] > old[c]]
        if fired:
            expected[label] = frozenset(fired)
    assert checks_quiet.find_fired_interrupts(before, after) == expected


def test_a_number_of_another_device_is_unknown():
    before = HostCounters(
        0, {NVME: Interrupt("nvme0q1", {1: 5}), GUEST: Interrupt("vfio-msi", {1: 5})}
    )
    after = HostCounters(1, {NVME: Interrupt("mlx5", {1: 9}), GUEST: Interrupt("vfio-msi", {1: 9})})
    assert checks_quiet.find_fired_interrupts(before, after) == {}


def test_a_thread_is_the_same_by_its_start():
    before, after = KernelThread("a", 1, 5), KernelThread("b", 1, 9)
    assert (
        checks_quiet.find_run_threads(
            HostCounters(0, threads={(7, 1): before}),
            HostCounters(1, threads={(7, 2): after, (8, 1): after}),
        )
        == {}
    )


def test_this_machine():
    """The kernel of whoever runs this writes a table that is read."""
    tree = FileTree(facts_quiet.Path("/"))
    online = cpuset.parse_list(tree.text(f"{CPU}/online") or "0")
    rows = facts_quiet.read_interrupts(tree, online)
    assert rows
    assert all(row.counts.keys() == online for row in rows.values())
