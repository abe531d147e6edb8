# SPDX-License-Identifier: Apache-2.0
"""The result of measuring a cluster: one result for each member, and one verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc_common.wire.member_verdict import MemberVerdict
from nova_hpc_guest.accept.evidence import AcceptanceRow
from nova_hpc_guest.accept.ratio import SLOW, UNDECIDED
from nova_hpc_guest.accept.result import (
    ACCEPTED,
    BROKEN,
    REFUSED,
    STATUSES,
    UNMEASURED,
    AcceptanceResult,
)

#: Verdicts from the worst on: the cluster gets the first one that any member has.
_WORST: Final = (BROKEN, SLOW, UNMEASURED, REFUSED, UNDECIDED)
#: Keys of a member's failures: it did not answer in its turn, or its links failed.
TURN: Final = "turn"
LINKS: Final = "links"


@attrs.frozen
class WholeResult:
    """The result of a program over all members, or of all links on one network.

    :ivar probe: its name; of links with the network's name, as ``net_bw@rail1``.
    :ivar figure: median of the runs over all members, or of all links.
    :ivar verdict: a verdict of the whole cluster.
    :ivar says: the slow member or link, or why there is no verdict; empty if all are level.
    :ivar rows: number of a member -> its row.
    :ivar remarks: number of a member that is named -> the reason.
    """

    probe: str
    unit: str
    figure: float
    verdict: str
    says: str = ""
    rows: Mapping[int, AcceptanceRow] = attrs.Factory(dict)
    remarks: Mapping[int, str] = attrs.Factory(dict)


@attrs.frozen
class MemberAcceptance:
    """The acceptance result of one member of a cluster.

    :ivar number: its number in the cluster.
    :ivar server: id of its server.
    :ivar remarks: reasons that follow from runs over all members.
    """

    number: int
    name: str
    server: str
    result: AcceptanceResult
    remarks: tuple[str, ...] = ()

    @property
    def slow(self) -> tuple[str, ...]:
        """Names of the probes that are below their floors."""
        return tuple(row.probe for row in self.result.rows if row.verdict == SLOW)

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of the causes that explain slow probes."""
        return tuple(cause.cause for cause in self.result.diagnosis.causes)

    @property
    def reasons(self) -> Iterator[str]:
        """The reasons why the member is not accepted, one sentence each."""
        result = self.result
        if result.refused is not None:
            yield f"refused: {result.refused.text}"
        yield from (
            f"promise broken: {finding.text}" for finding in result.findings if finding.wrong
        )
        for cause in result.diagnosis.causes:
            yield f"{cause.cause} ({cause.status}): {cause.says}; cure: {cause.cure}"
        if result.diagnosis.unexplained:
            yield f"no cause found for {', '.join(result.diagnosis.unexplained)}"
        undecided = [row.probe for row in result.rows if row.verdict == UNDECIDED]
        if undecided:
            yield f"undecided: {', '.join(undecided)}"
        yield from self.remarks
        yield from (f"{what}: {why}" for what, why in result.failed.items())

    def make_verdict(self, taken: int) -> MemberVerdict:
        """Build the verdict on the member for its server's metadata.

        :param taken: time of the measurement, in seconds since 1970.
        """
        word = self.result.verdict.replace(" ", "-")
        return MemberVerdict(word, self.result.tier, taken, self.causes)


@attrs.frozen
class ClusterAcceptance:
    """The acceptance results of all members of a cluster.

    :ivar rounds: the number of rounds in which members were measured in turns.
    :ivar notes: remarks on the whole cluster.
    :ivar whole: results of the programs over all members, and of links on each network.
    :ivar taken: time of the measurement, in seconds since 1970.
    """

    name: str
    tier: str
    members: tuple[MemberAcceptance, ...]
    rounds: int = 0
    notes: tuple[str, ...] = ()
    taken: int = attrs.field(factory=lambda: int(time.time()))
    whole: tuple[WholeResult, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst verdict of its members, and of the programs over all of them."""
        verdicts = {member.result.verdict for member in self.members}
        verdicts |= {whole.verdict for whole in self.whole}
        return next((word for word in _WORST if word in verdicts), ACCEPTED)

    @property
    def status(self) -> int:
        """The exit status, with the values of ``nova-hpc-guest accept``."""
        return STATUSES[self.verdict]

    @property
    def rejected(self) -> tuple[MemberAcceptance, ...]:
        """Members that are slow or not as promised, or that could not be measured."""
        words = (BROKEN, SLOW, UNMEASURED)
        return tuple(member for member in self.members if member.result.verdict in words)
