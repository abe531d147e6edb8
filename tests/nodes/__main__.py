# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.nodes NAME DIRECTORY``: write a synthetic node, to look at it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.nodes.catalogue import NODES
from tests.nodes.write import write

parser = argparse.ArgumentParser(prog="python -m tests.nodes")
parser.add_argument("name", choices=sorted(NODES))
parser.add_argument("directory", type=Path, help="is made; must not be there yet")
arguments = parser.parse_args()
arguments.directory.mkdir(parents=True)
write(NODES[arguments.name], arguments.directory)
