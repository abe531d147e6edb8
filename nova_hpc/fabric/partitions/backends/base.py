# SPDX-License-Identifier: Apache-2.0
"""The interface between the agent and a subnet manager."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Protocol

import attrs

from nova_hpc.fabric.partitions.keys import MOST_PKEYS_OF_A_PORT
from nova_hpc.fabric.partitions.members import DesiredPartitions


class SubnetManagerError(Exception):
    """The subnet manager cannot do its part. The text names the fault and the cure."""


class StaleReadingError(SubnetManagerError):
    """A later reading of the desired partitions is in force already; nothing was written."""


@attrs.frozen
class Capabilities:
    """The features of a subnet manager on which the separation of networks depends."""

    #: Functions of one physical port can be members of different partitions.
    separates_functions: bool
    limited_members: bool = True
    service_levels: bool = True
    most_pkeys_of_a_port: int = MOST_PKEYS_OF_A_PORT


class MemberState(enum.StrEnum):
    """The state of one member row, from the P_Key tables that were read back."""

    #: The tables of the port and of the switch port facing it are exactly as they have to be.
    AS_DESIRED = "as desired"
    #: One of them is not, yet.
    DIFFERENT = "different"
    #: No port of the fabric has the GUID, so the table does not exist. The subnet manager's
    #: settings are as desired, so the port will be right when it comes.
    NOT_ON_FABRIC = "not on the fabric"
    #: The port is up and does not answer. Its row is neither right nor wrong.
    UNKNOWN = "unknown"


@attrs.frozen
class MemberReading:
    """The state of one member row, from the P_Key tables that were read back.

    :ivar reason: for people: the difference.
    :ivar kept: whether the row's own key is in both tables; None if unknown. A table may differ by
        another key and still have this one.
    """

    state: MemberState
    reason: str = ""
    kept: bool | None = None


def _freeze_readings(given: Mapping[int, MemberReading]) -> Mapping[int, MemberReading]:
    return MappingProxyType(dict(given))


@attrs.frozen
class ReadBack:
    """One reading of the P_Key tables that are in force on a fabric.

    :ivar members: row -> its state; a missing row could not be read.
    :ivar faults: sentences on faults beside the rows, for example a port with full membership of
        the default partition, a key that a port was not given, or a silent manager.
    :ivar opened: why the partitions of all ports are in doubt; None if they are not. Either the
        manager has not taken the file, or switches let full members of the default partition
        through.
    :ivar managers: GUIDs of all ports with a subnet manager; None if unknown.
    :ivar full: GUIDs of ports that own partitions leave no place for a network's key.
    """

    members: Mapping[int, MemberReading] = attrs.field(converter=_freeze_readings)
    faults: tuple[str, ...] = ()
    opened: str | None = None
    managers: frozenset[int] | None = None
    full: frozenset[int] = frozenset()


class AuditState(enum.StrEnum):
    """The result of the check of one setting of a subnet manager."""

    MET = "met"
    NOT_MET = "not met"
    #: This subnet manager does not have the setting; the row names the remaining risk.
    NOT_AVAILABLE = "not available"
    #: It could not be read.
    UNKNOWN = "unknown"


@attrs.frozen
class AuditRow:
    """The check of one setting on which the isolation of networks depends.

    :ivar requirement: id in NVIDIA's *Requirements for AI Clouds*, e.g. ``SDN04-05``; "" if the
        requirement is nova-hpc's own.
    :ivar cure: the lines to change; the remaining risk if the setting does not exist.
    """

    name: str
    requirement: str
    state: AuditState
    found: str = ""
    cure: str = ""
    #: The agent refuses to work while it is not met: the fabric is open.
    needed: bool = False


@attrs.frozen
class FileComparison:
    """All ports of a fabric, compared with the file of partitions.

    :ivar ports: number of ports.
    :ivar wrong: a sentence on each port whose tables differ from the file.
    :ivar managers: GUID of each port with a subnet manager -> its state, such as ``standby``.
    :ivar members: GUIDs of managers that have a key of a network in the file.
    """

    ports: int
    wrong: tuple[str, ...] = ()
    managers: Mapping[int, str] = attrs.field(factory=dict)
    members: frozenset[int] = frozenset()


class SubnetManager(Protocol):
    """The interface to one subnet manager: its files or its API.

    Methods block and are called from one thread at a time.
    """

    capabilities: ClassVar[Capabilities]

    def enforce(self, desired: DesiredPartitions) -> bool:
        """Make the subnet manager apply *desired*, without waiting for the result.

        :returns: whether anything had to be changed, or had been changed by others.
        :raises StaleReadingError: the state in force is of a later reading.
        :raises SubnetManagerError: it cannot be done; the state in force stays in force.
        """

    def read_back(self, desired: DesiredPartitions) -> ReadBack:
        """Read the P_Key tables once and compare them with *desired*.

        :raises SubnetManagerError: nothing can be read.
        """

    def restore(self) -> None:
        """Close a fabric whose settings were damaged while no agent ran.

        The desired state is unknown then, so no network gets a member.

        :raises SubnetManagerError: it cannot be done.
        """

    def refuse_settings(self) -> None:
        """Restore the administrator's settings from before the last change, because that change did
        harm.
        """

    def foreign_pkeys(self) -> frozenset[int]:
        """Return the P_Keys that an administrator's own partitions use; no network gets them."""

    def watched_files(self) -> Sequence[Path]:
        """Return the files whose change by other programs has to wake the agent."""

    def audit(self) -> Sequence[AuditRow]:
        """Check the subnet manager's settings that isolation depends on; one result for each."""

    def close(self) -> None:
        """Close the open files and connections of the subnet manager; idempotent."""
