# SPDX-License-Identifier: Apache-2.0
"""The report of a device by the owner of its server, which the ledger keeps.

The key ``report`` of a device in the ledger::

    {"server": "<uuid>", "words": {"slow": 1767225600.0}, "judged": 1767232800.0}

It stays after the server's end, until another server's owner reports the device. ``judged`` is the
end of the stage that has checked the device since. Writer: nova-compute. Readers: nova-compute, and
``nova-hpc device list`` and ``show``. A damaged one is no report. It is an owner's word: it
withholds no device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_hpc.wire.ledger import LedgerDevice
from nova_hpc.wire.values import require_finite, require_type
from nova_hpc_common.wire.server_faults import OWNER_WORDS, FaultWord


@attrs.frozen
class OwnerReport:
    """The faults that the owner of one server has reported of a device."""

    server: str
    #: Word -> when it was filed, Unix time in seconds.
    words: Mapping[FaultWord, float] = attrs.field(hash=False)
    #: When a stage after the server's end decided about the device, Unix time; None if none has.
    judged: float | None = None

    def dumps(self) -> dict[str, Any]:
        """As an object for JSON."""
        words = {word.value: since for word, since in self.words.items()}
        body: dict[str, Any] = {"server": self.server, "words": words}
        return body if self.judged is None else {**body, "judged": self.judged}

    def text(self, moment_text: Callable[[float], str]) -> str:
        """The report for operators, the worst word first.

        :param moment_text: writes a Unix time.
        """
        words = ", ".join(
            f"{word.value} since {moment_text(self.words[word])}"
            for word in OWNER_WORDS
            if word in self.words
        )
        judged = "" if self.judged is None else f"; checked {moment_text(self.judged)}"
        return f"reported by the owner of server {self.server}: {words}{judged}"


def load_owner_report(body: Mapping[str, Any] | None) -> OwnerReport | None:
    """Return the report; None if there is none, or if it is damaged.

    Words of a later release are left out.
    """
    if body is None:
        return None
    words_by_name = {word.value: word for word in OWNER_WORDS}
    try:
        words = {
            words_by_name[name]: require_finite(since)
            for name, since in body["words"].items()
            if name in words_by_name
        }
        judged = body.get("judged")
        return OwnerReport(
            server=require_type(body["server"], str),
            words=words,
            judged=None if judged is None else require_finite(judged),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def put_reported_words(
    device: LedgerDevice, server: str, words: Mapping[FaultWord, float]
) -> LedgerDevice:
    """Return the device's record with the words of its server's owner; {} takes them back."""
    report = load_owner_report(device.report)
    if words:
        return attrs.evolve(device, report=OwnerReport(server, words).dumps())
    own = report is not None and report.server == server
    return attrs.evolve(device, report=None) if own else device


def put_judged(device: LedgerDevice, server: str, moment: float) -> LedgerDevice:
    """Return the device's record after the stage that followed a server's end.

    :param server: the server that has made the stage necessary.
    :param moment: Unix time in seconds.
    """
    if not is_unjudged(device, server):
        return device
    return attrs.evolve(device, report={**(device.report or {}), "judged": moment})


def is_unjudged(device: LedgerDevice, server: str) -> bool:
    """Whether the owner of a server has reported the device, and no stage has decided since."""
    report = load_owner_report(device.report)
    return report is not None and report.server == server and report.judged is None
