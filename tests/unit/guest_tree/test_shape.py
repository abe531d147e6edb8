# SPDX-License-Identifier: Apache-2.0
"""The smallest tree that shows the same distances, and the room that it needs."""

from __future__ import annotations

import pytest

from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice, plan_guest_pci_tree
from nova_hpc.guest_tree.model import TreeBranch
from nova_hpc.guest_tree.windows import GIB, address_bits_of
from nova_hpc_common.level import Location


def device(number: int, *switches: str) -> TreeDevice:
    """A device below these switches of one root."""
    place = Location(numa=0, socket=0, root="pci0000:10", switches=switches)
    return TreeDevice(f"0000:{number:02x}:00.0", place)


def shape(part: TreeBranch | TreeDevice) -> object:
    """A tree as nested lists of the numbers of its devices."""
    if isinstance(part, TreeDevice):
        return int(part.address[5:7], 16)
    return [shape(each) for each in part.below]


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        # One switch says that two share all of theirs; three say that there are several between.
        ([(1, "a", "b"), (2, "a", "b")], [[1, 2]]),
        ([(1, "a", "b"), (2, "a", "c")], [[[1], [2]]]),
        ([(1, "a", "b"), (2, "a", "b"), (3, "a")], [[[1, 2], 3]]),
        ([(1, "a", "b"), (2, "a", "b"), (3, "a", "c")], [[[1, 2], [3]]]),
        # Alone below its switch, and on no switch at all.
        ([(1, "a"), (2, "b")], [1, 2]),
        ([(1,), (2, "a"), (3, "a")], [1, [2, 3]]),
    ],
)
def test_levels_at_which_nothing_branches_are_left_out(
    devices: list[tuple[int, *tuple[str, ...]]], found: list[object]
) -> None:
    made = plan_guest_pci_tree(
        [device(*each) for each in devices], {0: 0}, Abi(TopologyMode.MIRROR)
    )
    (root,) = made.roots
    assert shape(root) == found


@pytest.mark.parametrize(
    ("memory", "window", "wide"),
    [
        # The window begins at a multiple of its size, above memory and the gap below 4 GiB.
        (224, 32, 39),
        (220, 32, 38),
        (16, 32, 36),
        (1020, 512, 41),
        (1022, 512, 41),
    ],
)
def test_address_bits(memory: int, window: int, wide: int) -> None:
    assert address_bits_of(memory * GIB, window * GIB) == wide
