# SPDX-License-Identifier: Apache-2.0
"""Parts of the driver by themselves, without services."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from nova.compute import task_states
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc.from_nova import leftovers
from nova_hpc.from_nova.claim import Specs
from nova_hpc.guest_tree import Abi, TopologyMode
from nova_hpc.tenancy import health
from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.step import TenancyStep
from nova_hpc.wire import guest_abi
from virt_driver_patches.driver import guest_topology, leftover_allocations, reading
from virt_driver_patches.driver.tenancy import TenancySteps


class Noted(TenancyStep):
    """A step that only notes what it is told."""

    def __init__(self, name: str, told: list[tuple[str, str]]) -> None:
        self.name, self.told = name, told

    def before_start(self, tenant, view):
        raise NotImplementedError

    before_restart = withhold = before_start

    def after_end(self, server, look, owners):
        self.told.append(("end", self.name))
        return ()

    def after_move(self, server, look, owners):
        self.told.append(("move", self.name))
        return ()


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (task_states.DELETING, "end"),
        (task_states.SHELVING_OFFLOADING, "end"),
        (task_states.SPAWNING, "move"),
        (task_states.RESIZE_REVERTING, "move"),
        # It starts again with what it has.
        (task_states.REBUILDING, None),
        (task_states.REBOOTING_HARD, None),
        (None, None),
    ],
)
def test_the_last_step_is_taken_back_first(task, what) -> None:
    told: list[tuple[str, str]] = []
    steps = tuple(Noted(name, told) for name in ("cleaning", "links", "adapters"))
    instance = SimpleNamespace(task_state=task, uuid=uuids.instance, node="alpha")
    nobody = DeviceOwners(frozenset, NodeGuestDomains, lambda addresses: {})
    TenancySteps(steps, owners=lambda node: nobody).take_back(instance, None)
    order = ("adapters", "links", "cleaning") if what else ()
    assert told == [(what, name) for name in order]


def test_a_reading_serves_for_some_seconds_only(tmp_path: Path, monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now))
    source = reading.ReadingSource(
        Specs.parse([]), tmp_path, LedgerFile(tmp_path / "x"), health.ALL
    )
    first = source.lately()
    now += reading._LATELY - 1
    assert source.lately() is first
    now += 2
    second = source.lately()
    assert second is not first
    now -= 10  # a clock that went back tells nothing
    assert source.lately() is not second


@pytest.mark.parametrize("clique", [False, True])
def test_a_server_keeps_its_hardware_whatever_the_option_says(clique) -> None:
    specs = {"hpc:affinity": "host", "hpc:guest_topology": "mirror"}
    new = SimpleNamespace(system_metadata={}, uuid=uuids.instance)
    assert guest_topology.next_abi_of(new, specs, clique) == Abi(TopologyMode.MIRROR, clique)
    text = Abi(TopologyMode.FLAT, not clique).dumps()
    old = SimpleNamespace(system_metadata={guest_abi.KEY: text}, uuid=uuids.instance)
    assert guest_topology.next_abi_of(old, specs, clique) == Abi(TopologyMode.MIRROR, not clique)


class TestLeftovers:
    """Whose allocations are called left behind; what Placement said is replaced by each pass."""

    @pytest.fixture
    def over(self, monkeypatch) -> set[str]:
        """Consumers without a right to what they have."""
        found: set[str] = set()
        monkeypatch.setattr(
            leftovers,
            "find_cure",
            lambda context, leftover, host: (
                leftovers.Cure("remove it", removed=True) if leftover.consumer in found else None
            ),
        )
        return found

    @staticmethod
    def a_pass(*consumers: str) -> tuple[leftovers.LeftoverConsumer, ...]:
        return tuple(
            leftovers.LeftoverConsumer(each, ("0000:40:00.0",), ("rp",)) for each in consumers
        )

    def test_a_move_that_ends_between_two_looks_has_left_nothing(self, over) -> None:
        """A resize was reverted after the last pass, which still showed its allocation."""
        looks = leftover_allocations.LeftoverAllocations()
        looks.leftovers = self.a_pass("migration")
        assert looks.look("alpha") == ()
        looks.leftovers = self.a_pass("migration")
        over.add("migration")
        assert looks.look("alpha") == ()
        assert looks.look("alpha") == ()  # Placement was not asked since
        looks.leftovers = self.a_pass()
        assert looks.look("alpha") == ()

    def test_what_stays_is_named_until_it_is_gone(self, over) -> None:
        looks = leftover_allocations.LeftoverAllocations()
        over.add("migration")
        looks.leftovers = self.a_pass("migration", "server")
        assert looks.look("alpha") == ()
        looks.leftovers = self.a_pass("migration", "server")
        named = ("0000:40:00.0: allocation left behind by migration: remove it",)
        assert looks.look("alpha") == named
        assert looks.look("alpha") == named
        looks.leftovers = self.a_pass("server")
        assert looks.look("alpha") == ()
