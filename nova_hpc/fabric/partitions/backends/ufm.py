# SPDX-License-Identifier: Apache-2.0
"""UFM Enterprise as subnet manager, by its REST API.

UFM owns its subnet manager's file of partitions and writes it anew, so it is asked, and asked
again what it has. **Written from NVIDIA's documentation and not tried on the real product**; the
tests speak the recorded contract of ``tests/data/ufm/contract.json``.

What is read back is what UFM says of its partitions, not the tables of ports: those can be read
on a host of the fabric alone, and with the key that protects them (M_Key). UFM 6.15.1 or later is
needed, for ``POST /resources/pkeys/add``.

A GUID is taken out of its old partition before it is put into the new one, and a membership
changes the same way: in between the port is in none, never in two.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

import fasteners
import requests

from nova_hpc.fabric.partitions.backends.base import (
    AuditRow,
    Capabilities,
    MemberReading,
    MemberState,
    ReadBack,
    StaleReadingError,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.ufm_audit import audit_ufm, read_ufm_files
from nova_hpc.fabric.partitions.backends.ufm_client import UfmAccess, UfmClient, UfmRefusedError
from nova_hpc.fabric.partitions.backends.ufm_partitions import (
    GIGABITS,
    NAME_PREFIX,
    UfmChanges,
    UfmPartition,
    UfmQuality,
    describe_members,
    describe_pkeys,
    merge_members,
    plan_changes,
    read_partitions,
    read_port_guids,
    read_qualities,
)
from nova_hpc.fabric.partitions.backends.ufm_record import (
    UfmRecord,
    read_ufm_record,
    write_ufm_record,
)
from nova_hpc.fabric.partitions.keys import (
    DEFAULT_PKEY,
    Membership,
    format_guid,
    format_pkey,
)
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionPolicy
from nova_hpc.outside.text import printable_text

_PKEYS: Final = "/resources/pkeys"
#: GUIDs in one request: those to be removed stand in its path.
_AT_ONCE: Final = 100
#: From this release on a partition can be given a name.
_NAMES_SINCE: Final = (6, 22)
#: States of a job that has ended, and how (guide, *Jobs REST API*).
_DONE: Final = "completed"
#: Seconds for which the list of ports, the longest answer, is not asked for again.
_AGE_OF_PORTS: Final = 3.0
_RUNNING: Final = frozenset({"pending", "running", "created", "waiting"})


class UfmSubnetManager:
    """UFM Enterprise."""

    # Of functions: where virtualisation is on at the adapters and at UFM (``audit`` looks).
    capabilities: ClassVar[Capabilities] = Capabilities(separates_functions=True)

    def __init__(self, conf: Any) -> None:
        """Ask for nothing yet.

        :param conf: the group ``[hpc_fabric_agent]``.
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
        self._client = UfmClient(access)
        self._opensm_config = Path(conf.opensm_config)
        folder = Path(conf.state_path)
        self._record_file = folder / "ufm-partitions"
        self._good_file = folder / "ufm-partitions.good"
        self._lock_file = folder / "ufm-partitions.lock"
        #: What UFM did not take at the last attempt: (P_Key, GUID or None: all) -> why.
        self._refusals: dict[tuple[int, int | None], str] = {}
        #: P_Key -> number of the job in which UFM changes it.
        self._jobs: dict[int, str] = {}
        #: Of the reading that UFM was asked for last.
        self._ticket: int | None = None
        #: What was wanted then.
        self._wanted: Mapping[int, Mapping[int, Membership]] | None = None
        self._ports: frozenset[int] = frozenset()
        self._ports_at = float("-inf")

    def enforce(self, desired: DesiredPartitions) -> bool:
        """Ask UFM for every change that *desired* needs; see :class:`base.SubnetManager`.

        One partition that UFM does not take, or that is somebody else's, leaves the others as
        they are to be; :meth:`read_back` names it.
        """
        wanted = merge_members(desired)
        with self._alone():
            record = read_ufm_record(self._record_file) or UfmRecord()
            if desired.ticket < record.ticket:
                raise StaleReadingError(
                    f"the reading {desired.ticket} of the desired partitions is older than what "
                    f"is at UFM, {record.ticket}"
                )
            self._ticket, self._wanted = desired.ticket, wanted
            present = self._read_present()
            changes = plan_changes(wanted, _owned(record, present), present)
            # First in the record, then at UFM: what is there and not recorded is not ours.
            kept: dict[int, dict[int, Membership]] = {
                pkey: {} for pkey in _owned(record, present) & present.keys()
            }
            kept.update({pkey: dict(wanted[pkey]) for pkey in wanted.keys() - changes.conflicts})
            write_ufm_record(self._record_file, UfmRecord(desired.ticket, kept))
            self._apply(changes)
            reshaped = self._set_policies(desired.policies, wanted.keys() - changes.conflicts)
            return not changes.empty or reshaped

    def read_back(self, desired: DesiredPartitions) -> ReadBack:
        """Compare what UFM says with *desired*, GUID by GUID, exactly."""
        self._follow_jobs()
        present = self._read_present()
        wanted = merge_members(desired)
        on_fabric = self._read_ports()
        record = read_ufm_record(self._record_file) or UfmRecord()
        changes = plan_changes(wanted, _owned(record, present), present)
        faults = self._list_faults(changes, present)
        readings = {
            member.row: self._judge_guid(member.guid, wanted, present, on_fabric)
            for member in desired.members
        }
        if not faults and all(one.state is not MemberState.DIFFERENT for one in readings.values()):
            good = UfmRecord(desired.ticket, wanted)
            if read_ufm_record(self._good_file) != good:
                write_ufm_record(self._good_file, good)
        return ReadBack(readings, tuple(faults))

    def restore(self) -> None:
        """Ask UFM for what was last read back as right; what has to go since stays away."""
        with self._alone():
            good = read_ufm_record(self._good_file)
            if good is None:
                raise SubnetManagerError(
                    f"{self._good_file} is not there: nothing was read back as right yet"
                )
            wanted = good.partitions
            if self._wanted is not None:
                wanted = _intersect_partitions(wanted, self._wanted)
            present = self._read_present()
            record = read_ufm_record(self._record_file) or UfmRecord()
            if self._ticket is not None and self._ticket < record.ticket:
                raise StaleReadingError(
                    f"another agent has asked UFM for the reading {record.ticket} since: what was "
                    f"right at the reading {self._ticket} is not put back"
                )
            self._apply(plan_changes(wanted, _owned(record, present), present))

    def foreign_pkeys(self) -> frozenset[int]:
        """P_Keys at UFM that are not ours, but for the default partition's."""
        present = self._read_present()
        record = read_ufm_record(self._record_file) or UfmRecord()
        return frozenset(present.keys() - _owned(record, present) - {DEFAULT_PKEY})

    def watched_files(self) -> Sequence[Path]:
        """None: UFM's own file follows UFM. Changes by others are seen at the next look."""
        return ()

    def audit(self) -> Sequence[AuditRow]:
        """What UFM tells of its settings, and its files, where they lie on this host."""
        files = read_ufm_files(self._opensm_config)
        return audit_ufm(self._ask_manager, self._read_present()[DEFAULT_PKEY], files)

    def close(self) -> None:
        """Close the connections to UFM."""
        self._client.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        with fasteners.InterProcessLock(str(self._lock_file)):
            yield

    def _ask_manager(self, option: str) -> Any:
        return self._client.get("/app/smconf", param_name=option)

    def _read_present(self) -> dict[int, UfmPartition]:
        return read_partitions(self._client.get(_PKEYS, guids_data="true"))

    def _read_ports(self) -> frozenset[int]:
        if time.monotonic() - self._ports_at > _AGE_OF_PORTS:
            physical = read_port_guids(self._client.get("/resources/ports"), "guid")
            self._ports = physical | self._read_virtual_ports()
            self._ports_at = time.monotonic()
        return self._ports

    def _read_virtual_ports(self) -> frozenset[int]:
        try:
            answer = self._client.get("/resources/vports")
        except UfmRefusedError:
            # A UFM without virtualisation; then no function is on the fabric.
            return frozenset()
        return read_port_guids(answer, "virtual_port_guid")

    def _apply(self, changes: UfmChanges) -> None:
        self._refusals = {}
        for pkey, guids in changes.removals.items():
            for some in _batches(guids):
                listed = ",".join(f"{guid:016x}" for guid in some)
                self._try(pkey, None, "DELETE", f"{_PKEYS}/{pkey:#x}/guids/{listed}")
        for pkey in changes.removed_partitions:
            self._try(pkey, None, "DELETE", f"{_PKEYS}/{pkey:#x}")
        for pkey in changes.new_partitions:
            self._try(pkey, None, "POST", f"{_PKEYS}/add", self._new_partition(pkey))
        for pkey, members in changes.additions.items():
            for membership in Membership:
                coming = [guid for guid in members if members[guid] is membership]
                for some in _batches(coming):
                    self._add(pkey, membership, some)

    def _new_partition(self, pkey: int) -> dict[str, Any]:
        body: dict[str, Any] = {"pkey": f"{pkey:#x}", "index0": False, "ip_over_ib": True}
        if self._takes_names():
            body["partition_name"] = f"{NAME_PREFIX}{format_pkey(pkey)}"
        return body

    def _takes_names(self) -> bool:
        answer = self._client.get("/app/ufm_version")
        stated = answer.get("ufm_release_version") if isinstance(answer, dict) else None
        parts = str(stated).split("-")[0].split(".")[:2]
        return all(part.isdigit() for part in parts) and tuple(map(int, parts)) >= _NAMES_SINCE

    def _add(self, pkey: int, membership: Membership, guids: Sequence[int]) -> None:
        # One membership a request: a list of them is a list of "full" for some releases.
        body = {
            "pkey": f"{pkey:#x}",
            "guids": [f"{guid:016x}" for guid in guids],
            "membership": str(membership),
            # As the partition was made: UFM takes its defaults for what is left out.
            "index0": False,
            "ip_over_ib": True,
        }
        alone = guids[0] if len(guids) == 1 else None
        if self._try(pkey, alone, "POST", f"{_PKEYS}/", body) or len(guids) == 1:
            return
        # UFM refuses a list for one GUID in it: find which.
        self._refusals.pop((pkey, None), None)
        for guid in guids:
            self._add(pkey, membership, (guid,))

    def _try(
        self,
        pkey: int,
        guid: int | None,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
    ) -> bool:
        try:
            job = self._client.change(method, path, body)
        except UfmRefusedError as error:
            if method == "DELETE" and error.status == requests.codes.not_found:
                # Somebody was faster, or UFM has dropped the partition with its last member.
                return True
            self._refusals[pkey, guid] = str(error)
            return False
        if job is not None:
            self._jobs[pkey] = job
        return True

    def _set_policies(self, policies: Mapping[int, PartitionPolicy], pkeys: Iterable[int]) -> bool:
        asked = {pkey: policies[pkey] for pkey in sorted(pkeys) if pkey in policies}
        if not asked:
            return False
        qualities = read_qualities(self._client.get(_PKEYS, qos_conf="true"))
        changed = False
        for pkey, policy in asked.items():
            before = qualities.get(pkey)
            if before is None:
                # Not made yet, in a job that runs.
                continue
            after = _follow_policy(before, policy)
            if after != before:
                changed = True
                body = {
                    "pkey": f"{pkey:#x}",
                    "mtu_limit": after.mtu_limit,
                    "service_level": after.service_level,
                    "rate_limit": after.rate_limit,
                }
                self._try(pkey, None, "PUT", f"{_PKEYS}/qos_conf", body)
        return changed

    def _follow_jobs(self) -> None:
        for pkey, job in list(self._jobs.items()):
            try:
                answer = self._client.get(f"/jobs/{job}")
            except UfmRefusedError:
                # UFM has forgotten it; what is in force says the rest.
                del self._jobs[pkey]
                continue
            body = answer[0] if isinstance(answer, list) and answer else answer
            state = str(body.get("Status") if isinstance(body, dict) else None)
            if state.lower() in _RUNNING:
                continue
            del self._jobs[pkey]
            if state.lower() != _DONE:
                summary = printable_text(str(body.get("Summary", "")))[:200]
                self._refusals[pkey, None] = f"UFM's job {job} ended as {state}: {summary}"

    def _list_faults(self, changes: UfmChanges, present: Mapping[int, UfmPartition]) -> list[str]:
        faults = []
        default = present[DEFAULT_PKEY]
        if default.default_membership is Membership.FULL:
            faults.append(
                "every port has full membership of the default partition: the fabric is open; set "
                "default_membership = limited in gv.cfg of UFM and restart it"
            )
        for pkey, name in changes.conflicts.items():
            faults.append(
                f"the partition {format_pkey(pkey)} ({printable_text(name)}) at UFM is not ours: "
                f"delete it there, or write the line {format_pkey(pkey)} into {self._record_file}"
            )
        leftovers = {
            pkey: guids for pkey, guids in changes.removals.items() if pkey not in self._jobs
        }
        for pkey, guids in leftovers.items():
            extra = {guid: present[pkey].members[guid] for guid in guids}
            faults.append(
                f"the partition {format_pkey(pkey)} at UFM has what nobody wants: "
                f"{describe_members(extra)}"
            )
        empty = set(changes.removed_partitions) - leftovers.keys() - self._jobs.keys()
        if empty:
            faults.append(f"partitions of ours are left at UFM: {describe_pkeys(empty)}")
        faults.extend(text for (_, guid), text in self._refusals.items() if guid is None)
        return faults

    def _judge_guid(
        self,
        guid: int,
        wanted: Mapping[int, Mapping[int, Membership]],
        present: Mapping[int, UfmPartition],
        on_fabric: frozenset[int],
    ) -> MemberReading:
        expected = {pkey: members[guid] for pkey, members in wanted.items() if guid in members}
        default = present[DEFAULT_PKEY]
        if default.members.get(guid, default.default_membership) is Membership.FULL:
            return MemberReading(
                MemberState.DIFFERENT, "it has full membership of the default partition"
            )
        stated = {
            pkey: partition.members[guid]
            for pkey, partition in present.items()
            if pkey != DEFAULT_PKEY and guid in partition.members
        }
        if stated != expected:
            return MemberReading(
                MemberState.DIFFERENT, self._tell_difference(guid, expected, stated)
            )
        if guid not in on_fabric:
            return MemberReading(
                MemberState.NOT_ON_FABRIC, f"UFM lists no port {format_guid(guid)}"
            )
        return MemberReading(MemberState.AS_DESIRED)

    def _tell_difference(
        self, guid: int, expected: Mapping[int, Membership], stated: Mapping[int, Membership]
    ) -> str:
        for pkey in expected:
            refusal = self._refusals.get((pkey, guid)) or self._refusals.get((pkey, None))
            if refusal is not None:
                return refusal
            if pkey in self._jobs:
                return f"UFM is still changing {format_pkey(pkey)}, job {self._jobs[pkey]}"
        return f"UFM has it in {_tell_keys(stated)}, and not in {_tell_keys(expected)}"


