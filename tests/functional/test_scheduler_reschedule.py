# SPDX-License-Identifier: Apache-2.0
"""A failed build whose alternates others have taken, or not."""

from __future__ import annotations

import time
from unittest import mock

from nova import exception
from oslo_utils import uuidutils

from tests.functional import fixtures
from tests.functional.base import HpcServersTest
from tests.functional.fixtures import Shape
from tests.functional.ports_base import ONE, RAIL, PortsTest


class RescheduleTest(PortsTest):
    """Hosts with one GPU each; the first that is tried fails."""

    def setUp(self) -> None:
        super().setUp()
        for name in ("alpha", "beta", "gamma"):
            self.rails(name, Shape((RAIL,)))

    def take(self, host: str) -> None:
        """Another consumer gets the host's GPU in Placement."""
        above = self._get_provider_uuid_by_host(host)
        body = self.placement.get("/resource_providers", version="1.14").body
        (gpu,) = [
            each["uuid"]
            for each in body["resource_providers"]
            if each["parent_provider_uuid"] == above
        ]
        self.placement.put(
            f"/allocations/{uuidutils.generate_uuid()}",
            {
                "allocations": {gpu: {"resources": {"CUSTOM_HPC_GPU": 1}}},
                "project_id": "others",
                "user_id": "others",
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            },
            version="1.38",
        )

    def boot_where_one_fails(self, lost: int, state: str) -> dict:
        """A server whose first host fails after *lost* of the others have been taken."""
        flavor = self.make_flavor(ONE)
        real = self.computes["alpha"].manager.driver.spawn.__func__
        tried: list[str] = []

        def spawn(driver, context, instance, *arguments, **keywords):
            tried.append(instance.host)
            if len(tried) > 1:
                return real(driver, context, instance, *arguments, **keywords)
            others = sorted(self.shapes.keys() - {instance.host})
            for name in others[:lost]:
                self.take(name)
            raise exception.ComputeResourcesUnavailable(reason="this host does not work")

        with mock.patch.object(type(self.computes["alpha"].manager.driver), "spawn", spawn):
            server = self.boot(flavor, state=state, networks=self.ports("physnet4"))
        self.tried = tried
        return server

    def test_all_are_taken(self) -> None:
        """The user reads of the last host, the port is free again, and nobody crashes."""
        server = self.boot_where_one_fails(2, "ERROR")
        self.assertEqual(1, len(self.tried))
        self.assertEqual([], self.log_lines("tb_frame"))
        self.assertNotIn("Exhausted all hosts", self.fault(server))
        self.assertIn("this host does not work", self.fault(server))
        self.assertEqual([], self.devices_of(server))
        self.assertEqual([], self.ports_of(server))
        for name in self.shapes:
            self.assert_all_free(name)

    def test_one_is_left(self) -> None:
        server = self.boot_where_one_fails(1, "ACTIVE")
        self.assertEqual(2, len(self.tried))
        self.assertEqual(2, len(self.devices_of(server)))


class DealtTest(HpcServersTest):
    """Alternates of a request for several servers."""

    def servers_where_each_first_build_fails(self, count: int) -> list[str]:
        """States of *count* servers of one request, each with a pair of GPUs."""
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"})
        driver = type(self.computes["one"].manager.driver)
        real, tried = driver.spawn, set()

        def spawn(this, context, instance, *arguments, **keywords):
            if instance.uuid in tried:
                return real(this, context, instance, *arguments, **keywords)
            tried.add(instance.uuid)
            raise exception.ComputeResourcesUnavailable(reason="this host does not work")

        with mock.patch.object(driver, "spawn", spawn):
            body = self._build_server(flavor_id=flavor, networks="none")
            self.api.post_server({"server": body | {"min_count": count, "max_count": count}})
            servers = self.api.get_servers(detail=False)
            done = [self._wait_until_built(each) for each in servers]
        self.assert_given_once()
        return sorted(each["status"] for each in done)

    def _wait_until_built(self, server: dict) -> dict:
        until = time.monotonic() + 60
        found = self.api.get_server(server["id"])
        while found["status"] not in ("ACTIVE", "ERROR") and time.monotonic() < until:
            time.sleep(0.1)
            found = self.api.get_server(server["id"])
        return found

    def test_one_to_each_before_any_gets_a_second(self) -> None:
        """Two servers fill a host, the third begins another: two hosts are for all three."""
        for name in ("one", "two", "three", "four"):
            self.start_host(name, fixtures.two_switches(gpus=2))
        self.assertEqual(["ACTIVE"] * 3, self.servers_where_each_first_build_fails(3))
