# SPDX-License-Identifier: Apache-2.0
"""Shared memory through a server's life: kept, given back, refused, put in order."""

from __future__ import annotations

import os
from unittest import mock

import attrs

from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.segments import segment_record
from tests.functional.segments_base import SHARED, SegmentsTest

HARD, SOFT = {"reboot": {"type": "HARD"}}, {"reboot": {"type": "SOFT"}}
SNAPSHOT = {"createImage": {"name": "snapshot"}}
LIVE = {"os-migrateLive": {"host": None, "block_migration": "auto"}}


class KeptTest(SegmentsTest):
    """One host, and members of one group."""

    def setUp(self) -> None:
        super().setUp()
        self.node()

    def test_a_life(self) -> None:
        group = self.group()
        first, second = self.make(group), self.make(group)
        (name,) = self.files()
        marker = (self.folder() / str(name)).stat().st_ino

        # Everything that starts a guest again keeps the part.
        self.assertEqual("", self.ask(first, HARD))
        self.assertEqual("", self.ask(second, SOFT))
        self.assertEqual("", self.ask(first, {"rescue": {}}, "RESCUE"))
        self.assertEqual("", self.ask(first, {"unrescue": None}))
        self.assertEqual("", self.ask(second, {"os-stop": None}, "SHUTOFF"))
        self.update("alpha")
        self.assertEqual([first["id"], *7 * [""]], self.members(name))
        self.assertEqual("", self.ask(second, {"os-start": None}))
        self.assertEqual([(name, 0), (name, 1)], [self.use(first), self.use(second)])
        self.assertEqual([first["id"], second["id"], *6 * [""]], self.members(name))

        # What would save or move a guest is refused, and the guest runs on.
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        for body, words in (
            ({"suspend": None}, "cannot be suspended"),
            (SNAPSHOT, "cannot be snapshot while it runs"),
        ):
            reason = self.ask(first, body)
            self.assertIn(f"A server that shares memory {words}", reason)
            self.assert_no_secrets(reason)
            self.assertEqual((name, 0), self.use(first))
        self.assertNotIn("snapshot", [each["name"] for each in self.glance.detail(None)])
        driver = self.computes["alpha"].driver
        with self.assertRaisesRegex(Exception, "cannot be live-migrated.*Use cold migration"):
            driver.check_can_live_migrate_source(None, self.instance(first), None)
        with self.assertRaisesRegex(Exception, "cannot be resumed from its saved state"):
            driver.resume(None, self.instance(first), None)

        # One that another keeps alive is left alone by the first's end; the last ends it.
        self.delete(first)
        self.assertEqual((["", second["id"], *6 * [""]]), self.members(name))
        third = self.make(group)
        self.assertEqual((name, 0), self.use(third))
        self.assertEqual(marker, (self.folder() / str(name)).stat().st_ino)
        self.delete(third)
        self.assertEqual("", self.ask(second, {"os-stop": None}, "SHUTOFF"))
        self.update("alpha")
        self.assertEqual([], self.files())
        self.assertEqual("", self.ask(second, {"os-start": None}))
        new, part = self.use(second)
        self.assertNotEqual(name, new)
        self.assertEqual(1, part)

        # The group is gone: the guest runs on, and starts again with memory of its own.
        self.api.delete_server_group(group)
        self.assertEqual("", self.ask(second, HARD))
        own, _ = self.use(second)
        self.assertEqual((second["id"], [own]), (own.owner, self.files()))

    def test_what_accidents_leave(self) -> None:
        group = self.group()
        first, second = self.make(group), self.make(group)
        keeper = self.keeper()
        (name,) = self.files()
        # A nova-compute that was killed while it made one, and what others have put there.
        killed = segment_record.name_new_file(group, 0, name.shape)
        keeper.folder.make_file(killed)
        (self.folder() / "notes").write_text("an operator's")
        link = self.folder() / str(segment_record.name_new_file(group, 0, name.shape))
        link.symlink_to("/etc/passwd")
        self.update("alpha")
        self.assertFalse((self.folder() / str(killed)).exists())
        self.assertTrue(link.is_symlink())
        self.assertEqual("an operator's", (self.folder() / "notes").read_text())
        self.assertEqual(1, len(self.log_lines("notes is no file of nova-hpc's: move it")))
        (self.folder() / "notes").unlink()
        link.unlink()

        # Libvirt is silent: all is kept, and nobody joins.
        unknown = guest_domains.unknown_guest_domains("it is restarted")
        real = self.computes["alpha"].driver.hpc_segments
        silent = attrs.evolve(keeper, domains=lambda: unknown)
        os.truncate(self.folder() / str(name), name.shape.file_bytes)
        with mock.patch.object(
            self.computes["alpha"].driver, "hpc_segments", attrs.evolve(real, keeper=silent)
        ):
            stray = segment_record.name_new_file(group, 1, name.shape)
            keeper.folder.make_file(stray)
            self.update("alpha")
            self.assertEqual({name, stray}, set(self.files()))
            third = self.make(group)
            self.assertEqual({"why": "unknown"}, self.told(third))
        self.update("alpha")
        self.assertEqual([name], self.files())

        # A QEMU that was killed, and a domain that was undefined by hand.
        self.domain(first).destroy()
        self.update("alpha")
        self.assertEqual(["", second["id"], *6 * [""]], self.members(name))
        self.domain(second).destroy()
        self.domain(second).undefine()
        self.update("alpha")
        self.assertEqual([], self.files())
        self.assertEqual("", self.ask(second, HARD))
        self.assertEqual((group, 2), (self.use(second)[0].owner, len(self.use(second))))

        # A file that a guest's host has lost, and one that was changed: nobody joins.
        (lost,) = self.files()
        (self.folder() / str(lost)).chmod(0o644)
        fourth = self.make(group)
        self.assertEqual({"why": "unknown"}, self.told(fourth))
        self.assertEqual(1, len(self.log_lines("is open to others than its owner")))

    def test_less_than_there_was(self) -> None:
        """The option is lowered to nothing, with servers running; the service starts anew."""
        group = self.group()
        first, second, other = self.make(group), self.make(group), self.make(self.group("b"))
        name = self.use(first)[0]
        driver = self.computes["alpha"].driver
        real = driver.hpc_segments
        less = attrs.evolve(real.keeper, values=("0",))
        with mock.patch.object(driver, "hpc_segments", attrs.evolve(real, keeper=less)):
            self.update("alpha")
            self.assertEqual(2, len(self.files()))
            self.assertTrue(self.log_lines("gives 0: running servers keep theirs"))
            # As long as somebody keeps the memory, and even alone: it is there.
            self.assertEqual("", self.ask(first, HARD))
            self.assertEqual("", self.ask(other, HARD))
            self.assertEqual((name, 0), self.use(first))
            new = self.make(group)
            self.assertEqual({"why": "off"}, self.told(new))
            # What it had is gone: it is refused, by name, and keeps its state.
            self.assertEqual("", self.ask(other, {"os-stop": None}, "SHUTOFF"))
            self.update("alpha")
            self.assertEqual([name], self.files())
            reason = self.ask(other, {"os-start": None}, "SHUTOFF")
            self.assertIn("which cannot be made again on the host: it gives none", reason)
            self.assertIn("Or resize the server to a flavor without hpc:shared_memory", reason)
            self.assert_no_secrets(reason)
        self.assertEqual("", self.ask(other, {"os-start": None}))
        self.assertIsNotNone(self.use(other))
        # A server that was started without stays without, as its hardware.
        self.assertEqual("", self.ask(new, HARD))
        self.assertEqual(({"why": "before"}, None), (self.told(new), self.use(new)))
        self.assertEqual((name, 1), self.use(second))
        self.assertEqual(SHARED, dict(self.instance_flavor(new)))
