# SPDX-License-Identifier: Apache-2.0
"""Thirty-two causes for which a server finds no host, made for real; and the table of the docs.

Each with what its user reads, what its operator finds in the log of nova-scheduler, and what
``nova-hpc explain --server`` says of the devices. One cloud serves all rows: what a row changes
it changes back. The table is ``docs/source/admin/causes.inc``; after a change write it anew
with ``NOVA_HPC_WRITE_CAUSES=1`` in the environment.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from nova import context as nova_context
from nova import objects
from oslo_serialization import jsonutils
from oslo_utils import uuidutils

from nova_hpc.from_nova.log_throttle import LOG_THROTTLE
from nova_hpc.wire.stats import StatsDocument
from nova_hpc_tools.cloud.explain import explain_asked
from nova_hpc_tools.readers import server_requests, snapshot
from nova_hpc_tools.snapshot import SnapshotError
from tests.functional import base, fixtures
from tests.functional.causes import CAUSES, Cause
from tests.functional.fixtures import Shape, Switch

PAGE: Final = Path(__file__).parents[2] / "docs/source/admin/causes.inc"


def table(rows: Mapping[str, tuple[str, str, str]]) -> str:
    """The page: cause -> what user, log and explain say."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    head = ("Cause", "The user reads", "The log of nova-scheduler", "``nova-hpc explain --server``")
    for cells in (head, *((name, *map(_unnamed, said)) for name, said in rows.items())):
        lines += [
            f"   {'*' if not number else ' '} - {_plain(cell)}" for number, cell in enumerate(cells)
        ]
    return "\n".join(lines) + "\n"


_NEAREST: Final = "the nearest is HOST, which has the devices, but not ..."


def _unnamed(text: str) -> str:
    """Hosts in an order of their own.

    Of those that are equally near the one with the first UUID is named, and several come in the
    order of Placement's answer: both are drawn anew for each cloud.
    """
    text = text.replace(
        "rejects beta, beta; alpha, alpha for", "rejects alpha, alpha; beta, beta for"
    )
    text = re.sub(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}", "...", text)
    return re.sub(r"the nearest is \w+, which has the devices, but .*", _NEAREST, text)


def _plain(text: str) -> str:
    return text if text.startswith("``") else re.sub(r"([*`_|\\])", r"\\\1", text)


def test_page_has_all_causes() -> None:
    """Each row of the docs has what user and ``explain`` read, as :data:`CAUSES` expects it.

    Of the log a row has only the part that is the same in each cloud.
    """
    page = re.sub(r"\\(.)", r"\1", PAGE.read_text(encoding="utf-8"))
    rows = re.findall(r"^   \* - (.*)\n     - (.*)\n     - .*\n     - (.*)$", page, re.MULTILINE)
    said = {name: (user, explain) for name, user, explain in rows[1:]}
    assert list(said) == [cause.name for cause in CAUSES]
    for cause in CAUSES:
        user, explain = said[cause.name]
        assert (user.startswith(cause.user), explain.startswith(cause.explain)) == (True, True), (
            cause.name
        )


