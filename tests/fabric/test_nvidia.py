# SPDX-License-Identifier: Apache-2.0
"""The backend for NVIDIA's manager over upstream's opensm, from which that one descends.

Upstream knows no functions, so this shows what both have: file, signal, tables of physical
ports. A GUID that no port has stands for a function.
"""

import contextlib

import pytest

from nova_hpc.fabric.partitions.backends.nvidia import NvidiaSubnetManager
from nova_hpc.fabric.partitions.keys import Membership
from tests.fabric.matrix import FabricView
from tests.fabric.opensm.opensm_site import (
    ABSENT,
    RIGHT,
    A,
    B,
    keys,
    member,
    running_site,
    settle,
    states,
)

FIRST, SECOND = 0x0200000000000011, 0x0200000000000022


@pytest.fixture(scope="module")
def site():
    with running_site() as made:
        yield made


def test_functions_and_ports_are_in_one_file(site):
    manager = NvidiaSubnetManager(site.backend()._conf)
    site.opened.append(manager)
    whole, stranger = site.guids[:2]
    desired = site.desire(
        member(1, whole),
        member(2, FIRST, A),
        member(3, SECOND, B, Membership.LIMITED),
    )

    reading = settle(manager, desired)

    assert states(reading) == {1: RIGHT, 2: ABSENT, 3: ABSENT}
    text = site.files.partitions.read_text()
    assert f" 0x{FIRST:016x}=full" in text
    assert f" 0x{SECOND:016x}=limited" in text
    with contextlib.closing(FabricView(site.fabric)) as view:
        assert keys(view, whole, stranger) == [{0x8000 | A}, set()]
    assert settle(manager, site.desire()).faults == ()
