# SPDX-License-Identifier: Apache-2.0
"""Hardware that took the place of a server's passes its stage before the server starts again."""

from __future__ import annotations

import pytest

from nova_hpc.tenancy.guest_domains import (
    DomainCondition,
    NodeGuestDomain,
    NodeGuestDomains,
    PassedFunctions,
)
from nova_hpc.tenancy.stage.waiting_tenants import find_held_devices
from nova_hpc.tenancy.step import DeviceTenant, RefusedError
from tests.unit.tenancy import stage_world
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make
from tests.unit.tenancy.stage_world import Killed, Service, killed_after

ONE = "11111111-1111-1111-1111-111111111111"


def restart(world, service):
    """What the driver does before the stopped server starts; refused while it may not."""
    tenant = DeviceTenant(ONE, (GPU,), owners=world.owners())
    service.stage.before_restart(tenant, service.view())
    service.hygiene.before_restart(tenant, service.view())
    assert GPU not in world.traces, "started with another server's data"
    assert not any(GPU in devices for devices in world.vms.values())


@pytest.fixture
def world(tmp_path):
    """A node with a stage, whose stopped server has had the GPU; the card is another now."""
    made = stage_world.World(make(tmp_path))
    made.node.config(GPU, serial=0xA)
    made.node.config(OTHER, serial=0xB)
    service = Service(made)
    assert service.settle() == {}
    assert service.start(ONE, GPU)
    made.seen.clear()
    made.node.config(GPU, serial=0xC)
    made.node.boot("second")
    made.traces[GPU] = "whoever had it elsewhere"
    return made


@pytest.mark.parametrize("updated", [True, False], ids=["updated", "host-boot"])
def test_a_replaced_card_passes_its_stage_first(world, updated):
    service = Service(world)
    if updated:
        service.update()
    with pytest.raises(RefusedError) as caught:
        restart(world, service)
    (reason,) = caught.value.reasons
    assert GPU in reason
    assert "nova-hpc device show" in reason
    service.settle()
    assert len(world.seen) == 1
    restart(world, service)
    known = world.node.ledger.device(GPU)
    assert (known.server, known.replaced) == (ONE, False)
    assert (known.stage["phase"], known.stage["server"]) == ("due", ONE)
    # It is the server's now: nothing else gets it.
    service.settle()
    assert len(world.seen) == 1
    world.traces.clear()
    restart(world, service)


def test_a_service_that_is_killed_anywhere(world):
    for steps in range(80):
        with killed_after(world, steps):
            try:
                service = Service(world)
                service.update()
                service.attend()
            except Killed:
                pass
            else:
                break
        try:
            restart(world, Service(world))
        except RefusedError:
            continue
        break
    life = Service(world)
    life.settle()
    restart(world, life)
    assert world.node.ledger.device(GPU).server == ONE


@pytest.mark.parametrize("steps", range(12))
def test_a_service_that_is_killed_once(world, steps):
    with killed_after(world, steps):
        try:
            service = Service(world)
            service.update()
            service.attend()
            restart(world, service)
        except Killed:
            pass
    life = Service(world)
    life.update()
    try:
        restart(world, life)
    except RefusedError:
        life.settle()
        restart(world, life)
    assert world.node.ledger.device(GPU).server == ONE


def test_a_stage_that_does_not_pass(world):
    world.outcomes = [stage_world.StageOutcome({GPU: "its memory is not zero"})]
    service = Service(world)
    service.update()
    service.attend()
    assert len(world.seen) == 1
    with pytest.raises(RefusedError):
        restart(world, service)


def test_the_card_of_a_server_that_stayed_is_left_to_it(world):
    world.node.config(GPU, serial=0xA)
    world.traces.clear()
    service = Service(world)
    service.settle()
    assert world.seen == []
    restart(world, service)


@pytest.mark.parametrize("live", [True, False])
def test_who_has_a_card_that_waits(world, live):
    Service(world).update()
    passed = PassedFunctions(frozenset({GPU}))
    condition = DomainCondition.RUNNING if live else DomainCondition.SHUT_OFF
    now = passed if live else PassedFunctions()
    domain = NodeGuestDomain(ONE, "instance-1", condition, now, passed)
    owners = world.owners().with_domains(NodeGuestDomains((domain,)))
    ledger = world.node.ledger
    assert ledger.device(GPU).replaced
    assert set(find_held_devices([GPU, OTHER], ledger, owners)) == ({GPU} if live else set())
