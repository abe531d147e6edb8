# SPDX-License-Identifier: Apache-2.0
"""The client dies at a request, or loses its answer: what is left is listed, and ends or is whole.

``slow``: at every request of a creation, a change and a deletion, before and after it
takes effect.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.functional.cluster_client import base

_NIC = ("--nic", f"net-id={base.NETWORK}")


class KillTest(base.ClusterClientTest):
    HOSTS = 2

    def create_words(self, *more: str) -> tuple[str, ...]:
        usual = ("--members", "2", "--flavor", "one", "--image", base.IMAGE)
        return ("create", "k", *usual, *more)

    def finish_or_end(self, resumes: bool) -> None:
        self.assert_all_is_listed()
        if self.groups() and resumes:
            self.cluster("create", "--resume", "k")
            self.assertEqual({"ACTIVE"}, {each["status"] for each in self.servers()})
            self.assertEqual(["k-1", "k-2"], sorted(each["name"] for each in self.servers()))
        if self.groups():
            self.cluster("delete", "k")
        self.assert_nothing_left()

    def test_create_is_killed_at_some_requests(self) -> None:
        # Before a server is asked for, and after.
        for at, before, resumes in ((12, True, True), (13, False, False)):
            self.assertTrue(self.killed(at, before, self.create_words(*_NIC)))
            self.finish_or_end(resumes)

    @pytest.mark.slow
    def test_control_c_says_how_to_go_on(self) -> None:
        # Before the group exists there is nothing to go on with, and nothing is said.
        self.front.arm(13)
        self.front.kill = lambda: os.kill(int(self._wait_for(".pid")), signal.SIGINT)
        said = self.openstack("hpc", "cluster", *self.create_words(*_NIC))
        self.assertEqual(130, said.status, said.err)
        self.assertIn("openstack hpc cluster create --resume k goes on", said.err)
        self.front.arm()
        self.finish_or_end(resumes=True)

    @pytest.mark.slow
    def test_answers_that_are_lost(self) -> None:
        # The answers to the group, to a port, to a server: none is asked for twice.
        made = self.cluster(*self.create_words(*_NIC), "-f", "json")
        self.assertEqual("ACTIVE", made.json["state"])
        asked = list(self.front.requests)
        self.cluster("delete", "k")
        kinds = ("/v2.1/os-server-groups", "/network/v2.0/ports", "/v2.1/servers")
        numbers = [asked.index(f"POST {kind}") + 1 for kind in kinds]
        for number in numbers:
            self.front.arm()
            self.front.lose = {number}
            self.cluster(*self.create_words(*_NIC))
            self.front.arm()
            self.assert_complete("k", [1, 2], ports_each=1)
            self.cluster("delete", "k")
            self.assert_nothing_left()

    def _every_step(self, *more: str) -> None:
        """Kill it before and after each step; one of the two is resumed, one deleted."""
        for resumes in self.kill_at_each_step(self.create_words(*more)):
            self.finish_or_end(resumes)

    @pytest.mark.slow
    def test_every_step_of_create_at_once(self) -> None:
        self._every_step("--network", base.NETWORK)

    @pytest.mark.slow
    def test_every_step_of_create_with_ports(self) -> None:
        self._every_step(*_NIC)

    def _every_step_of_change(self, *words: str) -> None:
        """Kill a change of a cluster of two before and after each step."""
        create = lambda: self.cluster(*self.create_words(*_NIC))  # noqa: E731
        for _ in self.kill_at_each_step(words, create):
            self.assert_all_is_listed()
            if self.groups() and words[0] != "delete":
                self.cluster("create", "--resume", "k")
                (row,) = self.cluster("list", "-f", "json").json
                self.assertEqual("ACTIVE", row["State"])
                count = row["Members"].partition("/")
                self.assertEqual(count[0], count[2])
                self.assertEqual(int(count[0]), len(self.servers()))
                self.assertEqual(int(count[0]), len(self.made_ports()))
            if self.groups():
                self.cluster("delete", "k")
            self.assert_nothing_left()

    @pytest.mark.slow
    def test_every_step_of_scale_up(self) -> None:
        self._every_step_of_change("scale", "k", "--members", "3")

    @pytest.mark.slow
    def test_every_step_of_scale_down(self) -> None:
        self._every_step_of_change("scale", "k", "--members", "1")

    @pytest.mark.slow
    def test_every_step_of_replace(self) -> None:
        self._every_step_of_change("replace", "k", "2")

    @pytest.mark.slow
    def test_every_step_of_delete(self) -> None:
        self._every_step_of_change("delete", "k")
