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
from nova_hpc_tools.fabric import capacity_file
from nova_hpc_tools.main import main


def planned(fabric: FabricMap, capacity: Mapping[str, int], *words: object) -> dict[str, Any]:
    """Run the command on this map and capacity."""
    with tempfile.TemporaryDirectory() as folder:
        where, what = Path(folder, "map.json"), Path(folder, "capacity.csv")
        where.write_text(fabric_map.write_fabric_map(fabric))
        what.write_text("\n".join(capacity_file.format_capacity_lines(capacity)))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            argv = ["fabric", "plan", "--map", str(where), "--capacity", str(what)]
            status = main([*argv, *map(str, words), "-f", "json"])
    if status not in (0, 1):
        raise AssertionError(err.getvalue())
    found: dict[str, Any] = json.loads(out.getvalue())
    return found
