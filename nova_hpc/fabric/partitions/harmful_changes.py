# SPDX-License-Identifier: Apache-2.0
"""Find the change that did harm, and keep its rows back for a while.

A change can only harm rows of the GUIDs and P_Keys that it touches, unless the subnet manager
rejects the whole file. Every other difference has another cause: an adapter that hangs, or a node
that writes its own table. Those differences do not undo a change.

Example: rows 1 (GUID A, P_Key 0x101) and 2 (B, 0x102) were right. A change adds row 3 (C, 0x102).
Now A and B lack their keys. Row 2 shares the P_Key with row 3, so row 3 is kept back. Row 1 shares
nothing with row 3, so it is an alarm and nothing else. If the same change adds row 4 (D, 0x103),
row 4 stays: it shares nothing with row 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import MemberReading, MemberState, ReadBack
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember

#: Harm is attributed to a change for so many seconds while some of its rows are not right yet.
_PROBATION: Final = 60.0
#: Seconds after which the subnet manager has certainly read the file. For that time an open fabric
#: is attributed to a change even if all of its rows are right.
_SETTLING: Final = 5.0
#: Seconds between two looks during that time.
_PROOF_PAUSE: Final = 1.0
#: Seconds for which a row that did harm is kept back: the first time, and at most.
_HOLD_LEAST, _HOLD_MOST = 5.0, 60.0

#: A row's part of the file: GUID, P_Key, membership; None if the row is not wanted.
_Entry = tuple[int, int, str] | None


@attrs.frozen
class PartitionChange:
    """A change of the file of partitions that was given to the subnet manager.

    :ivar at: time of the agent's clock, in seconds.
    :ivar added: rows that the file did not contain before, with GUID and P_Key.
    :ivar was_open: the fabric was open before the change.
    :ivar is_done: all of its rows were read back as right.
    """

    at: float
    added: Mapping[int, tuple[int, int]] = attrs.field(factory=dict)
    was_open: bool = False
    is_done: bool = False

    def list_rows_beside(self, harmed: Collection[PartitionMember]) -> frozenset[int]:
        """Return the ids of added rows that may harm *harmed*: with the same GUID or P_Key."""
        guids = {member.guid for member in harmed}
        pkeys = {member.pkey for member in harmed}
        return frozenset(
            row for row, (guid, pkey) in self.added.items() if guid in guids or pkey in pkeys
        )


def compare_desired(
    before: DesiredPartitions, after: DesiredPartitions, at: float, was_open: bool
) -> PartitionChange:
    """Return the change from one desired state of a fabric to the next: the memberships that came.

    :param at: time of the change, in seconds.
    :param was_open: whether the fabric was open before it.
    """
    old = {member.row: member for member in before.members}
    added = {
        member.row: (member.guid, member.pkey)
        for member in after.wanted()
        if _entry_of(old.get(member.row)) != _entry_of(member)
    }
    return PartitionChange(at=at, added=added, was_open=was_open)


def _entry_of(member: PartitionMember | None) -> _Entry:
    if member is None or not member.wanted:
        return None
    return member.guid, member.pkey, member.membership


def keep_rows(desired: DesiredPartitions, rows: Collection[int]) -> DesiredPartitions:
    """Return a copy of *desired* in which only the listed rows are wanted."""
    members = tuple(
        member if member.row in rows else attrs.evolve(member, wanted=False)
        for member in desired.members
    )
    return attrs.evolve(desired, members=members)


def find_lost_rows(
    desired: DesiredPartitions, reading: ReadBack, settled: Collection[int]
) -> tuple[PartitionMember, ...]:
    """Return memberships that were in force and whose P_Key the port certainly lacks now."""
    return tuple(
        member
        for member in desired.wanted()
        if member.row in settled
        and (entry := reading.members.get(member.row)) is not None
        and entry.kept is False
    )


def describe_losses(lost: Sequence[PartitionMember], reading: ReadBack) -> tuple[str, ...]:
    """Return a sentence about members that were in force and lost their P_Keys; () without any."""
    if not lost:
        return ()
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    reason = reading.members[lost[0].row].reason
    return (f"a member that was right is not any more: {reason}{more}",)


@attrs.define
class _Hold:
    pause: float = 0.0
    until: float = float("-inf")


@attrs.define
class ChangeWatch:
    """Watches recent changes for harm, and keeps rows out of the file whose change did harm.

    Used by the agent's one thread of rounds.
    """

    _changes: list[PartitionChange] = attrs.field(factory=list)
    _holds: dict[int, _Hold] = attrs.field(factory=dict)
    #: Rows for which a change was undone already, and that are not right since.
    _answered: set[int] = attrs.field(factory=set)

    def note_change(self, change: PartitionChange) -> None:
        """Start to watch *change* for harm."""
        self._changes.append(change)

    def leave_out_held(self, desired: DesiredPartitions, moment: float) -> DesiredPartitions:
        """Return *desired* with the held rows as unwanted, so that their P_Keys leave the tables.

        A row is held for a time after its change did harm.
        """
        held = self._list_held(moment)
        if not held:
            return desired
        return keep_rows(desired, {member.row for member in desired.members} - held)

    def mark_held(self, reading: ReadBack, desired: DesiredPartitions, moment: float) -> ReadBack:
        """Return *reading* with held rows as DIFFERENT, whatever their tables contain.

        The file of partitions lacks these rows.
        """
        held = self._list_held(moment)
        readings = {
            member.row: MemberReading(
                MemberState.DIFFERENT,
                "the change that added it did harm and was undone; it is tried again after "
                f"{self._holds[member.row].pause:.0f} seconds",
                kept=False,
            )
            for member in desired.wanted()
            if member.row in held
        }
        return attrs.evolve(reading, members={**reading.members, **readings}) if held else reading

    def take_reading(
        self,
        desired: DesiredPartitions,
        served: DesiredPartitions,
        reading: ReadBack,
        moment: float,
    ) -> None:
        """Forget changes that proved harmless, and release held rows that are in force now.

        :param served: *desired* without held rows; the reading was made for these.
        """
        kept = {member.row for member in desired.wanted()}
        wanted = {member.row for member in served.wanted()}
        right = {
            row
            for row, entry in reading.members.items()
            if entry.state is MemberState.AS_DESIRED and row in wanted
        }
        self._answered &= wanted - right
        looked_at = (
            attrs.evolve(change, is_done=change.is_done or change.added.keys() & wanted <= right)
            for change in self._changes
        )
        self._changes = [
            change
            for change in looked_at
            if moment - change.at < (_SETTLING if change.is_done else _PROBATION)
        ]
        self._holds = {
            row: hold for row, hold in self._holds.items() if row in kept and row not in right
        }

    def choose_undone(
        self, lost: Iterable[PartitionMember], reading: ReadBack, moment: float
    ) -> frozenset[int] | None:
        """Choose the membership rows to keep out of the file because their change did harm.

        :param lost: see :func:`find_lost_rows`.
        :returns: ids of rows; None if no change on probation did harm. The set may be empty: then
            the change was one of settings.
        """
        young = [change for change in self._changes if moment - change.at < _PROBATION]
        if reading.opened is not None:
            # Every young change that began while the fabric was closed may have opened it.
            guilty = [change for change in young if not change.was_open]
            if guilty:
                return frozenset().union(*(change.added for change in guilty))
        # A lost row undoes a change only once, until it has been right again.
        harmed = [member for member in lost if member.row not in self._answered]
        rows: frozenset[int] = frozenset().union(
            *(change.list_rows_beside(harmed) for change in young if not change.is_done)
        )
        rows -= {member.row for member in harmed}
        self._answered |= {member.row for member in harmed if rows}
        return rows or None

    def keep_back(self, rows: Collection[int], moment: float) -> None:
        """Keep rows out of the file, for longer each time.

        The second half waits twice as long as the first. So a row that does no harm is soon in the
        file without the row that does.
        """
        self._changes.clear()
        ordered = sorted(rows)
        for number, row in enumerate(ordered):
            hold = self._holds.setdefault(row, _Hold())
            hold.pause = min(_HOLD_MOST, max(_HOLD_LEAST, 2 * hold.pause))
            factor = 1 if 2 * number < len(ordered) else 2
            hold.until = moment + factor * hold.pause

    def choose_pause(self, moment: float) -> float:
        """Return the seconds until the next round: a held row is due, or a change is unproved.

        Infinity if neither. A change without new rows has no row that shows that the manager has
        taken it.
        """
        ends = [self._holds[row].until - moment for row in self._list_held(moment)]
        if any(not change.added for change in self._changes):
            ends.append(_PROOF_PAUSE)
        return min(ends, default=float("inf"))

    def _list_held(self, moment: float) -> frozenset[int]:
        return frozenset(row for row, hold in self._holds.items() if moment < hold.until)
