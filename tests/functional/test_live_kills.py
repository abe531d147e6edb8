# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed at each step of a live migration, at the source or the destination."""

from __future__ import annotations

import os

from tests.functional.live_kills import LiveKillWorld


class ProbeTest(LiveKillWorld):
    def test_probe(self) -> None:
        self.victim = os.environ["VICTIM"]
        self.copy_fails = "FAILS" in os.environ
        for number in map(int, os.environ["STEPS"].split(",")):
            found = self.kill(number)
            print(
                "\nRESULT",
                self.victim,
                found.number,
                found.step,
                "|",
                found.server,
                "|",
                found.moves,
                "| reset",
                found.reset,
            )
            for each in found.complaints:
                print("    -", each)
            if found.step is None:
                break
            if any(each.startswith("the end") for each in found.complaints):
                print("    BROKEN")
                break


class CellsProbeTest(ProbeTest):
    WITH_CELLS = True
