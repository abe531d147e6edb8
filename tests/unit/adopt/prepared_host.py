# SPDX-License-Identifier: Apache-2.0
"""A host without files of ours, ``nova-hpc prepare`` for it, and what it has written there."""

import stat

import pytest

from nova_hpc_tools.main import main
from tests.unit.node_files import put


@pytest.fixture
def debian(tmp_path):
    """The root of a host with GRUB and initramfs-tools."""
    root = tmp_path / "root"
    for name in ("etc/initramfs-tools", "etc/default/grub.d"):
        (root / name).mkdir(parents=True)
    (root / "etc/default/grub").touch()
    return root


@pytest.fixture
def prepare(machine, at_home, capsys):
    put(machine, "/proc/cpuinfo", "processor : 0\nvendor_id : AuthenticAMD")
    put(machine, "/sys/firmware/acpi/tables/IVRS", "IVRS")

    def run(*words, root=machine):
        mine = ["prepare", "--root", root]
        declaration = at_home.folder / "node.yaml"
        if root == machine and declaration.exists():
            mine += ["--declaration", declaration]
        status = main(list(map(str, [*mine, *words])))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    run.configure = at_home
    return run


def state(root):
    return {
        str(path.relative_to(root)): (path.read_text(), stat.S_IMODE(path.stat().st_mode))
        for path in root.rglob("*")
        if path.is_file()
    }


def rules(text):
    """udev's rules as sets of their terms."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [frozenset(line.split(", ")) for line in lines]
