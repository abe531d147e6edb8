# SPDX-License-Identifier: Apache-2.0
"""No word is added to the kernel's command line that switches something of the operator's off."""

import re
from pathlib import Path

import pytest

from nova_hpc_tools.adopt import host_files
from nova_hpc_tools.main import main
from nova_hpc_tools.site import kernel_options, kernel_words
from tests.nodes import states
from tests.nodes.write import write
from tests.unit.node_files import put
from tools.wheels import list_production_folders

SNP = "amd_iommu=on iommu=nopt mem_encrypt=on kvm_amd.sev=1 kvm_amd.sev_es=1 kvm_amd.sev_snp=1"
PACKAGES = Path(__file__).parents[3]


@pytest.fixture
def node(tmp_path):
    """An AMD node; what prepare writes into it, and what the doctor finds there."""

    class Node:
        root = write(states.epyc(), tmp_path / "node")
        home = tmp_path / "home"

        def prepare(self):
            self.home.mkdir(exist_ok=True)
            (self.root / "etc/default/grub.d").mkdir(parents=True, exist_ok=True)
            (self.root / "etc/default/grub").touch()
            (self.home / "node.yaml").write_text(
                "schema: nova-hpc/node\nversion: 1\nhugepages: {1G: 100}\n"
            )
            words = ["prepare", "--root", self.root, "--config-dir", self.home, "--write"]
            more = ["--declaration", self.home / "node.yaml"]
            assert main(list(map(str, [*words, self.root, *more]))) == 0
            path = self.root / host_files.GRUB
            text = path.read_text() if path.exists() else ""
            return re.findall(r'LINUX ([^"]*)"', text)

        def doctor(self):
            words = ["doctor", "--root", self.root, "--config-dir", self.home, "-f", "json"]
            main(list(map(str, words)))

    return Node()


def test_a_host_with_snp_keeps_it(node, capsys):
    put(node.root, "/proc/cmdline", f"root=/dev/sda1 {SNP}")
    put(node.root, "/sys/module/kvm_amd/parameters/sev_snp", "Y")
    for group in (node.root / "sys/kernel/iommu_groups").iterdir():
        (group / "type").write_text("DMA\n")
    assert node.prepare() == ["hugepagesz=1G hugepages=200"]
    out = capsys.readouterr().out
    assert "# iommu=pt is not added to the kernel's command line: iommu=nopt (/proc/cmdline)" in out
    node.doctor()
    assert "iommu" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/cmdline", "iommu=nopt"),
        ("/proc/cmdline", "iommu=soft,nopt quiet"),
        ("/proc/cmdline", "iommu.passthrough=0"),
        ("/proc/cmdline", "kvm-amd.sev_snp=1"),
        ("/proc/cmdline", "mem_encrypt=on"),
        ("/proc/cmdline", "amd_iommu=off"),
        ("/etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT='quiet iommu=nopt' # ours"),
        ("/etc/default/grub.d/50-snp.cfg", 'GRUB_CMDLINE_LINUX="kvm_amd.sev_snp=1"'),
        ("/etc/kernel/cmdline", "root=/dev/sda1 mem_encrypt=on"),
        ("/etc/modprobe.d/kvm.conf", "options kvm_amd sev=1 \\\n  sev_snp=1"),
        ("/usr/lib/modprobe.d/kvm.conf", "options kvm-amd sev_snp=Y"),
        ("/sys/module/kvm_amd/parameters/sev_snp", "Y"),
    ],
)
def test_passthrough_is_excluded(node, path, text, capsys):
    put(node.root, path, text)
    assert node.prepare() == ["hugepagesz=1G hugepages=200"]
    assert "iommu=pt is not added to the kernel's command line: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/cmdline", "iommu=soft kvm_amd.sev_snp=0 mem_encrypt=off"),
        ("/proc/cmdline", "quiet -- iommu=nopt"),
        ("/proc/cmdline", 'dyndbg="iommu=nopt +p"'),
        ("/etc/modprobe.d/kvm.conf", "# options kvm_amd sev_snp=1\noptions kvm sev_snp=1"),
        ("/etc/modprobe.d/kvm.conf.save", "options kvm_amd sev_snp=1"),
        ("/sys/module/kvm_amd/parameters/sev_snp", "N"),
    ],
)
def test_nothing_excludes_it(node, path, text, capsys):
    put(node.root, path, text)
    assert node.prepare() == ["iommu=pt hugepagesz=1G hugepages=200"]
    assert "not added" not in capsys.readouterr().out


def test_a_file_of_the_first_directory_hides_the_others(node):
    put(node.root, "/etc/modprobe.d/kvm.conf", "")
    put(node.root, "/usr/lib/modprobe.d/kvm.conf", "options kvm_amd sev_snp=1")
    assert node.prepare() == ["iommu=pt hugepagesz=1G hugepages=200"]


def test_a_command_line_that_cannot_be_read_excludes(node, capsys):
    (node.root / "proc/cmdline").mkdir()
    assert node.prepare() == ["hugepagesz=1G hugepages=200"]
    assert "it is unknown whether a setting excludes it" in capsys.readouterr().out


def test_words_of_before_go_and_a_second_run_changes_nothing(node, capsys):
    assert node.prepare() == ["iommu=pt hugepagesz=1G hugepages=200"]
    put(node.root, "/proc/cmdline", "iommu=pt hugepagesz=1G hugepages=200 kvm_amd.sev_snp=1")
    assert node.prepare() == ["hugepagesz=1G hugepages=200"]
    capsys.readouterr()
    node.prepare()
    assert "Nothing to do." in capsys.readouterr().out


def test_pages_that_the_kernel_would_not_reserve(node, capsys):
    put(node.root, "/proc/cmdline", "hugetlb_cma=10G")
    assert node.prepare() == ["iommu=pt"]
    assert "hugetlb_cma=10G (/proc/cmdline)" in capsys.readouterr().out
    # tmpfiles.d makes them all the same.
    assert "hugepages-1048576kB" in (node.root / host_files.TMPFILES).read_text()


def test_all_words_are_in_the_table():
    """Whatever looks like a word in code that writes or advises one comes from the table."""
    words = r"(?:intel_iommu=o|iommu=(?:no)?pt|iommu\.passthrough=\d|hugepagesz=|aspm\.policy=)"
    word = re.compile(rf"(?<![\w{{]){words}")
    found = set()
    for package in list_production_folders():
        for path in sorted((PACKAGES / package).rglob("*.py")):
            if word.search(path.read_text(encoding="utf-8")):
                found.add(path.name)
    assert found <= {"kernel_words.py", "checks_host.py", "check_cures.py"}
    for words in kernel_words.IOMMU_WORDS.values():
        assert {*words} <= kernel_words.EXCLUSIONS.keys()


def test_a_command_line_is_split_as_the_kernel_does():
    text = 'a b="c d" e="f  g"h -- i'
    assert kernel_options.split_command_line(text) == ["a", 'b="c d"', 'e="f  g"h']
