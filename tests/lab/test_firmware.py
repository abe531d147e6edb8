# SPDX-License-Identifier: Apache-2.0
"""The firmware of a guest with eight GPUs of 128 to 512 GiB places all of their memory.

In plain emulation, without the cloud: SeaBIOS and OVMF get the windows of the golden
domains, and QEMU's monitor tells where they have put the BARs.
"""

import itertools
from pathlib import Path

import pytest

from tests.lab import firmware

pytestmark = pytest.mark.slow

#: Written by tests/unit/virt/test_big_bars.py; a name begins with the GiB of the BARs.
GUESTS = sorted(Path(__file__).parents[1].glob("data/golden/big-bars/*.xml"))
GPUS = 8
SMALL = 32 << 20


def bars_of(guest):
    return int(guest.name.partition("-")[0]) << 30, SMALL


@pytest.mark.parametrize("guest", GUESTS, ids=lambda guest: guest.stem)
def test_all_memory_is_placed(guest, tmp_path):
    bars = bars_of(guest)
    argv = firmware.arguments(guest.read_text(), bars, tmp_path)
    found = firmware.placed(argv, GPUS * len(bars), tmp_path)
    assert sorted(size for _, size in found) == sorted(bars * GPUS)
    assert all(start % size == 0 for start, size in found)
    for (start, size), (after, _) in itertools.pairwise(found):
        assert start + size <= after


def test_without_room_they_are_not(tmp_path, monkeypatch):
    """The check can fail: QEMU's own window, as a flat guest had it before."""
    monkeypatch.setattr(firmware, "PATIENCE", 60.0)
    guest = next(each for each in GUESTS if each.stem == "128-flat-q35-uefi")
    argv = firmware.arguments(guest.read_text(), bars_of(guest), tmp_path)
    before = [each for each in argv if "hole64" not in each and "X-PciMmio64Mb" not in each]
    before = [each for each in before if each not in ("-global", "-fw_cfg")]
    before = [each.replace("phys-bits=42", "phys-bits=40") for each in before]
    # The monitor was asked to the end, and QEMU itself had nothing to say.
    with pytest.raises(AssertionError, match=r"^\[.*\]: $"):
        firmware.placed(before, GPUS * 2, tmp_path)
