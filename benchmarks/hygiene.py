# SPDX-License-Identifier: Apache-2.0
"""The cost of the checks of devices: a new reading of the node, and the start of a server.

The start is measured in Nova's functional stack, in a process of its own
(``python -m benchmarks.hygiene``): the seconds in Nova's own driver, and the seconds
that this project's driver adds around them.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import measure, sysfs_tree
from nova_hpc.topology import sysfs

PART = "device checks"


def refresh(gpus: int, adapters: int, functions: int, rounds: int) -> Iterator[measure.Row]:
    """The row for the reading of a whole node."""
    with tempfile.TemporaryDirectory(prefix="nova-hpc-") as folder:
        root = Path(folder)
        cards, virtual = sysfs_tree.build(root, gpus, adapters, functions)
        values = measure.repeat(sysfs.read_sysfs_node, [root] * rounds)
    what = f"inventory of {len(cards)} GPUs and {len(virtual)} VFs, read afresh"
    note = "files in a folder instead of sysfs"
    yield measure.row(
        PART, what, "ms", [value * 1000 for value in values], "under 100 ms", 100, note
    )


def run(switches: int, servers: int) -> Iterator[measure.Row]:
    """The rows of the start of servers with two GPUs and two VFs of each switch.

    :raises RuntimeError: Nova's stack failed; the text contains its output.
    """
    names = {k: v for k, v in os.environ.items() if k != "OS_NOVA_DISABLE_EVENTLET_PATCHING"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, str(switches), str(servers)],
        capture_output=True, text=True, env=names, cwd=Path(__file__).parents[1], check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    whole, nova = found["spawn"], found["nova's spawn"]
    xml, nova_xml = found["xml"], found["nova's xml"]
    # Our time around Nova's spawn, and our time around its _get_guest_xml inside.
    added = [1000 * (a - b + c - d) for a, b, c, d in zip(whole, nova, xml, nova_xml, strict=True)]
    count = 2 * switches
    server = f"a server with {count} GPUs and {count} VFs"
    yield measure.row(PART, f"{server}: checks and guest tree", "ms", added, "under 50 ms", 50)
    parts = {"Nova's spawn": [a - (c - d) for a, c, d in zip(nova, xml, nova_xml, strict=True)]}
    parts["Nova's _get_guest_xml"] = nova_xml
    for name, values in parts.items():
        yield measure.row(PART, f"{server}: {name}", "ms", [1000 * value for value in values])
        ratios = measure.ratios([value / 1000 for value in added], values)
        yield measure.row(PART, f"{server}: what is added / {name}", "x", ratios)


def measured(switches: int, servers: int) -> dict[str, list[float]]:
    """Seconds of each start: in Nova's driver, and in this project's around it."""
    # The project's conftest adapts Nova's test classes, and comes first.
    from tests.functional import conftest  # noqa: F401, I001
    from tests.functional import driver_base, fixtures
    from nova.virt.libvirt.driver import LibvirtDriver
    from virt_driver_patches.driver.hpc_libvirt import HpcLibvirtDriver

    times: dict[str, list[float]] = defaultdict(list)
    inside = threading.local()

    def timed(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*arguments: Any, **keywords: Any) -> Any:
            begin = time.perf_counter()
            try:
                return plain(*arguments, **keywords)
            finally:
                # Other callers than spawn write domains, too; count only calls inside of spawn.
                if name.endswith("spawn") or getattr(inside, "spawn", 0):
                    times[name].append(time.perf_counter() - begin)

        return call

    def spawning(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*arguments: Any, **keywords: Any) -> Any:
            inside.spawn = True
            try:
                return plain(*arguments, **keywords)
            finally:
                inside.spawn = False

        return call

    class _Starts(driver_base.DriverTest):
        """Not a test: the base of the functional tests, used for measurements."""

        def runTest(self) -> None:
            self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
            each = [
                fixtures.Switch(gpus=2, pfs=1, vfs=2, numa=number * 2 // switches)
                for number in range(switches)
            ]
            self.host("alpha", fixtures.Shape(tuple(each)))
            count = 2 * switches
            flavor = self.make_flavor(
                {
                    "pci_passthrough:alias": f"gpu:{count},vf:{count}",
                    "hpc:affinity": "host",
                    "hpc:guest_topology": "mirror",
                }
            )
            for _ in range(servers + 1):
                self._delete_server(self.boot(flavor))
                # The devices of the last server are clean again.
                self.update("alpha")

    with (
        mock.patch.object(LibvirtDriver, "spawn", timed("nova's spawn", LibvirtDriver.spawn)),
        mock.patch.object(
            LibvirtDriver, "_get_guest_xml", timed("nova's xml", LibvirtDriver._get_guest_xml)
        ),
        mock.patch.object(
            HpcLibvirtDriver, "_get_guest_xml", timed("xml", HpcLibvirtDriver._get_guest_xml)
        ),
        mock.patch.object(
            HpcLibvirtDriver, "spawn", spawning(timed("spawn", HpcLibvirtDriver.spawn))
        ),
    ):
        result = unittest.TestResult()
        _Starts().run(result)
    for _, text in [*result.errors, *result.failures]:
        raise RuntimeError(text)
    # The first start loads modules and libraries, so it does not count.
    return {name: values[1:] for name, values in times.items()}


if __name__ == "__main__":
    print(json.dumps(measured(*map(int, sys.argv[1:]))))
