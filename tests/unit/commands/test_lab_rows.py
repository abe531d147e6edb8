# SPDX-License-Identifier: Apache-2.0
"""Every command is run on the lab's cloud of two nodes: none is added without a row there."""

from __future__ import annotations

from tests.lab import test_commands as lab
from tools.wheels import read_entry_points

ROWS = (*lab.READING, *lab.CARE, *lab.OWNERS, *lab.OPERATORS, *lab.CHANGES)
#: What the lab's fixtures and its tests run themselves, lab demo in tests/lab/test_cloud.py.
ELSEWHERE = {"hpc cluster create", "lab up", "lab ssh", "lab down", "lab demo"}
#: It only writes files, beside a checkout of another project: tests/unit/requirements.
ELSEWHERE |= {"requirements suite"}
#: It says what is in the code, wherever it runs: tests/unit/doctor/test_advice.py.
ELSEWHERE |= {"help check"}
#: The refusal of unknown words and the script of a shell: tests/unit/commands/test_completion.py.
ELSEWHERE |= {"hpc", "hpc complete"}
#: Beside a real subnet manager, in tests/fabric/test_agent.py; and what needs its files, or
#: adapters of InfiniBand, which no lab has: over files in a folder, in
#: tests/unit/fabric/test_ports_command.py and tests/unit/metrics/test_fabric_metrics.py.
OF_FABRIC = {"fabric check", "fabric ports", "metrics fabric"}
#: They need an image with an engine: against Nova's API, in tests/functional/test_gpu_client.py.
OF_GPU = {f"hpc gpu share {verb}" for verb in ("create", "delete", "list", "show")}
OF_GPU |= {"hpc gpu attach", "hpc gpu detach"}

#: Not in the lab yet: against Nova's API, in tests/functional/test_cluster_client_verbs.py.
OF_CLUSTERS = {
    f"hpc cluster {verb}" for verb in ("stop", "start", "shelve", "unshelve", "reboot", "rebuild")
}
#: The same, in test_cluster_client_adopt.py and test_cluster_snapshots.py.
OF_CLUSTERS.add("hpc cluster adopt")
OF_CLUSTERS |= {"hpc cluster snapshot", "hpc snapshot list", "hpc snapshot delete"}


def test_each_command_has_a_row() -> None:
    points = read_entry_points()
    names = {
        name.replace("_", " ")
        for group in ("nova_hpc.command", "openstack.hpc.v1")
        for name in points[group]
    }
    assert {"explain", "device list", "hpc cluster scale", "lab status"} <= names
    typed = {row.words for row in ROWS} | ELSEWHERE | OF_FABRIC | OF_GPU | OF_CLUSTERS
    # A command whose name begins another one's is not found in that one's row.
    longest = {
        max((name for name in names if f"{words} ".startswith(f"{name} ")), key=len)
        for words in typed
    }
    assert names - longest == set()
