# SPDX-License-Identifier: Apache-2.0
"""Random histories of two nodes; what may happen in them: tests/functional/histories/."""

from __future__ import annotations

import os

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc.from_nova import contract
from tests.functional.histories.history import History
from tests.functional.histories.truth import KilledError, Mortal, Truth
from tests.functional.histories.world import HistoryTest

PLACE = "alpha", "0000:40:00.0"
#: Others than these, ``first:last``: a failed one names its seed.
SEEDS = "NOVA_HPC_SEEDS"


@pytest.mark.skipif(
    (contract.running_nova_release() or 0) < 34, reason="counts what Nova 34 has under way"
)
class HistoriesTest(HistoryTest):
    def run_histories(self, first: int, last: int, operations: int) -> None:
        for seed in range(first, last):
            History(self, seed).run(operations)
        found = self.totals
        self.assertGreater(found.kills, 0)
        print(
            f"RESULT: {found.histories} histories, {found.operations} operations, "
            f"{found.kills} kills at {len(found.steps)} different steps: no device lost, given "
            f"twice or reset in use; {found.left_behind} allocations left behind and named, "
            f"{found.released} devices released and {found.lifted} reservations lifted by hand, "
            f"{found.late} devices offered until the next look, {found.by_name}"
        )

    @pytest.mark.slow
    def test_some_histories(self) -> None:
        self.run_histories(0, 6, 6)

    @pytest.mark.slow
    def test_a_move_that_nobody_ends_any_more_is_named(self) -> None:
        """Its node died in the middle of it, and then the server was deleted."""
        body = self._build_server(flavor_id=self.flavors["pair"], networks="none")
        server = self.api.post_server({"server": body})["id"]
        self.settle()
        self.api.post_server_action(server, {"migrate": None})
        self.settle()
        self.assertEqual("resized", self.servers()[server].state)
        context = nova_context.get_admin_context()
        (migration,) = objects.MigrationList.get_by_filters(context, {"instance_uuid": server})
        migration.status = "post-migrating"
        migration.save()
        instance = self.instance({"id": server})
        instance.vm_state, instance.task_state = "active", None
        instance.save()
        self.api.delete_server(server)
        self.settle()
        self.assertEqual([migration.uuid], list(self.allocations()))
        for _ in range(3):
            self.update_all()
        notes = " ".join(self.stats_of(migration.source_compute).notes)
        self.assertIn(f"openstack resource provider allocation delete {migration.uuid}", notes)

    @pytest.mark.slow
    def test_two_hundred_histories(self) -> None:
        first, _, last = os.environ.get(SEEDS, "0:200").partition(":")
        self.run_histories(int(first), int(last), 8)


# -- what histories are judged by can fail -------------------------------------------


class Domain:
    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    def UUIDString(self) -> str:
        return self.uuid

    def XMLDesc(self, flags: int) -> str:
        return (
            "<domain><devices><hostdev><source><address domain='0x0' bus='0x40' slot='0x0' "
            "function='0x0'/></source></hostdev></devices></domain>"
        )


def test_the_truth_notes_what_must_never_be() -> None:
    def fresh() -> Truth:
        truth = Truth(lambda thing: "alpha")
        truth.started("alpha", Domain("a"))
        assert truth.violations == []
        assert truth.running == truth.traces == {PLACE: "a"}
        return truth

    truth = fresh()
    truth.before_reset(PLACE)
    assert truth.violations == [f"{PLACE} is reset while a has it"]
    truth = fresh()
    truth.started("alpha", Domain("b"))
    assert truth.violations == [
        f"{PLACE} is in two domains: a and b",
        f"{PLACE} was given to b with another's traces",
    ]
    truth = fresh()
    truth.stopped("beta", Domain("a"))
    assert truth.running
    truth.stopped("alpha", Domain("a"))
    truth.before_reset(PLACE)
    truth.started("beta", Domain("b"))
    assert truth.violations == []
    truth.started("alpha", Domain("b"))
    assert truth.violations == [f"{PLACE} was given to b with another's traces"]


class Manager:
    def __init__(self, host: str) -> None:
        self.host = host
        self._in_progress_tasks = {1: "a build"}


def test_whoever_has_died_does_nothing_any_more() -> None:
    mortal = Mortal(lambda root: None)
    alpha, beta = Manager("alpha"), Manager("beta")
    mortal.arm(2)
    mortal.step("not of any nova-compute")
    mortal.step("one", alpha)
    mortal.step("one", beta)
    with pytest.raises(KilledError):
        mortal.step("two", alpha)
    assert mortal.disarm() == ("alpha", "two")
    for _ in range(2):
        with pytest.raises(KilledError), mortal.inside(alpha):
            mortal.step("what it does in a finally")
    mortal.step("two", beta)
    assert mortal.is_dead(alpha)
    assert not mortal.is_dead(beta)
    assert not mortal.is_dead(Manager("alpha"))
    assert alpha._in_progress_tasks == {}
