# SPDX-License-Identifier: Apache-2.0
"""The faults of a running server, in eight words for its owner.

A word names the kind of the fault and nothing of the host: no name, address or serial number. For
a fault that the node sees, nova-compute adds the tag ``hpc-fault=WORD`` to the server and removes
it when the device is well; each change is an instance action, too. A tag is one row of Nova's
database. Metadata would not do: a save by nova-compute overwrites keys that the owner adds at the
same moment. The owner's client adds the words that only the owner's view shows.

The owner may write and delete tags. So services never read these, and nova-compute writes a missing
tag again.

An owner reports a fault with a tag of its own, ``hpc-report=WORD``. nova-compute reads known words
of these tags alone, shows them to operators, and checks the devices after the server's end. It is
an owner's word, so it withholds no device.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

#: The beginning of the tags of present faults. Nova allows no ``/`` and ``,`` in a tag.
TAG_PREFIX: Final = "hpc-fault="
#: Names of the instance actions; their message is the word.
FOUND_ACTION: Final = "hpc_fault_found"
CLEARED_ACTION: Final = "hpc_fault_cleared"
#: The beginning of the tags by which an owner reports faults, and the actions that answer them.
REPORT_PREFIX: Final = "hpc-report="
REPORTED_ACTION: Final = "hpc_fault_reported"
WITHDRAWN_ACTION: Final = "hpc_report_withdrawn"


class FaultWord(enum.Enum):
    """The kinds of faults of a running server, the worst first."""

    #: The host does not answer, as far as Nova shows it to the owner.
    HOST = "host"
    #: A device has left the guest, or all its registers read as ones.
    GONE = "gone"
    #: A device has uncorrected errors, or its driver reports errors.
    ERRORS = "errors"
    #: A device's PCIe link is narrower or slower than it was.
    LINK = "link"
    #: A network adapter's port is down.
    PORT = "port"
    #: A port is not in its InfiniBand partition.
    PARTITION = "partition"
    #: A device's firmware or identity has changed under the running server.
    FIRMWARE = "firmware"
    #: A measurement found the server slow, or not as promised.
    SLOW = "slow"

    @property
    def tag(self) -> str:
        """The tag of a server with this fault, e.g. ``hpc-fault=link``."""
        return f"{TAG_PREFIX}{self.value}"

    @property
    def message(self) -> str:
        """The message of its instance actions."""
        return self.value

    def action(self, present: bool) -> str:
        """The name of the instance action for the beginning of the fault, or for its end."""
        return FOUND_ACTION if present else CLEARED_ACTION

    @property
    def report_tag(self) -> str:
        """The tag by which an owner reports the fault, e.g. ``hpc-report=slow``."""
        return f"{REPORT_PREFIX}{self.value}"

    @property
    def needs_other_devices(self) -> bool:
        """Whether the server works again only with other devices, so that it is replaced.

        A partition is repaired by the fabric's agent, and each server on the host would see the
        firmware's change.
        """
        return self not in (FaultWord.PARTITION, FaultWord.FIRMWARE)

    @property
    def meaning(self) -> str:
        """The fault in a sentence for the owner."""
        return _MEANINGS[self]


_MEANINGS: Final[Mapping[FaultWord, str]] = {
    FaultWord.HOST: "its host does not answer",
    FaultWord.GONE: "it has lost a device",
    FaultWord.ERRORS: "a device has uncorrected errors",
    FaultWord.LINK: "the PCIe link of a device is narrower or slower than before",
    FaultWord.PORT: "the port of a network adapter is down",
    FaultWord.PARTITION: "a port is not in its InfiniBand partition",
    FaultWord.FIRMWARE: "the firmware of a device has changed",
    FaultWord.SLOW: "it was measured slow, or not as promised",
}

#: The words that an owner can report. The host and its firmware are the operator's.
OWNER_WORDS: Final[tuple[FaultWord, ...]] = tuple(
    word for word in FaultWord if word not in (FaultWord.HOST, FaultWord.FIRMWARE)
)


def read_fault_tags(tags: Iterable[object]) -> tuple[FaultWord, ...]:
    """Read the present faults from a server's tags, the worst first.

    Other tags, and words of a later release, are left out.
    """
    present = {tag for tag in tags if isinstance(tag, str)}
    return tuple(word for word in FaultWord if word.tag in present)


def read_report_tags(tags: Iterable[object]) -> tuple[FaultWord, ...]:
    """Read the owner's reports from a server's tags, the worst first; other tags are left out."""
    present = {tag for tag in tags if isinstance(tag, str)}
    return tuple(word for word in OWNER_WORDS if word.report_tag in present)
