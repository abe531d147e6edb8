# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc capacity --make-room --preempt`` and ``--unshelve`` on Nova's stack."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_common.wire.preemption_notice import (
    NOTICE_ACTION,
    format_notice_tag,
    read_notice_tags,
)
from nova_hpc_tools.cloud import drain_api
from nova_hpc_tools.cloud.room import preemptor, unshelver
from nova_hpc_tools.readers import snapshot
from tests.functional import fixtures
from tests.functional.drain_base import (
    PAIR,
    STOCK,
    DrainCase,
    connect_as_admin,
    run_moving_command,
)
from tests.functional.test_watch import WatchCase

WHOLE = {"pci_passthrough:alias": "gpu:4", "hpc:affinity": "switch"}
YES = {"hpc:preemptible": "yes"}
Server = dict[str, Any]


class Clock:
    """It is late, and goes half a minute at each look until it is right, so notices are short."""

    def __init__(self) -> None:
        self.looks = 0
        self.late = datetime.timedelta(minutes=10)

    def read(self) -> datetime.datetime:
        self.looks += 1
        self.late = max(self.late - datetime.timedelta(seconds=30), datetime.timedelta())
        return datetime.datetime.now(datetime.UTC) - self.late


class PreemptTest(DrainCase):
    """Three hosts with four GPUs each; no host is free."""

    def setUp(self) -> None:
        super().setUp()
        # Operators have a project of their own.
        self.compute = connect_as_admin(self.api_fixture.base_url, "operators")
        for name in ("_PAUSE", "_LONG_PAUSE"):
            self.patch(f"{preemptor.__name__}.{name}", 0.05)
        self.patch(f"{unshelver.__name__}._PAUSE", 0.05)
        self.clock = Clock()
        self.patch(f"{preemptor.__name__}.read_time", self.clock.read)
        self.cheap = self.make_flavor({**PAIR, **YES})
        self.whole = self.make_flavor(WHOLE)
        #: Called with the number of each reading of the cloud, before it.
        self.before_reading = lambda number: None

    def patch(self, name: str, value: object) -> None:
        self.useFixture(fixtures.fixtures.MonkeyPatch(name, value))

    def fill(self) -> tuple[Server, Server, Server]:
        """Two preemptible pairs on alpha, one on beta beside another pair, and gamma is full.

        They are in the order in which they are shelved, by their devices.
        """
        a, b = (self.make(name, self.cheap, "alpha") for name in "ab")
        if self.addresses(a) > self.addresses(b):
            a, b = b, a
        c = self.make("c", self.cheap, "beta")
        self.make("kept", self.pair, "beta")
        self.make("all", self.whole, "gamma")
        return a, b, c

    def command(self, *words: str, cloud: Any = drain_api.DrainCloud) -> tuple[int, str, str]:
        numbers = iter(range(1000))

        def read() -> Any:
            self.before_reading(next(numbers))
            for host in self.computes:
                self.update(host)  # the next periodic task
            return snapshot.take_cloud_snapshot()

        return run_moving_command(self.compute, ["capacity", *words], cloud, read)

    def preempt(self, *words: str, cloud: Any = drain_api.DrainCloud) -> tuple[int, str, str]:
        question = ("--flavor", self.whole, "--make-room", "--preempt", "--timeout", "20")
        return self.command(*question, *words, cloud=cloud)

    def unshelve(self, *words: str, cloud: Any = drain_api.DrainCloud) -> tuple[int, str, str]:
        self.clock.late = datetime.timedelta()
        return self.command("--unshelve", "--hold", "0", *words, cloud=cloud)

    @staticmethod
    def addresses(server: Server) -> list[str]:
        records = objects.PciDeviceList.get_by_instance_uuid(
            nova_context.get_admin_context(), server["id"]
        )
        return sorted(record.address for record in records)

    def states(self, *servers: Server) -> list[str]:
        return [self.status(each)[0] for each in servers]

    def notices(self, server: Server) -> list[str]:
        return list(read_notice_tags(self.admin_api.get_server(server["id"])["tags"]))

    def test_room_is_made_and_servers_come_back_in_order(self) -> None:
        self.flags(shelved_offload_time=-1)  # a shelved server keeps its devices
        a, b, c = self.fill()
        status, out, err = self.preempt()
        self.assertEqual(1, status, err)
        self.assertIn("2 preemptible servers have to leave for 1 x ", out)
        self.assertIn(", on alpha\n", out)
        self.assertIn("Nothing was changed.", out)
        self.assertEqual([[], [], []], [self.notices(each) for each in (a, b, c)])
        status, out, err = self.preempt("--yes")
        self.assertEqual(0, status, err)
        lines = out.splitlines()
        self.assertEqual(["announced:", "announced:", "done:", "done:"], [
            line.split()[0] for line in lines[:-1]
        ])  # fmt: skip
        self.assertIn(": fits now", lines[-1])
        self.assertEqual(["SHELVED_OFFLOADED"] * 2 + ["ACTIVE"], self.states(a, b, c))
        self.assert_all_free("alpha")
        big = self.make("new", self.whole, "alpha")
        self.assert_given_once()
        # No place is left, and the small room of others is not taken out of order.
        status, out, err = self.unshelve("--yes")
        self.assertEqual(1, status, err)
        self.assertIn(f" ({a['id']}) is the next, and has no room", out)
        self._delete_server(big)
        status, out, err = self.unshelve()
        self.assertEqual(
            [a["name"], b["name"]], [line.split()[0] for line in out.splitlines()[1:]], err
        )
        status, out, err = self.unshelve("--yes", "-f", "json")
        self.assertEqual(0, status, err)
        self.assertEqual(
            [(a["id"], True), (b["id"], True)],
            [(each["server"], each["done"]) for each in json.loads(out)["servers"]],
        )
        self.assertEqual(["ACTIVE"] * 3, self.states(a, b, c))
        self.assertEqual([[], [], []], [self.notices(each) for each in (a, b, c)])
        self.assert_given_once()
        self.assertEqual((0, "no preempted server is shelved\n"), self.unshelve()[:2])

    def test_only_the_flavor_makes_a_server_preemptible(self) -> None:
        """Metadata and tags of owners do not, and no such server is unshelved for its owner."""
        one = self.make("one", self.pair, "alpha")
        self.make("two", self.pair, "beta")
        self.make("all", self.whole, "gamma")
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
        self.api.api_put(
            f"/servers/{one['id']}/metadata/hpc:preemptible", {"meta": {"hpc:preemptible": "yes"}}
        )
        drain_api.DrainCloud(self.compute).add_tag(one["id"], format_notice_tag(past))
        status, out, err = self.preempt("--yes")
        self.assertEqual(1, status, err)
        self.assertIn("no preemption makes room", out)
        self.assertEqual(["ACTIVE"], self.states(one))
        self._shelve_server(one, expected_state="SHELVED_OFFLOADED")
        status, out, err = self.unshelve("--yes")
        self.assertEqual((0, "no preempted server is shelved\n"), (status, out), err)
        self.assertEqual(["SHELVED_OFFLOADED"], self.states(one))

    def test_an_outdated_plan_shelves_nothing(self) -> None:
        """Another server takes the free half of the host during the notice."""
        self.make("a", self.pair, "alpha")
        self.make("all", self.whole, "gamma")
        c = self.make("c", self.cheap, "beta")
        self.make("second", self.pair, "alpha")

        def take(number: int) -> None:
            if number == 1:
                self.assertEqual(1, len(self.notices(c)))
                self.make("late", self.pair, "beta")

        self.before_reading = take
        status, out, err = self.preempt("--yes")
        self.assertEqual(1, status)
        self.assertIn("announced: c ", out)
        self.assertIn("0 of 1 servers are shelved; stopped: the plan is outdated: ", err)
        self.assertEqual((["ACTIVE"], []), (self.states(c), self.notices(c)))

    def test_servers_that_end_or_are_paused_during_the_notice(self) -> None:
        a, b, c = self.fill()

        def change(number: int) -> None:
            if number == 1:
                self._delete_server(a)
                self.api.post_server_action(b["id"], {"pause": None})
                self._wait_for_state_change(b, "PAUSED")

        self.before_reading = change
        status, _, err = self.preempt("--yes")
        self.assertEqual(0, status, err)
        self.assertEqual(["SHELVED_OFFLOADED", "ACTIVE"], self.states(b, c))

    def test_a_killed_run_goes_on(self) -> None:
        a, b, c = self.fill()

        class Dies(drain_api.DrainCloud):
            count = 0

            def shelve(self, uuid: str) -> None:
                type(self).count += 1
                if self.count == 2:
                    raise KeyboardInterrupt
                super().shelve(uuid)

        status, _, err = self.preempt("--yes", cloud=Dies)
        self.assertNotEqual(0, status)
        self.assertIn("1 of 2 servers are shelved; stopped: the notices hold for an hour", err)
        self.assertEqual(["SHELVED_OFFLOADED", "ACTIVE", "ACTIVE"], self.states(a, b, c))
        (notice,) = self.notices(b)
        looks = self.clock.looks
        status, _, err = self.preempt("--yes")
        self.assertEqual(0, status, err)
        # Its owner gets no second notice, and the run does not wait again.
        self.assertEqual([notice], self.notices(b))
        self.assertLess(self.clock.looks - looks, 5)
        self.assertEqual(["SHELVED_OFFLOADED"] * 2 + ["ACTIVE"], self.states(a, b, c))

        class Killed(drain_api.DrainCloud):
            def remove_tag(self, uuid: str, tag: str) -> None:
                raise KeyboardInterrupt

        self.assertNotEqual(0, self.unshelve("--yes", cloud=Killed)[0])
        self.assertEqual(["ACTIVE", "SHELVED_OFFLOADED"], self.states(a, b))
        self.assertEqual(1, len(self.notices(a)))
        # The next run removes the tag of the first.
        self.assertEqual(0, self.unshelve("--yes")[0])
        self.assertEqual(["ACTIVE"] * 3, self.states(a, b, c))
        self.assertEqual([[], [], []], [self.notices(each) for each in (a, b, c)])

    @pytest.mark.slow
    def test_the_room_is_held_and_owners_may_take_theirs_back(self) -> None:
        a, b, _ = self.fill()
        self.assertEqual(0, self.preempt("--yes")[0])
        status, out, err = self.command("--unshelve", "--hold", "1000", "--yes")
        self.assertEqual(1, status, err)
        self.assertIn("servers stay shelved until ", out)
        self.assertEqual(["SHELVED_OFFLOADED"] * 2, self.states(a, b))
        self.api.post_server_action(b["id"], {"unshelve": None})
        self._wait_for_state_change(b, "ACTIVE")
        self._delete_server(a)
        status, out, err = self.unshelve("--yes")
        self.assertEqual((0, "no preempted server is shelved\n"), (status, out), err)
        self.assertEqual([], self.notices(b))

    @pytest.mark.slow
    def test_owners_without_a_place_for_a_tag(self) -> None:
        """The server is left out, and named; a tag with a time far ahead delays nothing."""
        a, b, c = self.fill()
        cloud = drain_api.DrainCloud(self.compute)
        cloud.add_tag(a["id"], "hpc-preempt=9999-01-01T00:00Z")
        fifty = {"tags": [f"mine-{number}" for number in range(50)]}
        self.compute.put(f"/servers/{b['id']}/tags", json=fifty, microversion="2.26")
        status, out, _ = self.preempt("--yes")
        self.assertEqual(1, status)
        self.assertIn(f" ({b['id']}) gets no notice: ", out)
        self.assertIn("no preemption makes room", out)
        self.assertEqual(["ACTIVE"] * 3, self.states(a, b, c))
        cloud.remove_tag(b["id"], "mine-7")
        # The owner of c shelves it, with a tag to be the first, and comes last.
        cloud.add_tag(c["id"], "hpc-preempt=2000-01-01T00:00Z")
        self._shelve_server(c, expected_state="SHELVED_OFFLOADED")
        self.make("pair", self.pair, "beta")
        self.assertEqual(0, self.preempt("--yes")[0])
        self.assertEqual(["SHELVED_OFFLOADED"] * 2, self.states(a, b))
        listed = json.loads(self.unshelve("-f", "json")[1])["servers"]
        self.assertEqual(
            [(a["id"], True), (b["id"], True), (c["id"], True)],
            [(each["server"], each["fits"]) for each in listed],
        )

    def test_bad_words(self) -> None:
        flavor = ("--flavor", self.whole)
        for words, text in (
            (("--make-room",), "--flavor is needed"),
            ((*flavor, "--preempt"), "--preempt needs --make-room"),
            ((*flavor, "--make-room", "--preempt", "--agreed"), "without --agreed"),
            ((*flavor, "--unshelve"), "leave --flavor out"),
            (("--unshelve", "--snapshot", "f"), "leave --snapshot out"),
        ):
            run = run_moving_command(self.compute, ["capacity", *words])
            self.assertEqual((2, ""), run[:2])
            self.assertIn(text, run[2])


class NoticeTest(WatchCase):
    """The watch files an action for each notice of a preemptible server, once."""

    def test_each_notice_is_filed_once(self) -> None:
        cheap = self.boot(self.make_flavor({**STOCK, **YES}))
        other = self.boot(self.make_flavor(STOCK))
        self.look(3, 61.0)
        for server in (cheap, other):
            self.set_tags(server, "mine", "hpc-preempt=2026-12-04T08:05Z", "hpc-preempt=soon")
        self.look(3, 61.0)
        self.assertEqual([(NOTICE_ACTION, "2026-12-04T08:05Z")], self.actions(cheap))
        self.assertEqual([], self.actions(other))
        # A restart of nova-compute files it no second time; another time is another notice.
        self.watch._preemption_notices = type(self.watch._preemption_notices)()
        self.set_tags(cheap, "hpc-preempt=2026-12-04T08:05Z", "hpc-preempt=2026-12-05T09:00Z")
        self.look(3, 61.0)
        self.assertEqual(
            [(NOTICE_ACTION, "2026-12-04T08:05Z"), (NOTICE_ACTION, "2026-12-05T09:00Z")],
            self.actions(cheap),
        )
