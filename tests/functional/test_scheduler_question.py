# SPDX-License-Identifier: Apache-2.0
"""What the scheduler asks Placement, and when it asks as Nova does."""

from __future__ import annotations

import collections
from typing import Any
from unittest import mock
from urllib import parse

from nova.scheduler.client import report

from nova_hpc.from_nova import hosts
from nova_hpc.from_nova.patches import candidate_question
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class QuestionTest(base.HpcServersTest):
    """The scheduler's GET /allocation_candidates."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova_hpc.from_nova.patches.candidate_question.LIMITS",
                candidate_question.LimitMemory(),
            )
        )
        #: The groups of each question, the host's own aside.
        self.asked: list[int] = []
        #: What Placement answers in place of its own; None: its own.
        self.instead: list[Any] = []
        plain = report.SchedulerReportClient.get

        def get(client: Any, url: str, *arguments: Any, **keywords: Any) -> Any:
            path, _, query = url.partition("?")
            answer = plain(client, url, *arguments, **keywords)
            if path == "/allocation_candidates" and "in_tree" not in query:
                names = [name for name, _ in parse.parse_qsl(query)]
                self.asked.append(sum(name.startswith("resources") for name in names) - 1)
                if self.instead:
                    return self.instead.pop(0) or answer
            return answer

        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{report.__name__}.{NAME}", get))

    def test_for_hosts_whatever_the_devices(self) -> None:
        self.start_host("cpus", Shape(()))
        self.start_host("one", Shape((Switch(gpus=1),)))
        self.start_host("four", fixtures.two_switches(gpus=2))
        servers = [self.boot(self.make_flavor(PAIR)) for _ in range(2)]
        self.assertEqual([0, 0], self.asked)
        self.assertEqual(["four", "four"], [self.host_of(each) for each in servers])
        self.assertEqual(0, self.scattered(servers))
        self.assert_given_once()

    def test_a_refusal_is_nova_s_own(self) -> None:
        """Hosts without enough devices are in no answer, as if they had been asked for."""
        self.start_host("one", Shape((Switch(gpus=1),)))
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertEqual([0, 2], self.asked)
        self.assertIn("No host has 2 gpu free; fewer devices may help", self.fault(server))

    def test_off_by_one_option(self) -> None:
        self.flags(placement_question="devices", group="hpc")
        self.start_host("four", fixtures.two_switches(gpus=2))
        self.boot(self.make_flavor(PAIR))
        self.assertEqual([2], self.asked)

    def test_other_flavors_ask_as_ever(self) -> None:
        self.start_host("four", fixtures.two_switches(gpus=2))
        self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        self.assertEqual([2], self.asked)

    def test_an_answer_that_was_cut_off(self) -> None:
        """The hosts that it has are any hosts; Nova's question finds those with devices."""
        self.start_host("cpus", Shape(()))
        self.start_host("four", fixtures.two_switches(gpus=2))
        self.flags(max_placement_results=2, group="scheduler")
        servers = [self.boot(self.make_flavor(PAIR)) for _ in range(2)]
        self.assertEqual(["four", "four"], [self.host_of(each) for each in servers])
        # The second server's question is not tried in vain.
        self.assertEqual([0, 2, 2], self.asked)
        candidate_question.LIMITS.clear()
        self.flags(max_placement_results=3, group="scheduler")
        self._delete_server(servers[0])
        self.boot(self.make_flavor(PAIR))
        self.assertEqual([0, 2, 2, 0], self.asked)

    def test_placement_that_does_not_take_the_question(self) -> None:
        self.start_host("four", fixtures.two_switches(gpus=2))
        self.instead = [mock.Mock(status_code=500, text="broken")]
        self.boot(self.make_flavor(PAIR))
        self.assertEqual([0, 2], self.asked)

    def test_an_answer_without_candidates(self) -> None:
        """Summaries alone are no host; the reason is found as ever."""
        self.start_host("four", fixtures.two_switches(gpus=2))
        summaries = {"a": {"root_provider_uuid": "a", "traits": [], "resources": {}}}
        self.instead = [self.answer([], summaries)]
        self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertEqual([0], self.asked)

    def test_an_answer_that_cannot_be_read(self) -> None:
        self.start_host("four", fixtures.two_switches(gpus=2))
        self.instead = [self.answer([{"allocations": {"gone": {}}, "mappings": {}}], {})]
        self.boot(self.make_flavor(PAIR))
        self.assertEqual([0, 2], self.asked)

    def test_isolated_groups_have_providers_of_their_own(self) -> None:
        self.start_host("near", Shape((Switch(gpus=2, pfs=1),)))
        specs = PAIR | {"pci_passthrough:alias": "gpu:2,vf:2", "group_policy": "isolate"}
        server = self.boot(self.make_flavor(specs), state="ERROR")
        # One adapter cannot serve two groups, and Placement says so as well.
        self.assertEqual([0, 4], self.asked)
        self.assertIn("No valid host was found", self.fault(server))

    def test_several_servers_read_each_host_once_and_the_chosen_one_again(self) -> None:
        names = ("one", "two", "three")
        for name in names:
            self.start_host(name, fixtures.two_switches(gpus=2))
        read: list[str] = []
        plain = hosts.read_host

        def read_host(state: Any, *arguments: Any) -> Any:
            read.append(state.host)
            return plain(state, *arguments)

        self.useFixture(
            fixtures.fixtures.MonkeyPatch("nova_hpc.from_nova.hosts.read_host", read_host)
        )
        self.flags(max_attempts=1, group="scheduler")
        servers = self.boot_several(self.make_flavor(PAIR), 4)
        self.assertEqual(0, self.scattered(servers))
        self.assert_given_once()
        self.assertEqual(sorted(names), sorted(read[:3]))
        # Two servers fill a host, and each but the last is followed by a pass.
        placed = collections.Counter(self.host_of(each) for each in servers)
        self.assertEqual([2, 2], sorted(placed.values()))
        self.assertEqual(3 + 3, len(read))

    def boot_several(self, flavor: str, count: int) -> list[Any]:
        """Servers of one request."""
        body = self._build_server(flavor_id=flavor, networks="none")
        self.api.post_server({"server": body | {"min_count": count, "max_count": count}})
        found = self.api.get_servers(detail=False)
        return [self._wait_for_state_change(each, "ACTIVE") for each in found]

    def answer(self, candidates: Any, summaries: Any) -> Any:
        """An answer of Placement."""
        return mock.Mock(
            status_code=200,
            json=lambda: {"allocation_requests": candidates, "provider_summaries": summaries},
        )


NAME = "SchedulerReportClient.get"
