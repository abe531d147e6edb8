# SPDX-License-Identifier: Apache-2.0
"""What must be true of the two nodes of a history: always, and at its end."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import attrs

from nova_hpc.tenancy import reserve
from tests.functional.histories.world import HOSTS, HistoryError, HistoryTest


@attrs.frozen
class Judge:
    """Looks at the nodes.

    :ivar lost: hosts whose ledger cannot be read.
    :ivar log: of the history; a late offer is noted in it.
    """

    world: HistoryTest
    lost: Collection[str]
    log: list[str]

    def check(self, updated: Collection[str]) -> None:
        """Raise an error about whatever must not be.

        In an update the node looks first, and then Nova frees the devices of servers that
        have left. Until the next look they are offered, and given to nobody: what is
        checked before a start sees the mark, and the domain.

        :param updated: hosts whose periodic update has run since the last change.
        :raises HistoryError: it is.
        """
        world = self.world
        problems = list(world.truth.violations)
        for name in HOSTS:
            if name in world.down:
                continue
            problems += [f"{name}: {text}" for text in self._wrong(name, name in updated)]
            early = list(self._offered(name)) if name in updated else []
            if early:
                world.totals.late += len(early)
                self.log.append(f"freed after the look: {name}: {'; '.join(early)}")
                world.update(name)
                problems += [f"{name}: {text}" for text in self._offered(name)]
        if problems:
            raise HistoryError("; ".join(problems))

    def _offered(self, name: str) -> Iterator[str]:
        """What is offered although somebody has it, or it is not clean."""
        world = self.world
        tracked, taken = world.tracked(name), world.taken(name)
        free = {each for each, status in tracked.items() if status == "available"}
        for address, server in world.ledger(name).marked.items():
            if address in free and address not in taken:
                yield f"{address} is offered with the mark of {server}"
        for (host, address), server in world.truth.running.items():
            if host == name and address in free:
                yield f"{address} is offered, and {server} has it"
        for (host, address), server in world.truth.traces.items():
            if host == name and address in free:
                yield f"{address} is offered with the traces of {server}"

    def _wrong(self, name: str, updated: bool) -> Iterator[str]:
        world = self.world
        ledger = world.ledger(name)
        if ledger.lost and name not in self.lost:
            yield f"the ledger is lost: {ledger.problems}"
        if not updated:
            return
        tracked = world.tracked(name)
        withheld = world.stats_of(name).withheld
        given = world.given_by_placement(name)
        free = {each for each, status in tracked.items() if status == "available"}
        for address in world.devices(name):
            if address not in tracked and address not in withheld:
                yield f"{address} is lost: neither offered nor withheld"
        if ledger.lost and free:
            yield f"offered without a ledger: {sorted(free)}"
        taken, marked = world.taken(name), ledger.marked
        for place, count in {} if ledger.lost else given.items():
            mine = [each for each in world.devices(name) if place in (each, _adapter(each))]
            free_here = [each for each in mine if each in free and each not in marked]
            if count > len(free_here) + len([each for each in mine if each in taken]):
                yield f"Placement gives {count} of {place}, of which {free_here} are free"
        for address, why in withheld.items():
            left = 0
            if reserve.BY_OPERATOR in why and why != reserve.BY_OPERATOR:
                # A part of an adapter's functions: Placement gives the others.
                left = ledger.providers[address].total - ledger.providers[address].operators
            if given.get(address, 0) > left and address not in tracked and not ledger.lost:
                yield f"{address} is withheld, and Placement gives it"

    def expect_new(self) -> None:
        """The nodes are as on their first day."""
        world = self.world
        for name in HOSTS:
            expected = {
                "tracked": dict.fromkeys(world.devices(name), "available"),
                "withheld": {},
                "marked": {},
                "quarantined": {},
                "domains": [],
                "providers": world.first[name],
                "traces": {},
            }
            ledger = world.ledger(name)
            now = {
                "tracked": world.tracked(name),
                "withheld": dict(world.stats_of(name).withheld),
                "marked": ledger.marked,
                "quarantined": ledger.quarantined,
                "domains": sorted(world.known_domains(name)),
                "providers": world.providers_of(name),
                "traces": {k: v for k, v in world.truth.traces.items() if k[0] == name},
            }
            for key, value in expected.items():
                if now[key] != value:
                    raise HistoryError(f"{name}: {key} is {now[key]} at the end, not {value}")
            given = world.given_by_placement(name)
            if sum(given.values()) != len(world.devices(name)):
                raise HistoryError(f"{name}: Placement gives {given} at the end")


def _adapter(address: str) -> str:
    """The physical function of a virtual one of :data:`SHAPE`."""
    return f"{address[:-1]}0"
