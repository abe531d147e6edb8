# SPDX-License-Identifier: Apache-2.0
"""The changes that UFM needs, and the verdict on each row.

Pure. A GUID joins a partition only if no other partition of the agent still has it wrongly,
according to a reading, and no job may still add it there. So each GUID that moves waits for its own
removal, and no GUID waits for another's. Partitions of administrators are not part of the
comparison: they are never changed, and a row is right whatever they contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import MemberReading, MemberState
from nova_hpc.fabric.partitions.keys import DEFAULT_PKEY, Membership, format_guid, format_pkey
from nova_hpc.fabric.partitions.members import ACTIVE, DesiredPartitions, PartitionMember
from nova_hpc_common.outside.text import printable_text
from nova_hpc_ufm.jobs import UfmJob
from nova_hpc_ufm.partitions import Members, Memberships, UfmListing, UfmPorts

#: P_Key and GUID.
Place = tuple[int, int]
_UNREAD: Final = MemberReading(MemberState.UNKNOWN, "UFM's record of its partition is not readable")


@attrs.frozen
class UfmSituation:
    """UFM's partitions beside the members that the agent wants.

    :ivar wanted: P_Key -> members, of all rows that are wanted.
    :ivar ours: P_Keys of the agent's partitions.
    :ivar known: members that the agent has requested, or that rows of Neutron name.
    :ivar jobs: jobs that may not have ended.
    """

    listing: UfmListing
    wanted: Memberships
    ours: frozenset[int]
    known: frozenset[Place]
    jobs: tuple[UfmJob, ...] = ()

    def is_wanted(self, pkey: int, guid: int) -> bool:
        """Whether *guid* should be a member of the partition."""
        return guid in self.wanted.get(pkey, {})

    def list_conflicts(self) -> dict[int, str]:
        """Return P_Key -> name of an administrator's partition that has the P_Key of a network."""
        return {
            pkey: self.listing.partitions[pkey].name
            for pkey in sorted(self.wanted)
            if pkey in self.listing.partitions and pkey not in self.ours
        }

    def list_intruders(self) -> frozenset[Place]:
        """Return members of the agent's partitions that neither the agent nor Neutron has added.

        :returns: pairs of P_Key and GUID.
        """
        return frozenset(
            (pkey, guid)
            for pkey in self.ours
            for guid in self.listing.members(pkey)
            if not self.is_wanted(pkey, guid) and (pkey, guid) not in self.known
        )

    def find_jobs(self, pkey: int, guid: int) -> tuple[UfmJob, ...]:
        """Return UFM's jobs that may still change the membership of *guid* in *pkey*."""
        return tuple(job for job in self.jobs if job.pkey == pkey and guid in job.guids)

    def is_moving(self, guid: int) -> bool:
        """Whether a job that UFM has named may still change a membership of a GUID."""
        return any(guid in job.guids for job in self.jobs if not job.is_lost)

    def is_held_elsewhere(self, pkey: int, guid: int) -> bool:
        """Whether another partition of the agent has, or may have, a GUID that must leave it."""
        others = {key for key in self.ours if key != pkey and not self.is_wanted(key, guid)}
        return (
            any(guid in self.listing.members(key) for key in others)
            or any(self.listing.is_unknown(key) and (key, guid) in self.known for key in others)
            or any(job.pkey in others for job in self.jobs if guid in job.guids)
        )


@attrs.frozen
class UfmChanges:
    """The requests to send to UFM, in this order.

    :ivar removals: P_Key -> GUIDs that leave.
    :ivar removed_partitions: P_Key -> its members, for partitions of the agent without a network.
    :ivar new_partitions: partitions that UFM does not have.
    :ivar additions: P_Key -> GUIDs that join.
    """

    removals: Mapping[int, tuple[int, ...]] = attrs.field(factory=dict)
    removed_partitions: Mapping[int, frozenset[int]] = attrs.field(factory=dict)
    new_partitions: tuple[int, ...] = ()
    additions: Memberships = attrs.field(factory=dict)

    @property
    def empty(self) -> bool:
        """Whether UFM needs no request."""
        return not (
            self.removals or self.removed_partitions or self.new_partitions or self.additions
        )

    @property
    def leaving(self) -> frozenset[int]:
        """GUIDs of the ports that leave a partition."""
        return frozenset().union(*self.removals.values(), *self.removed_partitions.values())


def merge_members(desired: DesiredPartitions) -> dict[int, dict[int, Membership]]:
    """Return P_Key -> GUID -> membership of the wanted members.

    If two rows have one GUID, the earlier row's membership counts.
    """
    wanted: dict[int, dict[int, Membership]] = {}
    for member in sorted(desired.wanted(), key=lambda member: member.row):
        wanted.setdefault(member.pkey, {}).setdefault(member.guid, member.membership)
    return wanted


