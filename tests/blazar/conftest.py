# SPDX-License-Identifier: Apache-2.0
"""A small cloud below Blazar's manager."""

from collections.abc import Iterator

import pytest

from tests.blazar.blazar_world import OURS, BlazarWorld, open_world


@pytest.fixture
def world() -> Iterator[BlazarWorld]:
    """Two leaves of one block, each with two hosts of eight GPUs."""
    with open_world("hpc.cluster", OURS) as opened:
        opened.add_leaf("l1", "b1", {"n1": 8, "n2": 8})
        opened.add_leaf("l2", "b1", {"n3": 8, "n4": 8})
        dedicated = {"hw:cpu_policy": "dedicated", "hpc:fabric": "leaf"}
        for gpus in (2, 4, 8):
            opened.cloud.add_flavor(
                f"g{gpus}", 16, 1024, **{"pci_passthrough:alias": f"gpu:{gpus}"}, **dedicated
            )
        yield opened
