# SPDX-License-Identifier: Apache-2.0
"""The steps on devices around a server: one protocol, and one step for each concern.

The methods of a step run before a server starts with devices, before it starts again with
the same devices, after it has ended, and periodically. The periodic one cleans up after
a crash. So no step needs an undo: the next start with the device, or the next
:meth:`TenancyStep.withhold`, handles the remains of a failed start. The steps run in the order
in which a server's start needs them; after its end they run in reverse order.

The steps do not depend on Nova. Their caller converts Nova's objects into :class:`DeviceTenant`
and :class:`NodeView`, and converts :class:`RefusedError` into an exception of its own.
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
    """A step cannot work on this node at all; the text names the option and the cure."""


class RefusedError(Exception):
    """A server must not start with the devices that it was given."""

    def __init__(self, user: str, reasons: Iterable[str], claim: bool = False) -> None:
        super().__init__(user)
        #: For the server's user: no address, no host.
        self.user = user
        #: One line each, for operators.
        self.reasons = tuple(reasons)
        #: Whether other devices of the same node would work; the node is healthy.
        self.claim = claim

    @classmethod
    def of_devices(cls, total: int, refused: Mapping[str, str], what: str) -> RefusedError:
        """Build the refusal of some of *total* claimed devices; *what* ends the user's sentence.

        :param refused: address -> reason.
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
        """Build the refusal for the case that the ledger cannot be written."""
        text = "The node cannot keep records of its PCI devices."
        return cls(text, [f"No PCI device can be given: {error}"])


@attrs.frozen
class DeviceTenant:
    """A server, and the PCI devices and ports that it has or gets."""

    #: The server's UUID.
    server: str
    #: Normalised addresses, in the order of its claim.
    devices: tuple[str, ...] = ()
    #: The *devices* that belong to its ports.
    ports: frozenset[str] = frozenset()
    #: Whether its flavor requires NVLinks between its GPUs.
    linked: bool = False
    #: Finds the users of devices.
    owners: DeviceOwners = attrs.field(kw_only=True)


@attrs.frozen
class DeviceCandidate:
    """One PCI function that may be offered, with its role and the declared virtual functions."""

    function: PciFunction
    role: str | None = None
    #: For a virtual function: number of its physical function's virtual functions.
    vfs: int | None = None


@attrs.frozen
class NodeView:
    """The node at its last reading: its functions, the offered devices, NVLink sets and faults."""

    node: Node
    #: Address -> role, of all devices that the node offers; None if it has no role.
    roles: Mapping[str, str | None] = attrs.field(factory=dict, hash=False)
    #: Address -> tag, of offered devices in NVLink sets.
    sets: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Address -> fault of an offered device in this reading; only set for
    #: :meth:`TenancyStep.withhold`.
    ill: Mapping[str, Symptom] = attrs.field(factory=dict, hash=False)

    def candidate(self, address: str) -> DeviceCandidate | None:
        """Return the device at *address*; None if it is missing."""
        function = self.node.function(address)
        if function is None:
            return None
        parent = self.node.function(function.physical_function or "")
        vfs = len(parent.virtual_functions) if parent else None
        return DeviceCandidate(function, self.roles.get(address), vfs)

    def candidates(self, addresses: Iterable[str]) -> dict[str, DeviceCandidate]:
        """Return PCI address -> candidate, for those of *addresses* that are present."""
        candidates = {address: self.candidate(address) for address in addresses}
        return {
            address: candidate for address, candidate in candidates.items() if candidate is not None
        }


@attrs.frozen
class WithheldDevices:
    """The findings of a periodic check: devices to withhold by address, notes and alarms."""

    #: Address -> why a free device must not be offered.
    findings: Mapping[str, Symptom] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log.
    notes: tuple[str, ...] = ()
    #: Sentences for operators who monitor the node: the node takes no further action itself.
    alarms: tuple[str, ...] = ()


class TenancyStep(abc.ABC):
    """One preparation of a device between two servers.

    One object serves all threads of a service. The notes that a method returns
    are sentences for the log.
    """

    #: Name for the log and for locks.
    name: ClassVar[str]

    def begin(self, view: NodeView) -> tuple[str, ...]:
        """Prepare the node when its service starts.

        :returns: notes.
        :raises StepError: no server with such devices could start.
        """
        return ()

    def before_start(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Prepare devices for a server that gets them, before its domain exists.

        :returns: notes.
        :raises RefusedError: it must not have them.
        """
        return ()

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Prepare the restart of a server with its present devices.

        :returns: notes.
        :raises RefusedError: it cannot start.
        """
        return ()

    def after_end(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """Handle the end of a server. Never raises.

        :param look: reads the node afresh; called only if needed.
        :param owners: finds the users of devices; Nova's records still list those of *server*.
        :returns: notes of failures.
        """
        return ()

    def after_move(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """Handle a server that keeps its devices here and runs elsewhere, or not at all.

        See :meth:`after_end`.
        """
        return ()

    @abc.abstractmethod
    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Prepare free devices, and return those that must not be offered. Never raises.

        :param owners: finds the present users of devices.
        """

    def unreported(self) -> frozenset[str]:
        """Return clean devices that are not yet reported to Placement as free.

        :raises nova_hpc.tenancy.ledger.LedgerError: the ledger cannot be read.
        """
        return frozenset()

    def report(self, addresses: Collection[str]) -> None:  # noqa: B027  most have none
        """Record that Placement has the report of these devices.

        :raises nova_hpc.tenancy.ledger.LedgerError: the ledger cannot be written.
        """
