# SPDX-License-Identifier: Apache-2.0
"""A node saved with the command, and read again."""

from __future__ import annotations

import lzma
from pathlib import Path

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node
from nova_hpc_tools.inventory import node_archive
from nova_hpc_tools.main import main


def save(root: Path, target: Path, *options: str) -> bytes:
    """Save a node with the command; what the archive holds, unpacked."""
    assert main(["inventory", "--root", str(root), "--save", str(target), *options]) == 0
    return lzma.decompress(target.read_bytes())


def read(archive: Path) -> Node:
    return sysfs.read_tree(node_archive.load_node_archive(archive), "archive")
