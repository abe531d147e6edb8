# SPDX-License-Identifier: Apache-2.0
"""Many periodic updates of a busy node: nothing healthy is taken away, nothing bad is given.

16 GPUs and 16 adapters of 16 virtual functions each, on real files, through the real
reader, judge, step and ledger. Links change their speed all the time, counters of errors
move, drivers of adapters are loaded anew, reads fail, the time of day is set, firmware is
updated, the machine is booted; servers come and go. A few devices are really bad.

What is true of each device is known here, and compared after each update with what the
node offers. ``NOVA_HPC_SOAK`` is the number of updates.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections import defaultdict

import pytest

from nova_hpc.tenancy import health
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.tenancy.step import NodeView
from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node
from tests.unit.tenancy.hygiene_node import FakeNode, make

UPDATES = int(os.environ.get("NOVA_HPC_SOAK", "60"))
#: Seconds between two of them, as Nova has it.
PERIOD = 60.0
GPUS = [f"0000:{bus:02x}:00.0" for bus in range(0x40, 0x50)]
PFS = [f"0000:{bus:02x}:00.0" for bus in range(0x80, 0x90)]
SPEEDS = ["2.5", "5.0", "16.0", "32.0"]


class World:
    """The node, what is true of it, and what its operator does."""

    def __init__(self, root, seed: int) -> None:
        self.random = random.Random(seed)
        self.node: FakeNode = make(root, *GPUS, *PFS)
        self.root = root
        self.vfs: dict[str, list[str]] = {}
        self.counters: dict[str, int] = defaultdict(int)
        self.servers: dict[str, list[str]] = {}
        self.started = 0
        self.away: dict[str, int] = {}
        self.silent: set[str] = set()
        #: Have another capability than before.
        self.changed: set[str] = set()
        #: Had errors since the last update.
        self.noisy: set[str] = set()
        self.glitches: dict[str, bytes] = {}
        self.boots = 1
        for number, each in enumerate([*GPUS, *PFS]):
            self.node.config(each, serial=0x1000 + number)
        for pf in PFS:
            self.node.write(pf, "sriov_totalvfs", "16")
            self.vfs[pf] = []
            for number in range(1, 17):
                vf = f"{pf[:-4]}{number // 8:02x}.{number % 8}"
                self.node.add(vf, physfn=pf)
                self.vfs[pf].append(vf)
        self.offered = [*GPUS, *(vf for each in self.vfs.values() for vf in each)]
        self.roles = {each: "gpu" if each in GPUS else "vf" for each in self.offered}
        # What is asked of the kernel is not what is tried here: a reset takes no process.
        self.step = self.node.step(reset=self.reset)

    def reset(self, address: str) -> None:
        if address in self.away or not (self.node.devices / address).exists():
            raise ResetError("it is not there")

    @property
    def used(self) -> frozenset[str]:
        return frozenset(each for mine in self.servers.values() for each in mine)

    # -- one update, as the driver does it ------------------------------------------

    def update(self) -> set[str]:
        """What the node offers after an update."""
        node = sysfs.read_sysfs_node(self.root)
        here = [each for each in self.offered if node.function(each) is not None]
        offers = [OfferedFunction(each) for each in here]
        view = NodeView(
            node,
            {each: self.roles[each] for each in here},
            ill=health.judge_offered_functions(node, offers, self.node.ledger, health.FRESH),
        )
        withheld = self.step.withhold(view, self.node.owners(*self.used))
        assert not any("not offered" in note for note in withheld.notes), withheld.notes
        self.alarms = withheld.alarms
        return set(here) - self.judged(node, offers).keys() - withheld.findings.keys()

    def judged(self, node: Node, offers: list[OfferedFunction]) -> dict[str, object]:
        return dict(health.judge_offered_functions(node, offers, self.node.ledger))

    # -- what happens to the node -----------------------------------------------------

    def happen(self, number: int) -> None:
        """Whatever happens between two updates."""
        self.noisy.clear()
        self.node.now[1] += PERIOD
        # The time of day is set now and then, by years.
        self.node.now[0] += (
            PERIOD if self.random.random() < 0.95 else self.random.uniform(-9e8, 9e8)
        )
        for each in self.random.sample(GPUS, 6):
            self.node.write(each, "current_link_speed", f"{self.random.choice(SPEEDS)} GT/s PCIe")
        for each in self.random.sample(self.present(), 4):
            self.count(each, 1)
        if self.random.random() < 0.05:
            self.count(self.random.choice(GPUS), 20)
        self.reload()
        self.glitch()
        self.tenants()
        if number % 97 == 96:
            self.boot()

    def present(self) -> list[str]:
        return [each for each in self.offered if (self.node.devices / each).exists()]

    def count(self, address: str, more: int) -> None:
        self.noisy.add(address)
        self.counters[address] += more
        self.node.write(address, "aer_dev_nonfatal", f"TOTAL_ERR_NONFATAL {self.counters[address]}")

    def reload(self) -> None:
        """The driver of an adapter is loaded anew: its functions are away for a while."""
        for pf in [each for each, left in self.away.items() if left == 0]:
            del self.away[pf]
            for number, vf in enumerate(self.vfs[pf]):
                shutil.move(self.root / "away" / vf, self.node.devices / vf)
                (self.node.devices / pf / f"virtfn{number}").symlink_to(self.node.devices / vf)
        self.away = {pf: left - 1 for pf, left in self.away.items()}
        if self.random.random() < 0.06:
            pf = self.random.choice(PFS)
            if pf not in self.away and not self.used & set(self.vfs[pf]):
                (self.root / "away").mkdir(exist_ok=True)
                for number, vf in enumerate(self.vfs[pf]):
                    shutil.move(self.node.devices / vf, self.root / "away" / vf)
                    (self.node.devices / pf / f"virtfn{number}").unlink()
                self.away[pf] = self.random.randint(0, 3)

    def glitch(self) -> None:
        """A device answers with ones once."""
        for each, data in self.glitches.items():
            if (self.node.devices / each).exists():
                (self.node.devices / each / "config").write_bytes(data)
            elif (self.root / "away" / each).exists():
                (self.root / "away" / each / "config").write_bytes(data)
        self.glitches = {}
        if self.random.random() < 0.2:
            each = self.random.choice(self.present())
            if each not in self.silent:
                path = self.node.devices / each / "config"
                self.glitches[each] = path.read_bytes()
                path.write_bytes(b"\xff" * 4096)

    def tenants(self) -> None:
        """Servers end, and others start with what is offered."""
        for server in [each for each in self.servers if self.random.random() < 0.2]:
            # Some end while the service is away: nobody cleans what they had.
            if self.random.random() < 0.7:
                self.step.take_back(server, self.roles)
            del self.servers[server]
        starts = self.random.randint(0, 2)
        # Nothing happens to the node between two starts.
        node = sysfs.read_sysfs_node(self.root) if starts else None
        for _ in range(starts):
            server = f"server-{self.started}"
            self.started += 1
            free = sorted(set(self.now_offered) - self.used)
            wanted = self.random.sample(free, min(len(free), 4))
            wanted = [each for each in wanted if (self.node.devices / each).exists()]
            view = NodeView(node, dict.fromkeys(wanted, "gpu"))
            if wanted and not self.step.give(server, view.candidates(wanted)):
                assert not self.silent & set(wanted)
                assert not self.glitches.keys() & set(wanted)
                self.servers[server] = wanted

    now_offered: frozenset[str] = frozenset()

    def bad(self) -> dict[str, str]:
        """What may not be offered, and why."""
        return {
            **{vf: "absent" for pf in self.away for vf in self.vfs[pf]},
            **dict.fromkeys(self.glitches, "answers with ones"),
            **dict.fromkeys(self.silent, "broken"),
        }

    def boot(self) -> None:
        self.boots += 1
        self.node.boot(f"boot-{self.boots}")
        self.node.now[1] = 30.0
        for each in self.present():
            self.counters[each] = 0
            self.node.write(each, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 0")

    def firmware(self) -> None:
        """All GPUs that no server has get a new capability."""
        for number, each in enumerate(GPUS):
            if each not in self.silent and each not in self.used:
                self.glitches.pop(each, None)
                self.changed.add(each)
                self.node.config(each, serial=0x1000 + number, capabilities=(0x01, 0x10, 0x05))

    def accept(self) -> None:
        """The operator says that it is right."""
        changed, _ = self.step.changes(self.node.candidates(*self.present()).values())
        for each in changed:
            (candidate,) = self.node.candidates(each).values()
            self.step.accept(candidate, "firmware 2.0")


@pytest.mark.slow
def test_a_busy_node_for_days(tmp_path, record_property):
    world = World(tmp_path, seed=11)
    rules = HealthRules()
    most = rules.suspect_retry_most + PERIOD
    bad_since: dict[str, float] = {}
    longest = 0.0
    wrong: list[tuple[int, str, str]] = []
    costs, alarms = [], 0
    dies, updated, accepted = UPDATES // 4, UPDATES // 2, UPDATES // 2 + 3
    world.now_offered = frozenset(world.update())
    assert world.now_offered == set(world.offered)
    for number in range(UPDATES):
        world.happen(number)
        if number == dies:
            # One really breaks, with nobody on it.
            victim = next(each for each in GPUS if each not in world.used)
            world.glitches.pop(victim, None)
            world.silent.add(victim)
            (world.node.devices / victim / "config").write_bytes(b"\xff" * 4096)
        if number == updated:
            world.firmware()
        if number == accepted:
            world.accept()
        started = time.perf_counter()
        offered = world.update()
        costs.append(time.perf_counter() - started)
        world.now_offered = frozenset(offered)
        alarms += len(world.alarms)
        # What is true: who answers, is there, and is what it should be.
        bad = world.bad()
        if updated <= number < accepted:
            bad |= dict.fromkeys(world.changed, "changed")
        wrong += [(number, each, bad[each]) for each in sorted(bad.keys() & offered - world.used)]
        for each in world.offered:
            if each in bad.keys() | world.used | world.noisy:
                bad_since.pop(each, None)  # it is not well, or not free
            elif each not in offered:
                bad_since.setdefault(each, number * PERIOD)
                longest = max(longest, (number + 1) * PERIOD - bad_since[each])
        late = {
            each: world.node.ledger.device(each)
            for each, since in bad_since.items()
            if (number + 1) * PERIOD - since > most and each not in offered
        }
        assert not late, (number, late)
    held = world.node.ledger.quarantined
    cost = 1000 * statistics.median(costs)
    print(
        f"RESULT: {UPDATES} updates of {len(world.offered)} devices, {world.started} servers, "
        f"{world.boots} boots: longest out of service {longest:.0f} s of {most:.0f}, "
        f"{len(wrong)} wrongly offered, in quarantine: {len(held)}, {alarms} alarms; "
        f"an update takes {cost:.0f} ms (median)"
    )
    record_property("milliseconds", cost)
    assert wrong == []
    assert held.keys() <= world.silent
    if UPDATES >= 200:
        assert held.keys() == world.silent
