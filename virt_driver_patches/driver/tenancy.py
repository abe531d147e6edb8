"""What is done to devices around a server, one step after the other.

Each step is told when a server gets devices, when it starts again with those it
has, and when it is gone for good; and at every periodic update it puts in order
what a crash has left behind. So no step needs to be undone: what a start that
failed has left, the next :meth:`Step.give` of the device or the next
:meth:`Step.sweep` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
from nova import objects

from nova_hpc.from_nova.claim import Claim
from nova_hpc.tenancy.health import Finding
from virt_driver_patches.driver.reading import Reading, Source


class Step(Protocol):
    """One thing that is done around a server, e.g. cleaning."""

    def give(self, instance: objects.Instance, addresses: Sequence[str], reading: Reading) -> None:
        """Before a server gets devices, with its domain not made yet.

        :raises DeviceFault: it must not get them.
        """

    def keep(self, instance: objects.Instance, claim: Claim, reading: Reading) -> None:
        """Before a server starts again with the devices that it has.

        :raises DeviceFault: it cannot.
        """

    def take_back(self, instance: objects.Instance, source: Source) -> None:
        """After a server's domain is gone. Never raises."""

    def sweep(self, reading: Reading, taken: Callable[[], frozenset[str]]) -> dict[str, Finding]:
        """Put free devices in order; address -> why one must not be offered."""


@attrs.frozen
class Tenancy:
    """The steps of one node, in the order in which a server that starts needs them."""

    steps: tuple[Step, ...] = ()

    def give(self, instance: objects.Instance, addresses: Sequence[str], reading: Reading) -> None:
        """See :meth:`Step.give`."""
        for step in self.steps if addresses else ():
            step.give(instance, addresses, reading)

    def keep(self, instance: objects.Instance, claim: Claim, reading: Reading) -> None:
        """See :meth:`Step.keep`."""
        for step in self.steps:
            step.keep(instance, claim, reading)

    def take_back(self, instance: objects.Instance, source: Source) -> None:
        """See :meth:`Step.take_back`; the last first, so that cleaning sees the result."""
        for step in reversed(self.steps):
            step.take_back(instance, source)

    def sweep(self, reading: Reading, taken: Callable[[], frozenset[str]]) -> dict[str, Finding]:
        """See :meth:`Step.sweep`."""
        found: dict[str, Finding] = {}
        for step in reversed(self.steps):
            found.update(step.sweep(reading, taken))
        return found
