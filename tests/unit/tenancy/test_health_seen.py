# SPDX-License-Identifier: Apache-2.0
"""What took healthy devices out of service for good, or gave out bad ones."""

from __future__ import annotations

import shutil

import pytest

from nova_hpc.wire.ledger import DeviceState
from tests.unit.tenancy.hygiene_node import GPU, OTHER, PF, VF, FakeNode, make

ONE = "11111111-1111-1111-1111-111111111111"

GPUS = [f"0000:{bus:02x}:00.0" for bus in range(0x40, 0x50)]
PFS = [f"0000:{bus:02x}:00.0" for bus in range(0x80, 0x90)]


def fleet(root) -> tuple[FakeNode, list[str]]:
    """16 GPUs and 16 adapters of 16 virtual functions each: 272 devices to give."""
    node = make(root, *GPUS, *PFS)
    found = list(GPUS)
    for pf in PFS:
        node.write(pf, "sriov_totalvfs", "16")
        for number in range(1, 17):
            vf = f"{pf[:-4]}{number // 8:02x}.{number % 8}"
            node.add(vf, physfn=pf)
            found.append(vf)
    return node, found


def sweep(node: FakeNode, addresses, *taken: str):
    return node.step().sweep(node.candidates(*addresses), lambda: frozenset(taken))


def quarantined(node: FakeNode) -> int:
    return len(node.ledger.quarantined)


def test_an_update_of_firmware_quarantines_nothing(tmp_path):
    """All devices of each model lose a capability at once."""
    node, devices = fleet(tmp_path)
    assert sweep(node, devices) == {}
    for each in devices:
        node.config(each, capabilities=(0x01,))
    withheld = sweep(node, devices)
    print(f"SEEN: {quarantined(node)} of {len(devices)} quarantined after an update of firmware")
    assert len(withheld) == len(devices)
    assert quarantined(node) == 0
    # One reason, not 272.
    assert len(set(withheld.values())) == 1


def test_an_idle_link_is_not_judged_by_its_speed(tmp_path):
    node = make(tmp_path)
    assert sweep(node, [GPU, OTHER]) == {}
    node.write(GPU, "current_link_speed", "2.5 GT/s PCIe")
    found = sweep(node, [GPU, OTHER])
    print(f"SEEN: withheld with an idle link: {found}")
    assert found == {}
    assert node.step().give(ONE, node.candidates(GPU)) == {}


def test_a_function_that_was_absent_once_comes_back(tmp_path):
    node = make(tmp_path, PF)
    node.write(PF, "sriov_totalvfs", "4")
    node.add(VF, physfn=PF)
    assert sweep(node, [VF]) == {}
    assert node.step().give(ONE, node.candidates(VF)) == {}
    # The adapter's driver is loaded anew while its server ends.
    hidden = node.root / "hidden"
    shutil.move(node.devices / VF, hidden)
    (node.devices / PF / "virtfn0").unlink()
    node.step().take_back(ONE, {VF: "vf"})
    shutil.move(hidden, node.devices / VF)
    (node.devices / PF / "virtfn0").symlink_to(node.devices / VF)
    node.forget(VF)
    assert sweep(node, [VF]) == {}
    print(f"SEEN: {VF} is {node.ledger.device(VF).state.value}: {node.ledger.device(VF).reason}")
    assert node.ledger.device(VF).state is DeviceState.OFFERED
    assert node.resets(VF)  # and it was cleaned, too
    assert node.ledger.device(VF).server is None


@pytest.mark.parametrize("count", [1, 3])
def test_a_counter_of_errors_that_moved_once(tmp_path, count):
    node = make(tmp_path)
    assert sweep(node, [GPU, OTHER]) == {}
    node.write(GPU, "aer_dev_nonfatal", f"TOTAL_ERR_NONFATAL {count}")
    first = sweep(node, [GPU, OTHER])
    second = sweep(node, [GPU, OTHER])
    print(f"SEEN: {count} errors: {first}, then {second}")
    assert set(first) == ({GPU} if count > 1 else set())
    assert second == {}
    assert node.step().give(ONE, node.candidates(GPU)) == {}


def test_a_quarantine_follows_the_hardware(tmp_path):
    """The firmware numbers the buses anew: two GPUs change places."""
    node = make(tmp_path)
    node.config(GPU, serial=0xA)
    node.config(OTHER, serial=0xB)
    assert sweep(node, [GPU, OTHER]) == {}
    node.file.quarantine({GPU: "its memory is broken"})
    node.config(GPU, serial=0xB)
    node.config(OTHER, serial=0xA)
    node.boot("second")
    sweep(node, [GPU, OTHER])
    bad = node.step().give(ONE, node.candidates(OTHER))
    good = node.step().give(ONE, node.candidates(GPU))
    print(f"SEEN: the broken GPU is refused: {bad}; the healthy one: {good}")
    assert "its memory is broken" in bad.get(OTHER, "")
    assert good == {}


def test_a_board_that_was_swapped_is_noticed(tmp_path):
    node = make(tmp_path)
    node.config(GPU, serial=0xA)
    assert sweep(node, [GPU, OTHER]) == {}
    node.step().give(ONE, node.candidates(GPU))
    node.step().take_back(ONE, {GPU: "gpu"})
    assert node.ledger.device(GPU).cleaned == 2
    node.boot("second")
    node.config(GPU, serial=0xC)
    sweep(node, [GPU, OTHER])
    found = node.ledger.device(GPU)
    print(f"SEEN: after a swap the node has {found.hardware}, cleaned {found.cleaned} times")
    assert found.hardware == f"serial:{0xC:016x}"
    # Nobody knows who had it where it was.
    assert found.cleaned == 1
