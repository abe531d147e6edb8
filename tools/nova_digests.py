#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Write the digests of Nova's functions, after a person has read them.

The table is ``nova_hpc/from_nova/nova_digests.json``.

Run it beside each Nova, after its functions were read. The lines of the patches must be those
of the release that ``nova_hpc.from_nova.nova_sources.READ`` names::

    for each in 32 33 34; do
        PYTHONPATH=. .tox/functional-$each/bin/python tools/nova_digests.py
    done

Columns of other releases stay. A test compares the table with the installed Nova.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import nova
from nova import version

from nova_hpc.from_nova import contract, nova_sources, overridden
from nova_hpc.from_nova.patches import scheduler
from virt_driver_patches import patches
from virt_driver_patches.patches import overrides


def targets() -> list[str]:
    """Every function of Nova that we wrap, override or rely on."""
    listed = (*patches.ALL, *scheduler.ALL, *overrides.DRIVER, *overridden.SCHEDULER)
    return sorted({*(each.target for each in listed), *contract.RELIED_ON})


def renewed(release: int, folder: Path) -> str:
    """The table with the column of the Nova in *folder*.

    :raises SystemExit: a function is missing in this Nova.
    """
    trees: dict[str, ast.Module] = {}
    table = {}
    for target in targets():
        file = nova_sources.file_of(target)
        if file not in trees:
            trees[file] = ast.parse((folder.parent / file).read_text(encoding="utf-8"))
        now = nova_sources.digest_function(trees[file], target)
        if now is None:
            raise SystemExit(f"{target} is not there")
        row = {**nova_sources.DIGESTS.get(target, {}), release: now}
        table[target] = dict(sorted(row.items()))
    return json.dumps(table, indent=1) + "\n"


def main() -> None:
    """Write the table if the installed Nova is the release that was read."""
    running, release = version.version_string(), contract.running_nova_release()
    read = nova_sources.READ.get(release or 0)
    if release is None or running != read:
        raise SystemExit(f"Nova {running} is installed, and {read} was read: install that")
    nova_sources.TABLE.write_text(renewed(release, Path(nova.__file__).parent), encoding="utf-8")
    sys.stdout.write(f"{nova_sources.TABLE}: {len(targets())} functions of Nova {running}\n")


if __name__ == "__main__":
    main()
