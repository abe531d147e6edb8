# SPDX-License-Identifier: Apache-2.0
"""``quiet_cpus`` of the declaration: the start of a host that keeps off the dedicated CPUs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import cpuset
from nova_hpc.topology.model import Node, NumaNode
from nova_hpc_tools.adopt import host_files, quiet_host
from nova_hpc_tools.adopt.quiet_host import QuietCpus
from nova_hpc_tools.site.kernel_options import RUNNING, KernelOption, KernelOptions
from tests.unit.adopt.prepared_host import state
from tests.unit.node_files import put

#: configure gives the second of two CPUs to servers.
WORDS = "isolcpus=managed_irq,domain,1 nohz_full=1 rcu_nocbs=1 irqaffinity=0"
UNSET = (
    "# quiet_cpus has no effect yet: [compute]cpu_dedicated_set is not set. Run nova-hpc "
    "configure --write, then nova-hpc prepare again.\n"
)


@pytest.fixture
def quiet(prepare, debian):
    """A configured node that declares quiet CPUs; what prepare writes for it."""

    def run(*words, **wishes):
        prepare.configure.declare(**{"quiet_cpus": True, **wishes})
        status, out, err = prepare(*(words or ("--write", debian)))
        assert (status, err) == (0, "")
        return out, {name: text for name, (text, _) in state(debian).items()}

    run.configure = prepare.configure
    assert prepare.configure()[0] == 0
    return run


def line_of(files):
    (line,) = re.findall(r'LINUX (.*)"', files[host_files.GRUB])
    return line


def test_what_a_quiet_host_gets(quiet):
    _, files = quiet(hugepages={"1G": 6})
    assert line_of(files) == f"iommu=pt hugepagesz=1G hugepages=6 {WORDS}"
    assert files[host_files.SYSTEMD].splitlines()[1:] == ["[Manager]", "CPUAffinity=0"]
    cpu = "/sys/devices/system/cpu/cpu1"
    assert files[host_files.TMPFILES].splitlines()[-2:] == [
        f"w {cpu}/power/pm_qos_resume_latency_us - - - - 10",
        f"w {cpu}/cpufreq/scaling_governor - - - - performance",
    ]
    assert files[host_files.SYSCTL].splitlines()[-4:][1::2] == [
        "-vm.compaction_proactiveness = 0",
        "vm.stat_interval = 10",
    ]


def test_without_the_key_nothing_of_it_is_written(prepare, debian):
    assert prepare.configure()[0] == 0
    prepare("--write", debian)
    text = "".join(text for text, _ in state(debian).values())
    assert not re.search("isolcpus|nohz_full|CPUAffinity|pm_qos|compaction", text)
    assert not (debian / host_files.SYSTEMD).exists()


def test_a_second_run_changes_nothing_and_the_key_taken_out_removes_it(
    quiet, prepare, machine, debian
):
    before = state(debian)
    _, files = quiet()
    assert prepare("--write", debian)[1].endswith("\nNothing to do.\n")
    # The words of the running kernel are our own, also if they are of an earlier set.
    put(machine, "/proc/cmdline", WORDS.replace("1", "3"))
    assert prepare("--write", debian)[1].endswith("\nNothing to do.\n")
    quiet(quiet_cpus=None)
    assert line_of({name: text for name, (text, _) in state(debian).items()}) == "iommu=pt"
    assert host_files.SYSTEMD in files
    assert not (debian / host_files.SYSTEMD).exists()
    prepare("--write", debian, "--remove")
    assert state(debian) == before


def test_the_set_of_nova_is_the_only_list(quiet):
    """What another file of nova-compute says counts, and exclusions are Nova's."""
    quiet.configure.nova("[compute]\ncpu_dedicated_set = 0-1,^0\n")
    assert line_of(quiet()[1]).endswith(WORDS)
    for path in quiet.configure.folder.glob("*.conf"):
        path.write_text(re.sub(r"cpu_(dedicated|shared)_set.*", "", path.read_text()))
    quiet.configure.nova("[DEFAULT]\nhost = somewhere\n")
    out, files = quiet()
    assert UNSET in out
    assert line_of(files) == "iommu=pt"
    quiet.configure.nova("[compute]\ncpu_dedicated_set = 1-\n")
    assert "# quiet_cpus has no effect: '1-' is no set of CPUs.\n" in quiet()[0]


