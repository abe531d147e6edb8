# SPDX-License-Identifier: Apache-2.0
"""Whole creates in Nova's own in-process stack, with and without this project.

Runs in a process of its own (``python -m benchmarks.creates``): Nova's
functional tests choose how the whole process does its threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure

PART = "create of servers"


def measured(hosts: int, servers: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each burst, with nova-hpc ("ours") and without ("stock")."""
    # The project's conftest adapts Nova's test classes, and comes first.
    from tests.functional import conftest  # noqa: F401, I001
    from tests.functional import base, fixtures

    class _Creates(base.HpcServersTest):
        """Not a test: the base of the functional tests, used for measurements."""

        HOSTS = 4
        SERVERS = 8
        ROUNDS = 3
        found: dict[str, list[float]]

        def runTest(self) -> None:
            for index in range(self.HOSTS):
                self.start_host(f"host{index}", fixtures.two_switches(gpus=4))
            alias = {"pci_passthrough:alias": "gpu:2"}
            flavors = {"ours": alias | {"hpc:affinity": "switch"}, "stock": alias}
            self.flavors = {side: self.make_flavor(specs) for side, specs in flavors.items()}
            sides = {"ours": lambda: self._burst("ours"), "stock": lambda: self._burst("stock")}
            type(self).found = measure.interleave(sides, self.ROUNDS)

        def _burst(self, side: str) -> float:
            """Seconds from the first request until the last server is ACTIVE."""
            self.restart_scheduler(with_filter=side == "ours")
            begin = time.perf_counter()
            body: Any = {
                "name": "burst",
                "imageRef": "155d900f-4e14-4e4c-a73d-069cbf4541e6",
                "flavorRef": self.flavors[side],
                "networks": "none",
            }
            made = [self.api.post_server({"server": body})["id"] for _ in range(self.SERVERS)]
            waiting = set(made)
            while waiting:
                states = {one["id"]: one["status"] for one in self.api.get_servers()}
                assert "ERROR" not in {states[one] for one in made}, states
                waiting = {one for one in made if states[one] != "ACTIVE"}
                time.sleep(0.02)
            seconds = time.perf_counter() - begin
            for one in made:
                self._delete_server({"id": one})
            return seconds

    case = type("Creates", (_Creates,), {"HOSTS": hosts, "SERVERS": servers, "ROUNDS": rounds})
    result = unittest.TestResult()
    case().run(result)
    for _, text in [*result.errors, *result.failures]:
        raise RuntimeError(text)
    return dict(case.found)


def run(hosts: int, servers: int, rounds: int) -> Iterator[measure.Row]:
    """The rows of whole creates.

    :raises RuntimeError: Nova's stack failed; the text contains its output.
    """
    names = {k: v for k, v in os.environ.items() if k != "OS_NOVA_DISABLE_EVENTLET_PATCHING"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, *map(str, (hosts, servers, rounds))],
        capture_output=True, text=True, env=names, cwd=Path(__file__).parents[1], check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    for side, name in (("ours", "with nova-hpc"), ("stock", "stock Nova")):
        rates = [servers / seconds for seconds in found[side]]
        what = f"{servers} servers of 2 GPUs on {hosts} hosts, {name}"
        yield measure.row(PART, what, "servers/s", rates)
    yield measure.row(
        PART,
        "servers per second, with nova-hpc / stock Nova",
        "x",
        measure.ratios(found["stock"], found["ours"]),
    )


if __name__ == "__main__":
    print(json.dumps(measured(*map(int, sys.argv[1:]))))