def _owned(record: UfmRecord, present: Mapping[int, UfmPartition]) -> frozenset[int]:
    named = {pkey for pkey, partition in present.items() if partition.named_ours}
    return frozenset((record.partitions.keys() | named) - {DEFAULT_PKEY})


def _intersect_partitions(
    first: Mapping[int, Mapping[int, Membership]], second: Mapping[int, Mapping[int, Membership]]
) -> dict[int, dict[int, Membership]]:
    """The members that both have; a partition without any is in neither."""
    both = {
        pkey: {
            guid: membership
            for guid, membership in members.items()
            if second.get(pkey, {}).get(guid) is membership
        }
        for pkey, members in first.items()
    }
    return {pkey: members for pkey, members in both.items() if members}


def _follow_policy(before: UfmQuality, policy: PartitionPolicy) -> UfmQuality:
    level = before.service_level if policy.service_level is None else policy.service_level
    if policy.rate is None:
        return UfmQuality(before.mtu_limit, level, before.rate_limit)
    if policy.rate not in GIGABITS:
        raise SubnetManagerError(
            f"[hpc_partitions]rates has {policy.rate}; UFM knows {min(GIGABITS)} to {max(GIGABITS)}"
        )
    return UfmQuality(before.mtu_limit, level, GIGABITS[policy.rate])


def _tell_keys(keys: Mapping[int, Membership]) -> str:
    return ", ".join(f"{format_pkey(pkey)} {keys[pkey]}" for pkey in sorted(keys)) or "no partition"


def _batches(guids: Iterable[int]) -> Iterator[tuple[int, ...]]:
    rest = iter(guids)
    while some := tuple(islice(rest, _AT_ONCE)):
        yield some