def test_the_cpu_of_the_boot(quiet):
    for path in quiet.configure.folder.glob("*.conf"):
        path.write_text(re.sub(r"cpu_(dedicated|shared)_set.*", "", path.read_text()))
    quiet.configure.nova("[compute]\ncpu_dedicated_set = 0-1\n")
    out, files = quiet()
    assert "# CPU 0 starts the host and keeps its work: take it out of [compute]" in out
    assert line_of(files).endswith(WORDS)
    quiet.configure.nova("[compute]\ncpu_dedicated_set = 0\n")
    assert "is 0, and the host needs CPUs beside it.\n" in quiet()[0]


@pytest.mark.parametrize("word", ["isolcpus=1", "nohz_full=1-3", "irqaffinity=0-1", "rcu_nocbs"])
def test_an_operator_with_an_own_list_keeps_it(quiet, machine, word):
    put(machine, "/etc/default/grub", f'GRUB_CMDLINE_LINUX="{word}"')
    out, files = quiet()
    assert f"{word} (/etc/default/grub): it is the operator's own list.\n" in out
    assert line_of(files) == "iommu=pt"


def test_a_word_that_is_there_already_is_no_other_list(quiet, machine):
    put(machine, "/etc/kernel/cmdline", f"root=/dev/sda1 {WORDS}")
    assert line_of(quiet()[1]) == f"iommu=pt {WORDS}"


def test_a_host_of_grubby(quiet, tmp_path):
    root = tmp_path / "rocky"
    for name in ("etc", "usr/sbin"):
        (root / name).mkdir(parents=True)
    (root / "usr/sbin/grubby").touch()
    out, _ = quiet("--write", root)
    assert f"Run now: grubby --update-kernel=ALL --args='iommu=pt {WORDS}'\n" in out
    assert (root / host_files.SYSTEMD).exists()


def test_a_host_without_devices_for_servers(quiet, debian):
    """Only its CPUs are prepared: no IOMMU, no VFIO."""
    left_out = ["0000:18:00.0", "0000:19:00.0"]
    _, files = quiet(left_out=[{"address": address} for address in left_out])
    assert line_of(files) == WORDS
    assert {name for name in files if name.endswith(("nova-hpc.conf", ".rules", ".cfg"))} == {
        *(host_files.SYSCTL, host_files.TMPFILES, host_files.GRUB, host_files.SYSTEMD)
    }


CPUS = st.frozensets(st.integers(0, 300), min_size=1)


@given(CPUS, CPUS, st.booleans())
def test_the_plan_against_brute_force(present, dedicated, spaces):
    node = Node("drawn", numa_nodes=(NumaNode(id=0, cpus=present),))
    comma = " , " if spaces else ","
    plan, notes = quiet_host.plan_quiet_cpus(node, comma.join(map(str, sorted(dedicated))))
    wanted = {cpu for cpu in range(1, 301) if cpu in present and cpu in dedicated}
    rest = {cpu for cpu in range(301) if cpu in present and cpu not in wanted}
    if not wanted or not rest:
        assert plan is None
        assert len(notes) == 1
        return
    assert plan == QuietCpus(frozenset(wanted), frozenset(rest))
    assert len(notes) == (0 in dedicated)
    words, excluded = quiet_host.choose_quiet_words(plan, KernelOptions())
    assert excluded == ()
    lists = dict(word.split("=") for word in words)
    head, _, isolated = lists["isolcpus"].partition(",domain,")
    assert head == "managed_irq"
    assert [cpuset.parse_list(text) for text in (isolated, lists["nohz_full"])] == [wanted] * 2
    assert cpuset.parse_list(lists["irqaffinity"]) == rest
    governors = "\n".join(quiet_host.quiet_tmpfiles_lines(plan))
    assert {int(cpu) for cpu in re.findall(r"cpu(\d+)/cpufreq", governors)} == wanted


def test_all_words_or_none():
    own = KernelOption("isolcpus", "7", "/etc/default/grub", "isolcpus=7")
    plan = QuietCpus(frozenset({1}), frozenset({0}))
    words, notes = quiet_host.choose_quiet_words(plan, KernelOptions((own,)))
    assert (words, len(notes)) == ((), 1)
    running = KernelOption("isolcpus", "7", RUNNING, "isolcpus=7")
    assert quiet_host.choose_quiet_words(plan, KernelOptions((running,)))[1] == ()