class CausesTest(base.HpcServersTest):
    """One cloud: two hosts with GPUs, one of them in a zone of its own, and one without."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(spread_equal_sets=False, group="hpc")
        self.flags(ram_allocation_ratio=1.0, cpu_allocation_ratio=1.0, disk_allocation_ratio=1.0)
        cpus = {"cpu_dedicated_set": "4-7", "cpu_shared_set": "0-3"}
        self.start_host("alpha", fixtures.two_switches(gpus=2), **cpus)
        self.start_host("beta", Shape((Switch(gpus=2),)), **cpus)
        more = {"cpu_dedicated_set": "8-11", "cpu_shared_set": "0-7"}
        self.start_host("gamma", Shape((), cores=3), **more)
        self.start_host("delta", Shape(()), **cpus)
        self.make_aggregate("two", {"availability_zone": "az2"}, ["beta", "delta"])
        self.make_aggregate("three", {"availability_zone": "az3"}, ["gamma"])
        for trait, names in (("CUSTOM_QUIET", ["gamma"]), ("CUSTOM_BUSY", ["alpha", "beta"])):
            self._create_trait(trait)
            for name in names:
                self.give_trait(name, trait)
        for trait in ("CUSTOM_NOWHERE", "CUSTOM_IN_IMAGE", "CUSTOM_LICENSED"):
            self._create_trait(trait)
        self.images: dict[tuple[tuple[str, str], ...], str] = {}

    # -- the cloud --------------------------------------------------------

    def give_trait(self, host: str, trait: str) -> None:
        provider = self._get_provider_uuid_by_host(host)
        self._set_provider_traits(provider, [*self._get_provider_traits(provider), trait])

    def make_aggregate(self, name: str, metadata: Mapping[str, str], hosts: list[str]) -> int:
        number = self.admin_api.post_aggregate({"aggregate": {"name": name}})["id"]
        action = {"set_metadata": {"metadata": metadata}}
        self.admin_api.post_aggregate_action(number, action)
        for host in hosts:
            self.admin_api.add_host_to_aggregate(number, host)
        return number

    def remove_aggregate(self, number: int, hosts: list[str]) -> None:
        for host in hosts:
            self.admin_api.api_post(
                f"/os-aggregates/{number}/action", {"remove_host": {"host": host}}
            )
        self.admin_api.delete_aggregate(number)

    def take(self, consumer: str, host: str, address: str) -> None:
        """Somebody else has a device in Placement."""
        gpu = self._device(host, address)
        self.placement.put(
            f"/allocations/{consumer}",
            {
                "allocations": {gpu: {"resources": {"CUSTOM_HPC_GPU": 1}}},
                "project_id": "others",
                "user_id": "others",
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            },
            version="1.38",
        )

    def set_stats(self, host: str, document: StatsDocument) -> None:
        """What the node of a host says of itself."""
        node = objects.ComputeNode.get_by_nodename(nova_context.get_admin_context(), host)
        node.stats = dict(node.stats or {}) | {"hpc": document.dumps()}
        node.save()

    def reserve(self, host: str, address: str, amount: int) -> None:
        """As the driver does in Placement with what a node withholds."""
        gpu = self._device(host, address)
        url = f"/resource_providers/{gpu}/inventories/CUSTOM_HPC_GPU"
        now = self.placement.get(url, version="1.26").body
        answer = self.placement.put(url, now | {"reserved": amount}, version="1.26")
        assert answer.status == 200, answer.body

    def _device(self, host: str, address: str) -> str:
        """The provider of a device."""
        body = self.placement.get("/resource_providers", version="1.14").body
        above = self._get_provider_uuid_by_host(host)
        (found,) = [
            each["uuid"]
            for each in body["resource_providers"]
            if each["parent_provider_uuid"] == above and each["name"].endswith(address)
        ]
        return str(found)

    def image(self, properties: Mapping[str, str]) -> str:
        key = tuple(sorted(properties.items()))
        if key not in self.images:
            plain = dict(self.glance.image1)
            plain |= {"id": uuidutils.generate_uuid(), "properties": dict(properties)}
            self.images[key] = self.glance.create(None, plain)["id"]
        return self.images[key]

    # -- a row ------------------------------------------------------------

    def say(self, cause: Cause) -> tuple[str, str, str]:
        """Make a cause; what user, operator and ``explain`` read."""
        LOG_THROTTLE.clear()
        before = len(self.stdlog.logger.output)
        keywords: dict[str, str] = dict(cause.boot)
        if cause.image:
            keywords["image_uuid"] = self.image(cause.image)
        change = cause.change(self) if cause.change else contextlib.nullcontext()
        flavor = self.make_flavor(cause.specs, **cause.flavor)
        with change:
            server = self._ask(flavor, cause.count, keywords)
            fault = self.fault(server)
            report = self._explained(server["id"])
        log = self.stdlog.logger.output[before:].splitlines()
        found = [line for line in log if " INFO " in line and re.search(cause.operator, line)]
        self._delete_all()
        line = re.sub(r"^.*? INFO \[\S+\] ", "", found[-1]) if found else "nothing"
        line = re.sub(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}", "...", line)
        return fault.removeprefix("No valid host was found. "), line, report

    def _ask(self, flavor: str, count: int, keywords: dict[str, str]) -> dict:
        if count == 1:
            return self.boot(flavor, state="ERROR", **keywords)
        body = self._build_server(flavor_id=flavor, networks="none", **keywords)
        body |= {"min_count": count, "max_count": count}
        return self._wait_for_state_change(self.api.post_server({"server": body}), "ERROR")

    def _explained(self, server: str) -> str:
        try:
            found = server_requests.find_server_request(server)
            if found.placement:
                return f"Placement has no candidate for it now: {found.placement}"
            report = explain_asked(snapshot.take_cloud_snapshot(), found)
        except SnapshotError as error:
            return re.sub(r"^flavor \S+: ", "", str(error))
        if report.fits:
            return "it fits"
        missing = [each.reason for each in report.verdicts if each.choice is None]
        named = {each.node.name: each.reason for each in report.verdicts}
        return named.get("alpha", missing[0])

    def _delete_all(self) -> None:
        for each in self.api.get_servers(detail=False):
            self._delete_server(each)

    def check_causes(self, causes: Sequence[Cause]) -> dict[str, tuple[str, str, str]]:
        """What is said of each cause; what is wrong with any is told at the end."""
        rows, wrong = {}, []
        for cause in causes:
            try:
                said = self.say(cause)
            except Exception as error:
                wrong.append(f"{cause.name}: {type(error).__name__}: {error}")
                continue
            rows[cause.name] = said
            good = said[0].startswith(cause.user) and re.search(cause.operator, said[1])
            if not good or not said[2].startswith(cause.explain):
                wrong.append(f"{cause.name}: {jsonutils.dumps(said)}")
        self.assertEqual([], wrong, "\n".join(wrong))
        return rows

    @pytest.mark.slow
    def test_each(self) -> None:
        """All rows, in their order, are the table of the docs."""
        rows = self.check_causes(CAUSES)
        self.assertGreaterEqual(len(rows), 32)
        made_now = table(rows)
        if os.environ.get("NOVA_HPC_WRITE_CAUSES"):
            PAGE.write_text(made_now, encoding="utf-8")
        self.assertEqual(PAGE.read_text(encoding="utf-8"), made_now)

    def test_every_eighteenth(self) -> None:
        """The set that people wait for tries a part, each against its row of the docs."""
        page = PAGE.read_text(encoding="utf-8")
        for name, said in self.check_causes(CAUSES[::18]).items():
            row = "\n".join(table({name: said}).splitlines()[-4:])
            self.assertIn(row, page)