def list_own_pkeys(recorded: Memberships, listing: UfmListing) -> frozenset[int]:
    """Return P_Keys of the agent's partitions: on record, or with a name of the agent's."""
    named = {pkey for pkey, partition in listing.partitions.items() if partition.named_ours}
    return frozenset((recorded.keys() | named) - {DEFAULT_PKEY})


def plan_changes(situation: UfmSituation, announced: frozenset[Place]) -> UfmChanges:
    """Plan the requests that UFM needs now; further ones wait for later readings.

    :param announced: intruders whose alarm was given; others stay until then.
    """
    listing, wanted = situation.listing, situation.wanted
    kept = situation.list_intruders() - announced
    busy = {job.pkey for job in situation.jobs if job.whole and not job.is_lost}
    left_alone = busy | situation.list_conflicts().keys()
    removals: dict[int, tuple[int, ...]] = {}
    removed: dict[int, frozenset[int]] = {}
    additions: dict[int, Members] = {}
    for pkey in sorted((situation.ours & listing.partitions.keys()) | wanted.keys()):
        if pkey in left_alone or listing.is_unknown(pkey):
            continue
        before, after = listing.members(pkey), wanted.get(pkey, {})
        # Members that must stay for now: a job moves them, or their alarm was not given yet.
        still = {guid for guid in before if situation.is_moving(guid) or (pkey, guid) in kept}
        going = {
            guid
            for guid in before.keys() - still
            # A membership that is not understood is not taken away from a wanted member.
            if guid not in after or before[guid] not in (None, after[guid])
        }
        # A partition is removed if no member is wanted or stays, and no job concerns it.
        if not after and not still and not any(job.pkey == pkey for job in situation.jobs):
            removed[pkey] = frozenset(before)
        elif going:
            removals[pkey] = tuple(sorted(going))
        # A GUID joins only after a reading without it in the other partitions.
        coming = {
            guid: after[guid]
            for guid in sorted(after.keys() - before.keys())
            if not situation.is_moving(guid) and not situation.is_held_elsewhere(pkey, guid)
        }
        if coming:
            additions[pkey] = coming
    new = wanted.keys() - listing.partitions.keys() - left_alone
    return UfmChanges(removals, removed, tuple(sorted(new)), additions)


def keep_record(
    recorded: Memberships, situation: UfmSituation, *, with_wanted: bool = True
) -> dict[int, dict[int, Membership]]:
    """Choose the members to keep in the agent's record file.

    :param with_wanted: True before changes are requested. False after a reading, which leaves out
        only the lines of members that are gone.
    """
    listing, conflicts = situation.listing, situation.list_conflicts()
    kept: dict[int, dict[int, Membership]] = {}
    for pkey in situation.ours | recorded.keys():
        jobs = any(job.pkey == pkey for job in situation.jobs)
        if pkey in listing.partitions or jobs or pkey in situation.wanted:
            kept[pkey] = {
                guid: membership
                for guid, membership in recorded.get(pkey, {}).items()
                if situation.is_wanted(pkey, guid)
                or guid in listing.members(pkey)
                or listing.is_unknown(pkey)
                or situation.find_jobs(pkey, guid)
            }
    if with_wanted:
        for pkey in situation.wanted.keys() - conflicts.keys():
            kept[pkey] = {**kept.get(pkey, {}), **situation.wanted[pkey]}
    return kept


# -- verdicts ----------------------------------------------------------------------------


