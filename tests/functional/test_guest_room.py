# SPDX-License-Identifier: Apache-2.0
"""Room for the devices' memory in guests of machine types that have windows of their own."""

from __future__ import annotations

import pytest
from nova.virt.libvirt.driver import MIN_LIBVIRT_MAXPHYSADDR

from nova_hpc.guest_tree import TreeDevice, needs, windows
from nova_hpc.topology.model import Bar
from nova_hpc_common.level import Location
from virt_driver_patches.driver import guest_topology
from virt_driver_patches.errors import ClaimRefused


def gpus(count: int, gib: int) -> list[TreeDevice]:
    """GPUs with one BAR of so many GiB."""
    bar = Bar(0, gib * windows.GIB, prefetchable=True, wide=True)
    return [
        TreeDevice(f"0000:{number:02x}:00.0", Location(), windows.span_of_bars([bar]))
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "gib"), [(1, 128), (4, 128), (1, 512), (0, 1)])
def test_what_an_arm_guest_has_room_for(count: int, gib: int) -> None:
    guest_topology._check_window("virt", gpus(count, gib))


@pytest.mark.parametrize(("count", "gib"), [(5, 128), (2, 512), (1, 1024)])
def test_more_is_refused_with_both_numbers(count: int, gib: int) -> None:
    with pytest.raises(ClaimRefused, match=rf"takes {count * gib} GiB .* virt has 512 GiB"):
        guest_topology._check_window("virt", gpus(count, gib))


def test_nova_needs_the_same_libvirt_for_wide_addresses() -> None:
    """nova-hpc doctor, which has no Nova, says the number that Nova goes by."""
    assert MIN_LIBVIRT_MAXPHYSADDR == needs.MAXPHYSADDR
