# SPDX-License-Identifier: Apache-2.0
"""The client dies at a request of ``openstack hpc gpu``: what is left is named, and the same
command again goes on.

``slow``: at every request that changes something, before and after it takes effect, and at every
second of the others, until 100 clients have died.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.functional.gpu_client import base

_CREATE = base.GpuClientTest.share_words("sim", "--slots", "2")
_ATTACH = ("attach", "sim", "one")
_DETACH = ("detach", "sim", "one")
_DELETE = ("share", "delete", "--force", "sim")


class GpuKillTest(base.GpuClientTest):
    HOSTS = 2

    def killed(self, at: int, before: bool, words: tuple[str, ...]) -> bool:
        """Run a command whose process is ended at a request; False: it ended before that."""
        self.front.arm(at, before)
        self.front.kill = lambda: os.kill(int(self._wait_for(".pid")), signal.SIGKILL)
        said = self.openstack("hpc", "gpu", *words)
        self.front.arm()
        self.assertIn(said.status, (-signal.SIGKILL, 0), said.err)
        return said.status != 0

    def requests_of(self, words: tuple[str, ...]) -> list[str]:
        """The requests of a command that nobody disturbs."""
        self.front.arm()
        self.gpu(*words)
        return list(self.front.requests)

    def prepare(self, verb: str) -> None:
        """Bring the cloud to where the command begins."""
        if verb != "create":
            self.gpu(*_CREATE)
        if verb in ("detach", "delete"):
            self.gpu(*_ATTACH)

    def finish(self, verb: str, words: tuple[str, ...]) -> None:
        """Whatever was left is named, goes on, and leaves nothing in the end."""
        self.wait_until_calm()
        self.assert_all_is_named()
        rows = self.shares()
        if verb == "create":
            if not rows or rows[0]["State"] != "READY":
                self.gpu(*words)
            self.assertEqual("READY", self.show()["state"])
        elif verb == "attach":
            self.gpu(*words)
            self.assertEqual("", self.show()["reason"])
            self.assertEqual({True}, {slot["may_connect"] for slot in self.show()["clients"]})
        elif verb == "detach" and rows[0]["Clients"]:
            self.gpu(*words)
            self.assertEqual([], self.show()["clients"])
        living = [row for row in self.shares() if row["State"] != "GONE"]
        if living:
            self.gpu(*_DELETE)
        elif self.shares():
            # The server is gone: the next command of anyone takes the rest back.
            self.gpu(*_DETACH, status=1)
        self.wait_until_calm()
        self.assert_no_share_left()

    def kill_at(self, verb: str, words: tuple[str, ...], chosen: list[int]) -> int:
        died = 0
        for at in chosen:
            for before in (True, False):
                self.prepare(verb)
                died += self.killed(at, before, words)
                self.finish(verb, words)
        return died

    @pytest.mark.slow
    def test_some_requests_of_attach(self) -> None:
        self.boot("one")
        self.prepare("attach")
        asked = self.requests_of(_ATTACH)
        self.gpu(*_DELETE)
        # After the slot was written, and after the way was opened.
        chosen = [number for number, one in enumerate(asked, 1) if one.startswith(("POST", "PUT"))]
        for at in chosen[1:3]:
            self.prepare("attach")
            self.assertTrue(self.killed(at, False, _ATTACH))
            self.finish("attach", _ATTACH)

    @pytest.mark.slow
    def test_a_hundred_clients_die(self) -> None:
        self.boot("one")
        commands = {"create": _CREATE, "attach": _ATTACH, "detach": _DETACH, "delete": _DELETE}
        total, step = 0, 2
        for verb, words in commands.items():
            self.prepare(verb)
            asked = self.requests_of(words)
            if verb != "delete":
                self.gpu(*_DELETE)
            changes = [n for n, one in enumerate(asked, 1) if not one.startswith("GET")]
            chosen = sorted({*changes, *range(1, len(asked) + 1, step)})
            died = self.kill_at(verb, words, chosen)
            print(
                f"RESULT: gpu {verb}: {len(asked)} requests, of them {len(changes)} change "
                f"something; {died} clients died, 0 leaks"
            )
            total += died
        self.assertGreaterEqual(total, 100)
