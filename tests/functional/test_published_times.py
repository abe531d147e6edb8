# SPDX-License-Identifier: Apache-2.0
"""Operators publish the times from which clusters fit; users read them before a creation."""

from __future__ import annotations

import datetime
from typing import Any

from nova import utils as helpers

from nova_hpc_common.wire.room_note import RoomNote, read_room_note
from tests.functional.cluster_client import base as client_base
from tests.functional.drain_base import DrainCase, run_moving_command

WHOLE = {"pci_passthrough:alias": "gpu:4", "hpc:affinity": "switch", "hpc:fabric": "leaf"}


class PublishTest(DrainCase):
    """Two hosts in one leaf and one in another, with four GPUs each."""

    def setUp(self) -> None:
        super().setUp()
        self.whole = self.make_flavor(WHOLE)

    def describe(self, text: str) -> None:
        with helpers.temporary_mutation(self.admin_api, microversion="2.55"):
            self.admin_api.api_put(f"/flavors/{self.whole}", {"flavor": {"description": text}})

    @property
    def description(self) -> str:
        """As a user reads it."""
        with helpers.temporary_mutation(self.api, microversion="2.55"):
            return str(self.api.get_flavor(self.whole)["description"])

    def publish(self, *words: str) -> tuple[int, str, str]:
        question = ("when", "--flavor", self.whole, "--members", "3", "--publish")
        return run_moving_command(self.compute, [*question, *words])

    def test_users_read_the_times(self) -> None:
        self.describe("All GPUs of a node.")
        tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        text = tomorrow.isoformat(timespec="minutes")
        server = self.make("one", self.pair, "alpha")
        self.api.api_put(
            f"/servers/{server['id']}/metadata/hpc:until", {"meta": {"hpc:until": text}}
        )
        status, out, err = self.publish()
        self.assertEqual((0, ""), (status, err))
        self.assertIn(self.description.removeprefix("All GPUs of a node. "), out)
        self.assertTrue(self.description.startswith("All GPUs of a node. [room "))
        note = read_room_note(self.description)
        # The leaf has two hosts.
        end = text.replace("+00:00", "Z")
        self.assertEqual({1: "now", 2: end, 3: "unknown"}, note.times)
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual(0, self.publish()[0])
        note = read_room_note(self.description)
        self.assertEqual({1: "now", 2: "now", 3: "unknown"}, note.times)
        self.assertEqual(1, self.description.count("[room "))

    def test_options_of_some_users(self) -> None:
        self.describe("As it was.")
        for words in (("--level", "leaf"), ("--snapshot", "f"), ("--image", "i")):
            status, out, err = self.publish(*words)
            self.assertEqual((2, ""), (status, out))
            self.assertIn(f"leave {words[0]} out", err)
        self.assertEqual("As it was.", self.description)


class WhenTest(client_base.ClusterClientTest):
    HOSTS = 1

    def describe(self, text: str) -> None:
        self.admin_api.microversion = "2.55"
        self.admin_api.api_put(f"/flavors/{self.flavor}", {"flavor": {"description": text}})

    def ask(self, *words: str, status: int = 0) -> Any:
        return self.cluster("create", "k", "--flavor", "one", "--when", *words, status=status)

    def test_the_time_is_shown_and_nothing_created(self) -> None:
        note = RoomNote("2026-12-01T11:00Z", {2: "now", 4: "2026-12-04T08:00Z", 8: "unknown"})
        self.describe(f"A node. {note.text}")
        for words, time in ((("--members", "1"), "now"), (("--numbers", "3-5"), note.times[4])):
            shown = self.ask(*words, "-f", "json").json
            self.assertEqual(("one", time), (shown["flavor"], shown["fits_from"]))
            self.assertEqual("2026-12-01T11:00Z", shown["as_of"])
        for members in ("8", "9"):
            said = self.ask("--members", members, status=1)
            self.assertIn(f"no time was known from which {members} members of one fit", said.err)
        self.assertEqual([], self.servers())

    def test_nothing_is_published(self) -> None:
        said = self.ask("--members", "2", status=1)
        self.assertIn("the description of flavor one has no times", said.err)
        self.assertIn("--when needs --flavor", self.ask(status=1).err)
