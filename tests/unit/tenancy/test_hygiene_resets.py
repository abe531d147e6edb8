# SPDX-License-Identifier: Apache-2.0
"""Resets that are refused, hang, or leave another device behind, or none."""

import os
import shutil
import threading
import time

import pytest

from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.topology import sysfs
from nova_hpc.wire.ledger import DeviceState
from tests.unit.tenancy.hygiene_node import GPU, OTHER, record, sweep, why

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def test_a_reset_that_the_kernel_refuses(node):
    node.step().give(ONE, node.candidates(GPU))
    (node.devices / GPU / "reset").unlink()
    assert "no way to reset" in node.step().take_back(ONE, {})[GPU]
    assert "no way to reset" in why(node)
    (node.devices / GPU / "reset").mkdir()
    with pytest.raises(hygiene_reset.ResetError, match="not a file"):
        hygiene_reset.reset_device(node.root, GPU, 20, node.root / "locks")


def test_a_reset_that_hangs_is_left_behind(node):
    step = node.step(timeout=1.0)
    step.give(ONE, node.candidates(GPU, OTHER))
    node.hang(GPU)
    found = step.take_back(ONE, {})
    assert list(found) == [GPU]  # the other is clean
    assert "did not answer within 1 seconds" in found[GPU]
    assert record(node).server is None


def test_a_reset_that_does_not_end_keeps_readers_away(node):
    """A process in the kernel cannot be killed: here one that ends when it wants to."""
    folder = node.root / "locks"
    node.hang(GPU)
    worker = threading.Thread(target=hygiene_reset.reset_device, args=(node.root, GPU, 20, folder))
    worker.start()
    try:
        while not hygiene_reset.list_busy_resets(folder):
            time.sleep(0.01)
        busy = hygiene_reset.list_busy_resets(folder)
        assert busy == {GPU}
        function = sysfs.read_sysfs_node(node.root, busy).function(GPU)
        assert function.unknown == "its reset has not ended"
        assert sysfs.read_sysfs_node(node.root, busy).function(OTHER).unknown is None
        with pytest.raises(hygiene_reset.ResetError, match="last reset has not ended"):
            hygiene_reset.reset_device(node.root, GPU, 20, folder)
    finally:
        # Read what it writes, and the reset is over.
        handle = os.open(node.devices / GPU / "reset", os.O_RDONLY)
        os.read(handle, 10)
        os.close(handle)
        worker.join()
    assert hygiene_reset.list_busy_resets(folder) == frozenset()


def test_a_device_that_disappears(node):
    sweep(node)
    node.step().give(ONE, node.candidates(GPU))
    shutil.rmtree(node.devices / GPU)
    assert node.step().take_back(ONE, {})[GPU] == "it has disappeared"
    node.add(GPU)
    assert node.step().give(TWO, node.candidates(GPU)) == {GPU: "suspect: it has disappeared"}
    assert record(node).server == ONE
    node.forget(GPU)
    assert sweep(node) == {}
    assert node.resets(GPU)
    assert (record(node).server, record(node).last_server) == (None, ONE)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda n: n.config(GPU, device=0x1FF0), "product_id is 1ff0"),
        (lambda n: shutil.rmtree(n.devices / GPU), "disappeared in its reset"),
        (lambda n: (_ for _ in ()).throw(RuntimeError("oops")), "cleaner failed: RuntimeError"),
    ],
)
def test_what_a_reset_can_leave_behind(node, damage, text):
    sweep(node)
    step = node.step(reset=lambda address: damage(node))
    step.give(ONE, node.candidates(GPU))
    assert text in step.take_back(ONE, {})[GPU]
    assert text in record(node).reason
    if "failed" in text:
        assert record(node).state is DeviceState.QUARANTINED
    else:
        # It was not clean, so it is cleaned again before anybody gets it.
        assert (record(node).state, record(node).server) == (DeviceState.SUSPECT, ONE)
