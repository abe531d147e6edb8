# SPDX-License-Identifier: Apache-2.0
"""The commands of the page on undoing, on files that configure has written."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology import sysfs
from nova_hpc_tools.main import main
from nova_hpc_tools.site import spec_entries
from tests.nodes.write import write
from tests.unit.node_files import libvirt  # noqa: F401
from tests.unit.nodes.test_disks import DISKS, ERASE, machine

PAGE = Path(__file__).parents[3] / "docs/source/admin/undo.rst"
COMMANDS = re.findall(r"^   (sed -i '.*' \$files)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("way", sorted(ERASE))
def test_no_disk_is_left_to_stock_nova(tmp_path, way):
    """Before: the tags went, the entries of disks stayed, and nobody erased them."""
    root, out = write(machine(), tmp_path / "disks"), tmp_path / "out"
    role = {"role": "nvme", "vendor_id": "144d", "class": "0108"}
    lines = [f"device_role = {each}" for each in (*DEFAULT_ROLES, json.dumps(role))]
    config = tmp_path / "nova.conf"
    config.write_text("\n".join(["[hpc]", *lines, *ERASE[way], ""]))
    out.mkdir()
    words = ["configure", "--root", root, "--config-file", config, "--write", out]
    assert main(list(map(str, words))) == 0
    node = sysfs.read_sysfs_node(root)
    assert set(_offered(out, node)) & set(DISKS)
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        files = " ".join(map(str, out.glob("nova-hpc-*.conf")))
        subprocess.run(["sh", "-c", command.replace("$files", files)], check=True)
    text = (out / "nova-hpc-compute.conf").read_text()
    assert "hpc_" not in text.split("device_spec", 1)[1]
    assert "libvirt.LibvirtDriver" in text
    left = _offered(out, node)
    assert left
    assert not set(left) & set(DISKS)


def _offered(out, node):
    """Addresses that an entry of device_spec matches."""
    entries = [
        spec_entries.read_spec_entry(line.partition(" = ")[2])
        for line in (out / "nova-hpc-compute.conf").read_text().splitlines()
        if line.startswith("device_spec = ")
    ]
    return [
        function.address
        for function in node.functions
        if spec_entries.first_matching_entry(entries, function) is not None
    ]
