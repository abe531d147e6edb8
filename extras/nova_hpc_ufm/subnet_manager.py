# SPDX-License-Identifier: Apache-2.0
"""UFM Enterprise as subnet manager, by its REST API.

UFM owns its subnet manager's file of partitions and replaces it, so the agent sends requests to UFM
and reads back UFM's state. **Written from NVIDIA's documentation and not tested with the real
product**. The tests use the recorded contract of ``tests/data/ufm/contract.json``.

The reading contains UFM's partitions, not the tables of ports. Only a host of the fabric can read
those, with the key that protects them (M_Key). UFM 6.15.1 or later is needed, for
``POST /resources/pkeys/add``.

A GUID leaves its old partition before it joins the new one, and a membership changes the same way.
In between the port is in none, never in two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import fasteners
from oslo_log import log

from nova_hpc.fabric.partitions.backends.base import (
    AuditRow,
    Capabilities,
    ReadBack,
    StaleReadingError,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.keys import DEFAULT_PKEY, Membership, format_guid, format_pkey
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionPolicy
from nova_hpc_common.outside.text import printable_text
from nova_hpc_ufm.audit import UfmOptions, audit_ufm, read_ufm_files
from nova_hpc_ufm.client import UfmAccess, UfmClient, UfmRefusedError
from nova_hpc_ufm.partitions import (
    Memberships,
    UfmListing,
    UfmPorts,
    UfmQuality,
    describe_members,
    describe_pkeys,
    read_partitions,
    read_port_guids,
    read_qualities,
)
from nova_hpc_ufm.plan import (
    Place,
    UfmSituation,
    UfmVerdicts,
    keep_record,
    list_own_pkeys,
    merge_members,
    plan_changes,
)
from nova_hpc_ufm.policies import follow_policy
from nova_hpc_ufm.record import UfmRecord, read_ufm_record, write_ufm_record
from nova_hpc_ufm.writer import PKEYS, UfmWriter

LOG: Final = log.getLogger(__name__)

#: Seconds until the list of ports, the longest answer, is requested again.
_AGE_OF_PORTS: Final = 3.0
#: The same for qualities of service, which only the agent may change.
_AGE_OF_QUALITIES: Final = 30.0
#: Seconds for which a round's audit takes the partitions from the round's own reading.
_AGE_OF_LISTING: Final = 10.0
#: So many members or more are not expected to disappear together.
_MANY_MEMBERS: Final = 4


class UfmSubnetManager:
    """UFM Enterprise as subnet manager, through its REST API."""

    # Of functions: if virtualisation is on at the adapters and at UFM (``audit`` looks).
    capabilities: ClassVar[Capabilities] = Capabilities(separates_functions=True)

    def __init__(self, conf: Any, now: Callable[[], float] = time.monotonic) -> None:
        """Send no request yet.

        :param conf: the group ``[hpc_fabric_agent]``.
        :param now: a monotonic clock, in seconds.
        :raises SubnetManagerError: an option is missing or wrong.
        """
        for option in ("ufm_url", "ufm_user", "ufm_password"):
            if not conf[option]:
                raise SubnetManagerError(f"[hpc_fabric_agent]{option} is not set")
        access = UfmAccess(
            url=conf.ufm_url,
            user=conf.ufm_user,
            password=conf.ufm_password,
            ca_file=conf.ufm_ca_file,
        )
        self._now = now
        self._client = UfmClient(access)
        self._writer = UfmWriter(self._client, now, self._write_jobs)
        self._options = UfmOptions(self._ask_manager)
        self._opensm_config = Path(conf.opensm_config)
        folder = Path(conf.state_path)
        self._record_file = folder / "ufm-partitions"
        self._good_file = folder / "ufm-partitions.good"
        self._lock_file = folder / "ufm-partitions.lock"
        self._listing: UfmListing | None = None
        self._listing_at = float("-inf")
        self._ports = UfmPorts(whole=False)
        self._ports_at = float("-inf")
        self._port_faults: tuple[str, ...] = ()
        self._qualities: Mapping[int, UfmQuality] = {}
        self._qualities_at = float("-inf")
        self._policy_faults: tuple[str, ...] = ()
        self._has_looked = self._has_enforced = False
        #: Intruders that a reading after the last change has reported. They may be removed now.
        self._told: frozenset[Place] = frozenset()
        self._logged: frozenset[Place] = frozenset()

    # -- changes -------------------------------------------------------------------------

    def enforce(self, desired: DesiredPartitions) -> bool:
        """Request every change of UFM that *desired* needs; see :class:`base.SubnetManager`.

        A partition that UFM does not take, that is unreadable, or that is an administrator's, does
        not hold up the others; :meth:`read_back` names it.
        """
        with self._alone():
            record = self._read_record()
            if desired.ticket < record.ticket:
                raise StaleReadingError(
                    f"the reading {desired.ticket} of the desired partitions is older than "
                    f"UFM's own, {record.ticket}"
                )
            self._writer.begin()
            situation = self._look_around(desired, record)
            # Record first, then change UFM: a partition without a record is not the agent's.
            kept = keep_record(record.partitions, situation)
            self._write_record(UfmRecord(desired.ticket, kept, self._writer.jobs))
            self._shrink_good(situation.wanted)
            self._has_enforced = True
            refused = self._apply(desired, situation)
            if refused:
                # An administrator may still make such a partition, which would not be the agent's.
                kept = {pkey: kept[pkey] for pkey in kept.keys() - refused}
                self._write_record(UfmRecord(desired.ticket, kept, self._writer.jobs))
            self._set_policies(desired.policies, kept.keys() & situation.wanted.keys())
            return self._writer.sent > 0

    def _apply(self, desired: DesiredPartitions, situation: UfmSituation) -> frozenset[int]:
        """Send the changes; returns the P_Keys whose partitions UFM refuses to make."""
        changes = plan_changes(situation, self._told)
        leaving = {
            (pkey, guid)
            for removed in (changes.removals, changes.removed_partitions)
            for pkey, guids in removed.items()
            for guid in guids
        }
        for pkey, guid in sorted(leaving & situation.list_intruders()):
            LOG.warning(
                "The agent removes %s from the partition %s at UFM: Neutron has no such member",
                format_guid(guid),
                format_pkey(pkey),
            )
        self._told = frozenset()
        self._writer.remove(changes)
        if changes.leaving & {guid for members in situation.wanted.values() for guid in members}:
            # Whether they have left is read before they join another partition.
            situation = self._look_around(desired, self._read_record(), follow=False)
            changes = plan_changes(situation, frozenset())
        return self._writer.add(changes)

    def _set_policies(
        self, policies: Mapping[int, PartitionPolicy], pkeys: Collection[int]
    ) -> None:
        faults: list[str] = []
        asked = {pkey: policies[pkey] for pkey in sorted(pkeys) if pkey in policies}
        is_old = self._now() - self._qualities_at > _AGE_OF_QUALITIES
        if asked and (is_old or not asked.keys() <= self._qualities.keys()):
            self._qualities = read_qualities(self._client.get(PKEYS, qos_conf="true"))
            self._qualities_at = self._now()
        for pkey, policy in asked.items():
            before = self._qualities.get(pkey)
            if before is None:
                # UFM is still making the partition, or its answer was not understood.
                if self._listing is not None and pkey in self._listing.partitions:
                    faults.append(f"UFM reports no quality of service of {format_pkey(pkey)}")
                continue
            after, unknown = follow_policy(before, policy)
            faults += [f"partition {format_pkey(pkey)}: {text}" for text in unknown]
            busy = any(job.pkey == pkey for job in self._writer.jobs)
            if after != before and not busy:
                self._writer.set_quality(pkey, after)
                self._qualities_at = float("-inf")
        self._policy_faults = tuple(faults)

    def restore(self) -> None:
        """Refuse: no file of UFM's is the agent's to mend.

        :raises SubnetManagerError: always.
        """
        raise SubnetManagerError("UFM's settings are changed at UFM alone")

    def refuse_settings(self) -> None:
        """Do nothing: the agent changes no settings of UFM."""

    # -- readings ------------------------------------------------------------------------

    def read_back(self, desired: DesiredPartitions) -> ReadBack:
        """Compare UFM's partitions with the desired ones, membership by membership."""
        with self._alone():
            record = self._read_record()
            situation = self._look_around(desired, record)
            kept = keep_record(record.partitions, situation, with_wanted=False)
            if kept != record.partitions:
                self._write_record(UfmRecord(record.ticket, kept, self._writer.jobs))
            ports = self._read_ports()
            readings = UfmVerdicts(situation, ports, self._writer.refusals).judge_rows(desired)
            self._grow_good(situation)
        faults = (
            *self._list_faults(situation),
            # Without a ticket the desired state is unknown, so no member counts as an intruder.
            *(self._announce_intruders(situation) if desired.ticket else ()),
            *self._port_faults,
            *self._policy_faults,
        )
        return ReadBack(readings, faults)

    def foreign_pkeys(self) -> frozenset[int]:
        """Return the P_Keys at UFM that are not the agent's, except the default partition's."""
        record = self._read_record()
        listing = self._recall_listing()
        ours = list_own_pkeys(record.partitions, listing)
        return frozenset(listing.partitions.keys() - ours - {DEFAULT_PKEY})

    def watched_files(self) -> Sequence[Path]:
        """Return no file, because the agent changes UFM only through its API.

        Changes by others are found at the next reading.
        """
        return ()

    def audit(self) -> Sequence[AuditRow]:
        """Judge UFM's settings from its answers, and from its files if they are on this host."""
        files = read_ufm_files(self._opensm_config)
        default = self._recall_listing().default
        return audit_ufm(self._options, None if default.problem else default, files)

    def close(self) -> None:
        """Close the connections to UFM."""
        self._client.close()

    # -- the state at UFM and in the record ----------------------------------------------

    def _look_around(
        self, desired: DesiredPartitions, record: UfmRecord, *, follow: bool = True
    ) -> UfmSituation:
        # Jobs first: then the reading contains the changes of every job that has ended.
        self._writer.adopt_jobs(record.jobs)
        if follow:
            self._writer.follow_jobs()
        listing = self._read_listing()
        if not self._has_looked:
            # The agent before may have ended between an addition and its answer.
            self._has_looked = True
            for job in record.jobs:
                if job.is_lost:
                    self._writer.expect_additions(job.pkey, job.guids)
            for pkey, members in record.partitions.items():
                asked = {
                    guid for job in self._writer.jobs for guid in job.guids if job.pkey == pkey
                }
                absent = members.keys() - listing.members(pkey).keys() - asked
                if absent and not listing.is_unknown(pkey):
                    self._writer.expect_additions(pkey, absent)
        recorded = {(pkey, guid) for pkey, members in record.partitions.items() for guid in members}
        return UfmSituation(
            listing=listing,
            wanted=merge_members(desired),
            ours=list_own_pkeys(record.partitions, listing),
            known=frozenset(recorded | {(member.pkey, member.guid) for member in desired.members}),
            jobs=self._writer.jobs,
        )

    def _read_listing(self) -> UfmListing:
        listing = read_partitions(self._client.get(PKEYS, guids_data="true"))
        good = read_ufm_record(self._good_file) or UfmRecord()
        lost = _find_sudden_loss(good.partitions, listing)
        if lost:
            raise SubnetManagerError(
                f"UFM suddenly lists {lost}: its answer is not used, and nothing is changed. If "
                f"UFM has really lost them, remove {self._good_file}: then the agent makes them "
                "again"
            )
        self._listing, self._listing_at = listing, self._now()
        return listing

    def _recall_listing(self) -> UfmListing:
        """Return the partitions as this round has read them; read them again if they are old."""
        if self._listing is None or self._now() - self._listing_at > _AGE_OF_LISTING:
            return self._read_listing()
        return self._listing

    def _read_ports(self) -> UfmPorts:
        """Read the ports of the fabric, and name the faults of the lists."""
        if self._now() - self._ports_at <= _AGE_OF_PORTS:
            return self._ports
        faults = []
        try:
            ports = read_port_guids(self._client.get("/resources/ports"), "guid")
            if not ports.guids:
                faults.append("UFM lists no port at all: which ports are on the fabric is unknown")
                ports = UfmPorts(whole=False)
            ports = ports.joined(self._read_virtual_ports())
        except SubnetManagerError as error:
            faults.append(f"which ports are on the fabric is unknown: {error}")
            ports = UfmPorts(whole=False)
        if not ports.whole and not faults:
            faults.append("UFM's list of ports has entries without a GUID")
        self._ports, self._ports_at, self._port_faults = ports, self._now(), tuple(faults)
        return ports

    def _read_virtual_ports(self) -> UfmPorts:
        try:
            answer = self._client.get("/resources/vports")
        except UfmRefusedError:
            # A UFM without virtualisation; then no function is on the fabric.
            return UfmPorts()
        return read_port_guids(answer, "virtual_port_guid")

    def _ask_manager(self, option: str | None) -> Any:
        query = {} if option is None else {"param_name": option}
        return self._client.get("/app/smconf", **query)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        with fasteners.InterProcessLock(str(self._lock_file)):
            yield

    def _read_record(self) -> UfmRecord:
        return read_ufm_record(self._record_file) or UfmRecord()

    def _write_record(self, record: UfmRecord) -> None:
        write_ufm_record(self._record_file, record)

    def _write_jobs(self) -> None:
        """Record the jobs so that another agent finds them; called with the lock held."""
        self._write_record(attrs.evolve(self._read_record(), jobs=self._writer.jobs))

    def _shrink_good(self, wanted: Memberships) -> None:
        """Remove members that the agent is about to remove from the file of expected members."""
        good = read_ufm_record(self._good_file)
        if good is not None:
            left = {
                pkey: {
                    guid: membership
                    for guid, membership in members.items()
                    if wanted.get(pkey, {}).get(guid) is membership
                }
                for pkey, members in good.partitions.items()
            }
            self._write_good(good, {pkey: members for pkey, members in left.items() if members})

    def _grow_good(self, situation: UfmSituation) -> None:
        """Add the wanted members that UFM has to the file of expected members."""
        good = read_ufm_record(self._good_file) or UfmRecord()
        expected = {pkey: dict(members) for pkey, members in good.partitions.items()}
        for pkey in situation.ours & situation.wanted.keys():
            stated = situation.listing.members(pkey)
            for guid, membership in situation.wanted[pkey].items():
                if stated.get(guid) is membership:
                    expected.setdefault(pkey, {})[guid] = membership
        self._write_good(good, expected)

    def _write_good(self, before: UfmRecord, partitions: Memberships) -> None:
        if partitions != before.partitions:
            write_ufm_record(self._good_file, UfmRecord(0, partitions))

    # -- sentences -----------------------------------------------------------------------

    def _announce_intruders(self, situation: UfmSituation) -> Iterator[str]:
        """Yield a text about members that were added at UFM; the next change may remove them."""
        intruders = situation.list_intruders()
        if self._has_enforced:
            self._told |= intruders
        for pkey in sorted({pkey for pkey, _ in intruders}):
            members = situation.listing.members(pkey)
            listed = {guid: members[guid] for other, guid in intruders if other == pkey}
            text = (
                f"the partition {format_pkey(pkey)} at UFM has members that Neutron does not have: "
                f"{describe_members(listed)}; they were added at UFM, and the agent removes them"
            )
            if not listed.keys() <= {guid for other, guid in self._logged if other == pkey}:
                LOG.warning("UFM: %s", text)
            yield text
        self._logged = intruders

    def _list_faults(self, situation: UfmSituation) -> Iterator[str]:
        listing = situation.listing
        opening = _find_opening(listing)
        if opening is not None:
            yield opening
        yield from listing.faults
        for pkey, name in situation.list_conflicts().items():
            yield (
                f"the partition {format_pkey(pkey)} ({printable_text(name)}) at UFM is not ours: "
                f"delete it there, or write the line {format_pkey(pkey)} into {self._record_file}"
            )
        busy = {job.pkey for job in situation.jobs}
        left = (situation.ours & listing.partitions.keys()) - situation.wanted.keys() - busy
        left -= {pkey for pkey, _ in situation.list_intruders()}
        left -= {pkey for pkey in left if listing.is_unknown(pkey)}
        if left:
            yield f"partitions of ours are left at UFM: {describe_pkeys(left)}"
        for (_, guid), text in self._writer.refusals.items():
            if guid is None:
                yield text


def _find_opening(listing: UfmListing) -> str | None:
    if listing.default.default_membership is Membership.FULL:
        return (
            "every port has full membership of the default partition: the fabric is open; set "
            "default_membership = limited in gv.cfg of UFM and restart it"
        )
    return None


def _find_sudden_loss(good: Memberships, listing: UfmListing) -> str:
    """Describe the loss if UFM lists none of the earlier members; "" without such a loss."""
    left_empty = listing.partitions.keys() == {DEFAULT_PKEY}
    if good and not good.keys() & listing.partitions.keys() and (len(good) > 1 or left_empty):
        return f"none of the partitions that it had: {describe_pkeys(good)}"
    places = [(pkey, guid) for pkey, members in good.items() for guid in members]
    left = [
        None for pkey, guid in places if guid in listing.members(pkey) or listing.is_unknown(pkey)
    ]
    if len(places) >= _MANY_MEMBERS and not left:
        return f"none of the {len(places)} members that its partitions had"
    return ""
