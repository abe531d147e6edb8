# SPDX-License-Identifier: Apache-2.0
"""Many updates of a busy node on Nova's own tracker and Placement: no provider is made anew.

Devices come and go, change their drivers, report errors, are put into quarantine; servers
come and go. After each update Placement and Nova's tracker are compared with what is true.
:mod:`tests.unit.tenancy.test_soak` is the same for what the node itself finds, which is
faster and has more faults. ``NOVA_HPC_NODE_SOAK`` is the number of updates of the slow one.

What an update costs is printed as a ratio to stock Nova's, on a second host of the same
shape in the same process, the two in turn.
"""

from __future__ import annotations

import collections
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.functional import base, fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs

UPDATES = int(os.environ.get("NOVA_HPC_NODE_SOAK", "200"))
#: The standard set has a small node, the slow test one of 16 GPUs and 258 VFs (Nova's fake
#: knows no adapter of more than six).
SMALL = fixtures.Shape(tuple(fixtures.Switch(gpus=2, pfs=1, vfs=6) for _ in range(2)))
LARGE = fixtures.Shape(
    tuple(fixtures.Switch(gpus=1, pfs=2 + (index < 11), vfs=6) for index in range(16)),
    memory_kib=64 * 1024 * 1024,
)
SPEEDS = ["2.5", "5.0", "16.0", "32.0"]
#: Updates within which a device that is well again is offered: it is seen, and tried.
SOON = 3


