# SPDX-License-Identifier: Apache-2.0
"""The steps on devices around a server: one protocol, and one step for each concern.

A step is asked before a server starts with devices, before it starts again with
those that it has, after it has ended, and from time to time, when it puts in
order what a crash has left behind. So no step needs to be undone: what is left
of a start that failed, the next start of the device or the next
:meth:`TenancyStep.withhold` puts in order. The order of the steps is that in which a
server that starts needs them; after its end it is turned around.

The steps know no Nova: who calls them turns its objects into :class:`DeviceTenant`
and :class:`NodeView`, and says :class:`RefusedError` in its own words.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar

import attrs

from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import Symptom
from nova_hpc.topology.model import Node, PciFunction


class StepError(Exception):
    """A step cannot do its work on this node at all; the text names the option and the cure."""


class RefusedError(Exception):
    """A server must not start with the devices that it was given."""

    def __init__(self, user: str, reasons: Iterable[str], claim: bool = False) -> None:
        super().__init__(user)
        #: For the server's user: no address, no host.
        self.user = user
        #: One line each, for operators.
        self.reasons = tuple(reasons)
        #: Other devices of the same node would do; nothing is wrong with it.
        self.claim = claim

    @classmethod
    def of_devices(cls, total: int, refused: Mapping[str, str], what: str) -> RefusedError:
        """Some of *total* devices that were claimed; *what* ends the sentence for the user.

        :param refused: address -> why.
        """
        return cls(
            f"Of the {total} PCI devices that were claimed for the server, {len(refused)} {what}.",
            [
                f"PCI device {address} must not be given to the server: {reason}"
                for address, reason in refused.items()
            ],
        )

    @classmethod
    def without_records(cls, error: Exception) -> RefusedError:
        """What is done to devices cannot be written down."""
        text = "The node cannot keep records of its PCI devices."
        return cls(text, [f"No PCI device can be given: {error}"])


@attrs.frozen
class DeviceTenant:
    """A server, and the devices that it has or gets."""

    #: Its UUID.
    server: str
    #: Normalised addresses, in the order of its claim.
    devices: tuple[str, ...] = ()
    #: Those of *devices* that belong to its ports.
    ports: frozenset[str] = frozenset()
    #: Its flavor requires NVLinks between its GPUs.
    linked: bool = False
    #: Asks who has devices.
    owners: DeviceOwners = attrs.field(kw_only=True)


@attrs.frozen
class DeviceCandidate:
    """One device and what is known of it from elsewhere."""

    function: PciFunction
    role: str | None = None
    #: Of a virtual function: how many its physical function has.
    vfs: int | None = None


@attrs.frozen
class NodeView:
    """The node as it was just read."""

    node: Node
    #: Address -> role of everything that the node offers; None: without a role.
    roles: Mapping[str, str | None] = attrs.field(factory=dict, hash=False)
    #: Address -> tag of the offered devices that are in NVLink sets.
    sets: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Address -> why an offered device cannot be given anyway, as the node looks now;
    #: known to :meth:`TenancyStep.withhold` only.
    ill: Mapping[str, Symptom] = attrs.field(factory=dict, hash=False)

    def candidate(self, address: str) -> DeviceCandidate | None:
        """The device at *address*; None: it is not there."""
        function = self.node.function(address)
        if function is None:
            return None
        parent = self.node.function(function.physical_function or "")
        vfs = len(parent.virtual_functions) if parent else None
        return DeviceCandidate(function, self.roles.get(address), vfs)

    def candidates(self, addresses: Iterable[str]) -> dict[str, DeviceCandidate]:
        """Those of *addresses* that are there."""
        candidates = {address: self.candidate(address) for address in addresses}
        return {
            address: candidate for address, candidate in candidates.items() if candidate is not None
        }


@attrs.frozen
class WithheldDevices:
    """The findings of a periodic look."""

    #: Address -> why a free device must not be offered.
    findings: Mapping[str, Symptom] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log.
    notes: tuple[str, ...] = ()
    #: The same, for whoever watches the node: nothing more is done by itself.
    alarms: tuple[str, ...] = ()


class TenancyStep(abc.ABC):
    """One of the things that are done to a device between two servers.

    One object serves all threads of a service. What a method returns as notes
    are sentences for the log.
    """

    #: A word for the log and for locks.
    name: ClassVar[str]

    def begin(self, view: NodeView) -> tuple[str, ...]:
        """The service of the node starts.

        :returns: notes.
        :raises StepError: no server with such devices could start.
        """
        return ()

    def before_start(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """A server gets devices, and its domain is not made yet.

        :returns: notes.
        :raises RefusedError: it must not have them.
        """
        return ()

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """A server starts again with the devices that it has.

        :returns: notes.
        :raises RefusedError: it cannot.
        """
        return ()

    def after_end(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """A server has ended for good. Never raises.

        :param look: reads the node afresh; asked only when it is needed.
        :param owners: asks who has devices; Nova's records still have those of *server*.
        :returns: notes of what has failed.
        """
        return ()

    def after_move(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """A server still has its devices here and runs elsewhere, or not at all.

        See :meth:`after_end`.
        """
        return ()

    @abc.abstractmethod
    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Put free devices in order, and say which must not be offered. Never raises.

        :param owners: asks who has devices now.
        """

    def unreported(self) -> frozenset[str]:
        """Devices found fit after a server of which Placement has yet to hear.

        :raises nova_hpc.tenancy.ledger.LedgerError: that is unknown.
        """
        return frozenset()

    def report(self, addresses: Collection[str]) -> None:  # noqa: B027  most have none
        """Placement has heard of them.

        :raises nova_hpc.tenancy.ledger.LedgerError: it cannot be remembered.
        """
