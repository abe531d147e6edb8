# SPDX-License-Identifier: Apache-2.0
"""Following configure, prepare and doctor leaves a node on which nova-compute starts.

On every machine of the tree, with words of the kernel's command line and CPUs that Nova has
switched off: nothing that was on is off afterwards, and a second run has nothing to do. What the
kernel and nova-compute do is said here again, apart from the code under test.
"""

import configparser
import itertools
import json
import re

import pytest

from nova_hpc.topology import cpuset, sysfs
from nova_hpc_tools.adopt import host_files
from nova_hpc_tools.main import main
from nova_hpc_tools.site import nova_rules
from tests.nodes import states
from tests.nodes.catalogue import NODES
from tests.nodes.reported import REPORTED
from tests.nodes.write import write
from tests.unit.node_files import put, snapshot

MACHINES = {**NODES, **REPORTED, "plain": states.plain(), "epyc": states.epyc()}
WORDS = (
    "",
    "iommu=nopt",
    "iommu.passthrough=0",
    "kvm_amd.sev_snp=1 mem_encrypt=on",
    "kvm-amd.sev_snp=1",
    "mem_encrypt=on",
    "iommu=off",
    "intel_iommu=off",
    "amd_iommu=off",
    "hugetlb_cma=4G",
    "iommu=pt intel_iommu=on",
    "pcie_aspm=off",
)
CPUS = ("on", "dedicated off", "one thread of each NUMA node")
#: Each machine has some words and one state; together they have all pairs.
CASES = [
    (name, words, CPUS[(number + place) % len(CPUS)])
    for number, name in enumerate(sorted(MACHINES))
    for place, words in enumerate(
        itertools.islice(itertools.cycle(WORDS), number % len(WORDS), number % len(WORDS) + 2)
    )
]
POWER = "[libvirt]\ncpu_power_management = true\n"


def test_all_words_and_states_are_tried():
    assert {words for _, words, _ in CASES} == {*WORDS}
    assert {state for *_, state in CASES} == {*CPUS}
    assert {name for name, *_ in CASES} == MACHINES.keys()


def kernel_features(words):
    """What a kernel that is started with *words* has, by its own rules."""
    translated, on, snp = True, True, False
    for word in words:
        name, _, value = word.replace("-", "_").partition("=")
        for part in value.split(","):
            if name == "iommu" and part in ("pt", "nopt"):
                translated = part == "nopt"
            if name in ("iommu", "intel_iommu", "amd_iommu") and part in ("on", "off"):
                on = part == "on"
        if name == "iommu.passthrough":
            translated = value == "0"
        if name == "kvm_amd.sev_snp":
            snp = value == "1"
    return {
        "chosen translation": translated
        or not {"iommu=nopt", "iommu.passthrough=0", "mem_encrypt=on"} & {*words},
        "IOMMU off": not on,
        "SNP": snp and on and translated,
    }


def read_sets(folder):
    """The sets of CPUs in the node's file."""
    text = snapshot(folder)["nova-hpc-compute.conf"]
    config = configparser.ConfigParser(strict=False, interpolation=None)
    config.read_string(re.sub(r"^device_spec = .*\n", "", text, flags=re.M))
    return {
        name: cpuset.parse_list(config.get("compute", name, fallback=""))
        for name in ("cpu_shared_set", "cpu_dedicated_set")
    }


def nova_starts(node, sets, lines):
    """As nova/virt/libvirt/driver.py and pci/whitelist.py judge, with power management."""
    present = node.cpus | node.unplaced_cpus
    return (
        sets["cpu_dedicated_set"] <= {*range(max(present) + 1)}
        and sets["cpu_shared_set"] <= node.cpus - node.offline_cpus
        and not sets["cpu_shared_set"] & sets["cpu_dedicated_set"]
        and not list(nova_rules.placement_refusals_of(lines, node))
        and not list(nova_rules.driver_refusals(lines, node))
    )


#: Nodes with NVSwitches need this word.
SWITCHES = "offer_switches: false\n"


@pytest.mark.parametrize(("name", "words", "state"), CASES)
def test_advice_harms_nothing(name, words, state, tmp_path, capsys):
    root, folder, conf = tmp_path / "node", tmp_path / "written", tmp_path / "nova.conf"
    write(MACHINES[name], root)
    folder.mkdir()
    conf.write_text(POWER)
    put(root, "/proc/cmdline", f"root=/dev/sda1 {words}")
    put(root, "/etc/default/grub", "")
    (root / "etc/default/grub.d").mkdir()
    (folder / "node.yaml").write_text(
        "schema: nova-hpc/node\nversion: 1\nhugepages: {1G: 2}\n" + SWITCHES
    )

    def run(command, *more):
        told = ["--root", root, "--config-file", conf, "--config-dir", folder]
        status = main(
            list(map(str, [command, *told, "--declaration", folder / "node.yaml", *more]))
        )
        return status, *capsys.readouterr()

    status, out, err = run("configure", "--write", folder)
    assert status == 0, err
    if "nova-hpc-compute.conf" not in snapshot(folder):
        return  # it has no device for servers
    before, sets = snapshot(folder), read_sets(folder)
    if state == "dedicated off":
        states.switch_cpus_off(root, sysfs.read_sysfs_node(root).cpus - sets["cpu_dedicated_set"])
    elif state != "on":
        first = {min(numa.cpus) for numa in sysfs.read_sysfs_node(root).numa_nodes if numa.cpus}
        states.switch_cpus_off(root, first | sets["cpu_shared_set"], as_kernel=False)
    status, out, err = run("configure", "--write", folder)
    assert (status, "Nothing to do." in out) == (0, True), err
    assert snapshot(folder) == before

    status, out, err = run("prepare", "--write", root)
    assert status == 0, err
    grub = root / host_files.GRUB
    added = re.findall(r'LINUX ([^"]*)"', grub.read_text())[0].split() if grub.exists() else []
    earlier, later = kernel_features(words.split()), kernel_features([*words.split(), *added])
    assert [what for what, on in earlier.items() if on and not later[what]] == []
    assert "Nothing to do." in run("prepare", "--write", root)[1]

    node = sysfs.read_sysfs_node(root)
    lines = re.findall(r"^device_spec = (.*)$", before["nova-hpc-compute.conf"], re.M)
    assert nova_starts(node, sets, lines)
    _, out, _ = run("doctor", "-f", "json")
    found = json.loads(out)["findings"]
    checks = {each["check"] for each in found}
    assert not checks & {"tags-stale", "nova-refuses", "driver-ids", "prepare-drift"}
    assert not {check for check in checks if check.startswith("cpus-")} - {"cpus-slow"}
    advised = " ".join(each["cure"] for each in found)
    if not earlier["chosen translation"] or "sev_snp" in words or "mem_encrypt" in words:
        assert "iommu=pt" not in advised
