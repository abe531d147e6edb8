# SPDX-License-Identifier: Apache-2.0
"""A disk that tells no serial number is exchanged: the proof of the old one is not its own."""

import shutil

import pytest

from nova_hpc.tenancy.stage.runner import StageOutcome
from tests.unit.tenancy import stage_world
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make
from tests.unit.tenancy.stage_world import Service

PROOF = "sanitize, crypto erase; 128 blocks read back"
SERVER = "11111111-1111-1111-1111-111111111111"


def put_disk(node, address, serial=None):
    node.write(address, "class", "0x010802")
    node.write(address, "vendor", "0x144d")
    node.write(address, "device", "0xa80a")
    node.config(address, vendor=0x144D, device=0xA80A, serial=serial)


@pytest.fixture
def world(tmp_path):
    """Two disks, which tell no number, have passed their stage with a proof."""
    return make_world(tmp_path, None, None)


def make_world(folder, *serials):
    node = make(folder)
    for address, serial in zip((GPU, OTHER), serials, strict=True):
        put_disk(node, address, serial)
    made = stage_world.World(node)
    outcome = StageOutcome({GPU: "", OTHER: ""}, proofs={GPU: PROOF, OTHER: PROOF})
    made.outcomes = [outcome] * 2
    assert Service(made).settle() == {}
    assert node.ledger.device(GPU).stage["proof"] == PROOF
    assert node.ledger.device(GPU).hardware.startswith("serial:" if serials[0] else "slot:")
    return made


def start(world, service):
    """The stage runs, and a server starts; the service asserts that it has nobody's data."""
    world.outcomes += [StageOutcome({GPU: "", OTHER: ""}, proofs={GPU: PROOF, OTHER: PROOF})] * 2
    assert service.settle() == {}
    assert service.start(SERVER, GPU)


def test_exchanged_while_the_host_is_off(world):
    """Before: the proof of the old disk let the new one be given, with all that it held."""
    world.node.boot("second")
    world.traces[GPU] = "whoever had it in another host"
    start(world, Service(world))


def test_exchanged_while_the_host_runs(world):
    service = Service(world)
    shutil.rmtree(world.node.devices / GPU)
    service.update()
    assert service.view().node.function(GPU) is None
    world.node.later(600.0)
    world.node.add(GPU)
    put_disk(world.node, GPU)
    world.traces[GPU] = "whoever had it in another host"
    start(world, service)


def test_exchanged_while_no_service_runs(world):
    """Nothing has seen that it was away; the kernel's entry of the slot is another one."""
    kept = world.node.devices / "kept"
    (world.node.devices / GPU).rename(kept)
    world.node.add(GPU)
    put_disk(world.node, GPU)
    shutil.rmtree(kept)
    world.traces[GPU] = "whoever had it in another host"
    start(world, Service(world))


@pytest.mark.parametrize("serials", [(None, None), (5, 6)])
def test_a_disk_that_stays_is_not_erased_again(tmp_path, serials):
    """Over a boot the one that tells its number."""
    world = make_world(tmp_path, *serials)
    entry = world.node.ledger.device(GPU).stage
    for _ in range(3):
        Service(world).settle()
    assert world.node.ledger.device(GPU).stage == entry
    world.node.boot("second")
    Service(world).settle()
    assert (world.node.ledger.device(GPU).stage == entry) is (serials[0] is not None)
