# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc capacity --make-room --yes`` on Nova's stack: room is made with owners' consent."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from nova_hpc_tools.cloud import drain_api
from nova_hpc_tools.cloud.room import room_maker
from nova_hpc_tools.cloud.room.room_maker import RoomMaker
from nova_hpc_tools.readers import snapshot
from tests.functional import fixtures
from tests.functional.drain_base import FOUR, PAIR, DrainCase, run_moving_command
from tests.functional.live_base import LiveBase

WHOLE = {"pci_passthrough:alias": "gpu:4", "hpc:affinity": "switch"}


class RoomCase(DrainCase):
    """Three hosts with four GPUs each; no host is free."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{room_maker.__name__}._PAUSE", 0.1))
        self.movable = self.make_flavor({**PAIR, "hpc:movable": "yes"})
        self.whole = self.make_flavor(WHOLE)
        #: Called with the number of each reading of the cloud, before it.
        self.before_reading = lambda number: None

    def fill(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """One movable pair on alpha, one other on beta, and gamma is full."""
        one = self.make("one", self.movable, "alpha")
        two = self.make("two", self.pair, "beta")
        self.make("all", self.whole, "gamma")
        return one, two

    def room(self, *words: str, cloud: Any = drain_api.DrainCloud) -> tuple[int, str, str]:
        numbers = iter(range(1000))

        def read() -> Any:
            self.before_reading(next(numbers))
            for host in self.computes:
                self.update(host)  # the next periodic task
            return snapshot.take_cloud_snapshot()

        question = ("capacity", "--flavor", self.whole, "--make-room", "--timeout", "20")
        return run_moving_command(self.compute, [*question, *words], cloud, read)

    def tags_of(self, server: dict[str, Any]) -> list[str]:
        return list(self.admin_api.get_server(server["id"])["tags"])


class MakeRoomTest(RoomCase):
    def test_room_is_made(self) -> None:
        one, two = self.fill()
        status, out, err = self.room()
        self.assertEqual(1, status, err)
        self.assertIn("1 move makes room for 1 x ", out)
        self.assertEqual(["alpha", "beta"], self.where(one, two))
        status, out, err = self.room("--yes")
        self.assertEqual(0, status, err)
        self.assertEqual(["done: one is on beta"], out.splitlines()[:1])
        self.assertIn(": fits now\n", out)
        self.assertEqual(["beta", "beta"], self.where(one, two))
        self.assertEqual([], self.tags_of(one))
        self.assert_all_free("alpha")
        self.make("new", self.whole, "alpha")
        self.assert_given_once()

    def test_programs_read_which_moves_are_done(self) -> None:
        one, _ = self.fill()
        status, out, err = self.room("--yes", "-f", "json")
        self.assertEqual(0, status, err)
        document = json.loads(out)
        self.assertTrue(document["fits"])
        self.assertEqual(
            [(one["id"], "alpha", "beta", True, True)],
            [
                (each["server"], each["from"], each["to"], each["agreed"], each["done"])
                for each in document["moves"]
            ],
        )
        status, out, err = self.room("--yes")
        self.assertEqual(0, status, err)
        self.assertIn("fits already", out)

    def test_without_consent_nothing_moves(self) -> None:
        """The owner of the movable server takes the consent back; the flavor still has it."""
        one, two = self.fill()
        self.api.api_put(
            f"/servers/{one['id']}/metadata/hpc:movable", {"meta": {"hpc:movable": "no"}}
        )
        status, out, err = self.room("--yes")
        self.assertEqual(1, status, err)
        self.assertIn("no moves make room", out)
        self.assertEqual(["alpha", "beta"], self.where(one, two))

    def test_consent_that_ends_during_the_run(self) -> None:
        one, two = self.fill()

        def withdraw() -> None:
            body = {"meta": {"hpc:movable": "no"}}
            self.api.api_put(f"/servers/{one['id']}/metadata/hpc:movable", body)

        class Late(drain_api.DrainCloud):
            def server(self, uuid: str) -> drain_api.DrainServer | None:
                withdraw()
                return super().server(uuid)

        status, out, err = self.room("--yes", cloud=Late)
        self.assertEqual((1, ""), (status, out))
        self.assertIn(
            f"0 of 1 moves are made; stopped at one ({one['id']}): its owner does not", err
        )
        self.assertEqual(["alpha", "beta"], self.where(one, two))
        self.assertEqual([], self.tags_of(one))

    def test_another_takes_the_place(self) -> None:
        """The plan is outdated when it is carried out."""
        one, two = self.fill()

        def take(number: int) -> None:
            if number == 1:
                self.make("late", self.pair, "beta")

        self.before_reading = take
        status, out, err = self.room("--yes", "--timeout", "1")
        self.assertEqual((1, ""), (status, out))
        self.assertIn("0 of 1 moves are made; stopped at one", err)
        self.assertIn("beta does not take it: ", err)
        self.assertEqual(["alpha", "beta"], self.where(one, two))

    def test_another_takes_the_room_of_the_first_move(self) -> None:
        """The second move is in vain then, so its owner is left alone."""
        self.host("delta", FOUR)
        movable = [self.make("one", self.movable, "alpha"), self.make("two", self.movable, "gamma")]
        self.make("three", self.pair, "beta")
        self.make("four", self.pair, "delta")
        late: list[dict[str, Any]] = []

        def take(number: int) -> None:
            for left in {"alpha", "gamma"} - set(self.where(*movable)):
                if not late:
                    late.append(self.make("late", self.pair, left))

        self.before_reading = take
        # A reading cleans all devices, so a second one brings nothing new.
        once = mock.patch.object(
            RoomMaker, "await_cloud", lambda maker, suffices: suffices(maker.read())
        )
        with once:
            status, out, err = self.room("--yes", "--members", "2")
        self.assertEqual(1, status, err)
        self.assertEqual(1, out.count("done: "), err)
        self.assertIn("1 of 2 moves are made; the rest would not make room", err)
        self.assertEqual(1, len({"alpha", "gamma"} & set(self.where(*movable))))
        self.assertEqual([[], []], [self.tags_of(each) for each in movable])

    def test_a_server_that_disappears(self) -> None:
        one, two = self.fill()

        def delete(number: int) -> None:
            if number == 1:
                self._delete_server(one)

        self.before_reading = delete
        status, out, err = self.room("--yes")
        self.assertEqual(0, status, err)
        self.assertIn("done: one is deleted\n", out)
        self.assertEqual(["beta"], self.where(two))

    def test_cut_short_before_the_confirmation(self) -> None:
        """The next run finishes the move, and no resize of a user."""
        one, two = self.fill()

        class Dies(drain_api.DrainCloud):
            def confirm(self, uuid: str) -> None:
                raise KeyboardInterrupt

        status, _, err = self.room("--yes", cloud=Dies)
        self.assertNotEqual(0, status)
        self.assertIn("0 of 1 moves are made; stopped at one", err)
        self.assertEqual("VERIFY_RESIZE", self.status(one)[0])
        self.assertEqual([room_maker.TAG], self.tags_of(one))
        # Without --yes, the server keeps both places.
        self.assertEqual(1, self.room()[0])
        self.assertEqual("VERIFY_RESIZE", self.status(one)[0])
        status, out, err = self.room("--yes")
        self.assertEqual(0, status, err)
        self.assertIn("done: one is on beta\n", out)
        self.assertIn("fits already", out)
        self.assertEqual([], self.tags_of(one))
        self.assertEqual(["beta", "beta"], self.where(one, two))
        self.assert_given_once()

    @pytest.mark.slow
    def test_a_resize_stays_its_users(self) -> None:
        """A user gives the own server the tag; its resize waits for the user all the same."""
        one, _ = self.fill()
        self.flags(allow_resize_to_same_host=False)
        resize = {"resize": {"flavorRef": self.make_flavor(PAIR)}}
        drain_api.DrainCloud(self.compute).add_tag(one["id"], room_maker.TAG)
        self.admin_api.post_server_action(one["id"], resize)
        self._wait_for_state_change(one, "VERIFY_RESIZE")
        _, out, err = self.room("--yes")
        self.assertIn("no moves", out, err)
        self.assertEqual("VERIFY_RESIZE", self.status(one)[0])

    def test_bad_words(self) -> None:
        for words, text in (
            (("--yes",), "--yes needs --make-room"),
            (("--make-room", "--yes", "--snapshot", "f"), "leave --snapshot out"),
        ):
            run = run_moving_command(self.compute, ["capacity", "--flavor", self.whole, *words])
            self.assertEqual((2, ""), run[:2])
            self.assertIn(text, run[2])


class LiveRoomTest(RoomCase, LiveBase):
    """The operator has declared the devices ``live_migratable``."""

    def host(self, name: str, shape: fixtures.Shape, **options: Any) -> Any:
        entries = [{**entry, "live_migratable": "yes"} for entry in shape.device_spec()]
        return super().host(name, shape, device_spec=entries, **options)

    def moves_of(self, server: dict[str, Any]) -> list[str]:
        actions = self.admin_api.get_instance_actions(server["id"])
        return [each["action"] for each in reversed(actions) if each["action"] != "create"]

    def test_the_server_runs_on(self) -> None:
        one, two = self.fill()
        status, out, err = self.room()
        self.assertEqual(1, status, err)
        self.assertIn("  live  ", out)
        status, out, err = self.room("--yes")
        self.assertEqual(0, status, err)
        self.assertEqual(["done: one is on beta"], out.splitlines()[:1])
        self.assertEqual(["beta", "beta"], self.where(one, two))
        self.assertEqual(["live-migration"], self.moves_of(one))
        self.assertEqual([], self.tags_of(one))
        self.assert_all_free("alpha")
        self.assert_held("beta", one, two)

    def test_a_server_that_does_not_move_live_moves_cold(self) -> None:
        one, two = self.fill()
        self.migrate = self._fail
        status, out, err = self.room("--yes")
        self.assertEqual(0, status, err)
        self.assertIn("one does not move live: ", out)
        self.assertIn("done: one is on beta\n", out)
        self.assertEqual(["beta", "beta"], self.where(one, two))
        self.assertEqual(["live-migration", "migrate", "confirmResize"], self.moves_of(one))
        self.assertEqual([], self.tags_of(one))
        self.assert_all_free("alpha")
        self.assert_held("beta", one, two)
