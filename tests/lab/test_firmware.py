# SPDX-License-Identifier: Apache-2.0
"""The firmware of a guest with eight GPUs of 128 to 512 GiB places all of their memory.

In plain emulation, without the cloud: SeaBIOS and OVMF get the windows of the golden
domains, and QEMU's monitor tells where they have put the BARs.
"""

import itertools

import pytest

from nova_hpc.guest_tree.windows import GIB
from tests.lab import firmware
from tests.unit.virt.big_bars import GOLDEN, GPUS, GUESTS, SMALL

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("guest", GUESTS, ids=lambda guest: guest.name)
def test_all_memory_is_placed(guest, tmp_path):
    xml = (GOLDEN / f"{guest.name}.xml").read_text()
    bars = (guest.gib * GIB, SMALL)
    argv = firmware.arguments(xml, bars, tmp_path)
    found = firmware.placed(argv, GPUS * len(bars), tmp_path)
    assert sorted(size for _, size in found) == sorted(bars * GPUS)
    assert all(start % size == 0 for start, size in found)
    for (start, size), (after, _) in itertools.pairwise(found):
        assert start + size <= after


def test_without_room_they_are_not(tmp_path, monkeypatch):
    """The check can fail: QEMU's own window, as a flat guest had it before."""
    monkeypatch.setattr(firmware, "PATIENCE", 60.0)
    guest = next(each for each in GUESTS if each.name == "128-flat-q35-uefi")
    xml = (GOLDEN / f"{guest.name}.xml").read_text()
    argv = firmware.arguments(xml, (guest.gib * GIB, SMALL), tmp_path)
    before = [each for each in argv if "hole64" not in each and "X-PciMmio64Mb" not in each]
    before = [each for each in before if each not in ("-global", "-fw_cfg")]
    before = [each.replace("phys-bits=42", "phys-bits=40") for each in before]
    with pytest.raises(AssertionError):
        firmware.placed(before, GPUS * 2, tmp_path)