@attrs.frozen
class UfmVerdicts:
    """Decides the state of each member row from UFM's answers.

    :ivar refusals: P_Key and GUID, or None for the whole partition -> UFM's reason.
    """

    situation: UfmSituation
    ports: UfmPorts
    refusals: Mapping[tuple[int, int | None], str]

    def judge_rows(self, desired: DesiredPartitions) -> dict[int, MemberReading]:
        """Judge all membership rows: id of the row -> state.

        An ``ACTIVE`` port without a reading is left out, as unread.
        """
        readings = {member.row: self.judge_row(member) for member in desired.members}
        return {
            member.row: readings[member.row]
            for member in desired.members
            if member.port_status != ACTIVE or readings[member.row].state is not MemberState.UNKNOWN
        }

    def judge_row(self, member: PartitionMember) -> MemberReading:
        """Decide the state of one member row from UFM's answers on its GUID and P_Key."""
        situation = self.situation
        if situation.listing.is_unknown(member.pkey) and member.pkey in situation.ours:
            return _UNREAD
        if not member.wanted:
            return self._judge_leaving(member)
        verdict = self._judge_wanted(member)
        # Only a port that is on the fabric can have lost or kept a key.
        kept = verdict.kept if member.guid in self.ports.guids else None
        return attrs.evolve(verdict, kept=kept)

    def _judge_leaving(self, member: PartitionMember) -> MemberReading:
        situation, pkey, guid = self.situation, member.pkey, member.guid
        if situation.is_wanted(pkey, guid):
            # Another row wants it, and is judged by itself.
            return MemberReading(MemberState.AS_DESIRED)
        if pkey in situation.ours and guid in situation.listing.members(pkey):
            return MemberReading(MemberState.DIFFERENT, self._explain_wait(pkey, guid, "still"))
        if situation.find_jobs(pkey, guid):
            return MemberReading(MemberState.DIFFERENT, self._explain_wait(pkey, guid, "not"))
        return MemberReading(MemberState.AS_DESIRED)

    def _judge_wanted(self, member: PartitionMember) -> MemberReading:
        """Judge a wanted membership row: first the partition, the member, then its other keys."""
        situation, pkey, guid = self.situation, member.pkey, member.guid
        listing, name = situation.listing, format_guid(guid)
        conflict = situation.list_conflicts().get(pkey)
        if conflict is not None:
            return MemberReading(
                MemberState.DIFFERENT,
                f"the partition {format_pkey(pkey)} ({printable_text(conflict)}) at UFM is not "
                "ours",
                kept=False,
            )
        stated = listing.members(pkey)
        if guid not in stated:
            return MemberReading(
                MemberState.DIFFERENT, self._explain_wait(pkey, guid, "not"), kept=False
            )
        if stated[guid] is None:
            return MemberReading(
                MemberState.UNKNOWN, f"UFM reports no readable membership of {name}"
            )
        if stated[guid] is not member.membership:
            return MemberReading(
                MemberState.DIFFERENT,
                f"UFM has {name} as a {stated[guid]} member of {format_pkey(pkey)}",
                kept=False,
            )
        return self._judge_beside(member)

    def _judge_beside(self, member: PartitionMember) -> MemberReading:
        """Judge a membership row whose own P_Key is right by the other keys of its port."""
        situation, pkey, guid = self.situation, member.pkey, member.guid
        listing, name = situation.listing, format_guid(guid)
        if listing.is_unknown(DEFAULT_PKEY):
            return MemberReading(
                MemberState.UNKNOWN, "UFM's record of the default partition is not readable"
            )
        if listing.members(DEFAULT_PKEY).get(guid, listing.default.default_membership) is (
            Membership.FULL
        ):
            return MemberReading(
                MemberState.DIFFERENT,
                f"{name} has full membership of the default partition",
                kept=True,
            )
        intruders = situation.list_intruders()
        wrong = {
            other
            for other in situation.ours
            if guid in listing.members(other) and not situation.is_wanted(other, guid)
        }
        if wrong or any(place[0] == pkey for place in intruders):
            # Members of others' making leave in the next round: no verdict before that.
            known = {other for other in wrong if (other, guid) not in intruders}
            return MemberReading(
                MemberState.DIFFERENT if known else MemberState.UNKNOWN,
                f"{name}, or its network's partition, has members at UFM that Neutron does not "
                f"have: {_tell_keys(wrong) or format_pkey(pkey)}",
                kept=True,
            )
        if situation.is_moving(guid) or situation.is_held_elsewhere(pkey, guid):
            return MemberReading(
                MemberState.UNKNOWN, self._explain_wait(pkey, guid, "still"), kept=True
            )
        if guid in self.ports.guids:
            return MemberReading(MemberState.AS_DESIRED, kept=True)
        if not self.ports.whole:
            return MemberReading(
                MemberState.UNKNOWN, f"UFM's list of ports is not whole, and lacks {name}"
            )
        return MemberReading(MemberState.NOT_ON_FABRIC, f"UFM lists no port {name}")

    def _explain_wait(self, pkey: int, guid: int, word: str) -> str:
        situation = self.situation
        for reason in (self.refusals.get((pkey, guid)), self.refusals.get((pkey, None))):
            if reason is not None:
                return reason
        jobs = [
            job for job in situation.jobs if guid in job.guids or (job.pkey == pkey and job.whole)
        ]
        if jobs:
            return f"UFM is still changing {format_pkey(jobs[0].pkey)}, {jobs[0].describe()}"
        where = {
            other
            for other in situation.ours - {pkey}
            if guid in situation.listing.members(other) and not situation.is_wanted(other, guid)
        }
        beside = f"; it waits until UFM has it in {_tell_keys(where)} no more" if where else ""
        return f"UFM has {format_guid(guid)} {word} in {format_pkey(pkey)}{beside}"


def _tell_keys(pkeys: frozenset[int] | set[int]) -> str:
    return ", ".join(format_pkey(pkey) for pkey in sorted(pkeys))
