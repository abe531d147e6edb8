# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric plan`` as anyone can ask it: two files and words in, its document out."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nova_hpc.fabric.model import FabricMap
from nova_hpc.wire import fabric_map
from nova_hpc_tools.main import main


def capacity_text(capacity: Mapping[str, int]) -> str:
    """A file of what fits on each host, as the command reads it."""
    return "\n".join(["host,fit", *(f"{host},{fit}" for host, fit in capacity.items())])


def planned(fabric: FabricMap, capacity: Mapping[str, int], *words: object) -> dict[str, Any]:
    """Run the command on this map and capacity."""
    with tempfile.TemporaryDirectory() as folder:
        where, what = Path(folder, "map.json"), Path(folder, "capacity.csv")
        where.write_text(fabric_map.write_fabric_map(fabric))
        what.write_text(capacity_text(capacity))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            argv = ["fabric", "plan", "--map", str(where), "--capacity", str(what)]
            status = main([*argv, *map(str, words), "-f", "json"])
    if status not in (0, 1):
        raise AssertionError(err.getvalue())
    found: dict[str, Any] = json.loads(out.getvalue())
    return found