class World:
    """What is true of the devices, and what happens to them."""

    def __init__(self, shape: fixtures.Shape, tree: FakeSysfs, seed: int) -> None:
        self.random = random.Random(seed)
        self.tree = tree
        functions = list(shape.functions())
        self.gpus = [each.address for each in functions if each.kind == "gpu"]
        #: Adapter -> its virtual functions.
        self.vfs: dict[str, list[str]] = {}
        for each in functions:
            if each.kind == "vf":
                self.vfs.setdefault(f"{each.address[:-1]}0", []).append(each.address)
        self.all = [*self.gpus, *(vf for mine in self.vfs.values() for vf in mine)]
        self.aside = tree.root / "aside"
        self.aside.mkdir()
        #: Device -> updates for which it stays as it is.
        self.away: dict[str, int] = {}
        self.foreign: dict[str, int] = {}
        #: Had errors since the last update: one that has them again and again is not well.
        self.noisy: set[str] = set()
        self.counters = dict.fromkeys(self.all, 0)
        for each in self.all:
            self.count(each, 0)

    @property
    def bad(self) -> frozenset[str]:
        return frozenset({*self.away, *self.foreign})

    @property
    def unsure(self) -> frozenset[str]:
        """May be withheld, and need not be: with errors, or of an adapter that lacks some."""
        halved = {vf for mine in self.vfs.values() if self.away.keys() & mine for vf in mine}
        return frozenset(self.noisy | halved)

    def count(self, address: str, more: int) -> None:
        self.noisy.add(address)
        self.counters[address] += more
        path = self.path(address) / "aer_dev_nonfatal"
        path.write_text(f"TOTAL_ERR_NONFATAL {self.counters[address]}\n")

    def path(self, address: str) -> Path:
        return (self.aside if address in self.away else self.tree.devices) / address

    def happen(self, used: frozenset[str]) -> None:
        """Whatever happens between two updates, to devices that no server has."""
        self.noisy.clear()
        for each in self._ended(self.away):
            (self.aside / each).rename(self.tree.devices / each)
        for each in self._ended(self.foreign):
            self.tree.bind(each, "vfio-pci")
        free = [each for each in self.all if each not in used and each not in self.bad]
        for each in self.random.sample(self.gpus, len(self.gpus) // 2):
            if each not in self.away:
                (self.path(each) / "current_link_speed").write_text(
                    f"{self.random.choice(SPEEDS)} GT/s PCIe\n"
                )
        for each in self.random.sample(free, min(len(self.all) // 64 or 1, len(free))):
            self.count(each, 1)
        for vfs in self.random.sample(list(self.vfs.values()), 2):
            # All of an adapter (its driver is loaded anew), or some.
            some = vfs if self.random.random() < 0.5 else self.random.sample(vfs, 3)
            if set(some) <= set(free):
                self._leave(some)
        one, other = self.random.sample(self.gpus, 2)
        if one in free and self.random.random() < 0.5:
            self._leave([one])
        if other in free and other not in self.away and self.random.random() < 0.5:
            self.tree.bind(other, "nvidia")
            self.foreign[other] = self.random.randint(1, 3)

    @staticmethod
    def _ended(some: dict[str, int]) -> list[str]:
        for each in some:
            some[each] -= 1
        ended = [each for each, left in some.items() if left == 0]
        for each in ended:
            del some[each]
        return ended

    def _leave(self, some: list[str]) -> None:
        left = self.random.randint(1, 3)
        for each in some:
            (self.tree.devices / each).rename(self.aside / each)
            self.away[each] = left


class SoakTest(DriverTest):
    """One busy node, and a quiet one with Nova's own driver to compare with."""

    def setUp(self) -> None:
        super().setUp()
        # A device that was away is tried again at the next update.
        self.flags(suspect_retry=0.0, suspect_share=1.0, group="hpc")
        self.servers: dict[str, dict[str, Any]] = {}
        self.flavors = [
            self.make_flavor({"pci_passthrough:alias": alias}) for alias in ("gpu:1", "vf:2")
        ]

    def _follow_libvirt(self) -> None:
        """Libvirt does not list what is away."""
        host = self.computes["alpha"].driver._host
        plain = host.list_all_devices

        def listed(flags: int) -> list[Any]:
            names = {f"pci_{each.replace(':', '_').replace('.', '_')}" for each in self.world.away}
            return [each for each in plain(flags=flags) if each.name() not in names]

        self.useFixture(fixtures.fixtures.MockPatchObject(host, "list_all_devices", listed))

    def uuids(self) -> dict[str, str]:
        """Name of each provider of the node's devices -> its UUID."""
        body = self.placement.get("/resource_providers", version="1.14").body
        return {
            each["name"]: each["uuid"]
            for each in body["resource_providers"]
            if each["name"].startswith("alpha_")
        }

    def tenants(self) -> None:
        for uuid in [each for each in self.servers if self.world.random.random() < 0.5]:
            self._delete_server(self.servers.pop(uuid))
        offered = self.offered()
        gpus = offered & set(self.world.gpus)
        fit = [
            flavor
            for flavor, some in zip(self.flavors, (gpus, offered - gpus), strict=True)
            if len(some) > 1
        ]
        if fit:
            server = self.boot(self.world.random.choice(fit), host="alpha")
            self.servers[server["id"]] = server

    def used(self) -> frozenset[str]:
        return frozenset(
            device.address for server in self.servers.values() for device in self.devices_of(server)
        )

    def timed(self, host: str) -> float:
        started = time.perf_counter()
        self.update(host)
        return time.perf_counter() - started

    def soak(self, shape: fixtures.Shape, updates: int) -> None:
        self.host("alpha", shape)
        self.world = world = World(shape, self.sysfs["alpha"], seed=5)
        self._follow_libvirt()
        self.flags(compute_driver=base.STOCK_DRIVER)
        self.host("stock", shape)
        self.update("alpha")
        first = self.uuids()
        self.assertEqual(len(world.gpus) + len(world.vfs), len(first))
        changed, wrong, longest, costs = set(), [], 0, collections.defaultdict(list)
        late: set[tuple[int, str, str]] = set()
        waiting: collections.Counter[str] = collections.Counter()
        for number in range(updates):
            if number % 5 == 4:
                self.tenants()
            world.happen(self.used())
            costs["alpha"].append(self.timed("alpha"))
            if number % 2:
                costs["stock"].append(self.timed("stock"))
            now = self.uuids()
            changed |= {name for name, uuid in first.items() if now.get(name) != uuid}
            used, offered = self.used(), self.offered()
            wrong += [(number, each) for each in offered & world.bad - used]
            wrong += self.given(number, now)
            for each in world.all:
                fine = each in offered | used | world.bad | world.unsure
                waiting[each] = 0 if fine else waiting[each] + 1
                longest = max(longest, waiting[each])
                if waiting[each] > SOON:
                    late.add((number, each, self.stats_of("alpha").withheld.get(each, "")))
            if number % 20 == 19:
                print(f"{number + 1} of {updates} updates", flush=True)
        ratio = statistics.median(costs["alpha"]) / statistics.median(costs["stock"])
        print(
            f"RESULT: {updates} updates of {len(world.gpus)} GPUs and "
            f"{len(world.all) - len(world.gpus)} VFs: "
            f"{len(changed)} of {len(first)} provider UUIDs changed, {len(wrong)} wrongly offered, "
            f"at most {longest} updates out of service; an update costs {ratio:.2f} times stock "
            f"Nova's ({1000 * statistics.median(costs['alpha']):.0f} ms, median)"
        )
        self.assertEqual(set(), changed)
        self.assertEqual([], wrong)
        self.assertEqual(set(), late)

    def offered(self) -> frozenset[str]:
        """What a claim of the node can take."""
        tracked = self.tracked("alpha")
        return frozenset(each for each, status in tracked.items() if status == "available")

    def given(self, number: int, uuids: dict[str, str]) -> list[tuple[int, str]]:
        """Providers of which Placement gives more than there is."""
        wrong = []
        for name, uuid in uuids.items():
            address = name.partition("_")[2].lower()
            mine = set(self.world.vfs.get(address, [address])) - self.world.bad
            body = self.placement.get(f"/resource_providers/{uuid}/inventories").body
            (one,) = body["inventories"].values()
            if one["total"] - one["reserved"] > len(mine):
                wrong.append((number, f"{address}: {one} by Placement, {len(mine)} are well"))
        return wrong

    @pytest.mark.slow
    def test_forty_updates(self) -> None:
        self.soak(SMALL, 40)

    @pytest.mark.slow
    def test_many_updates(self) -> None:
        self.soak(LARGE, UPDATES)
