# SPDX-License-Identifier: Apache-2.0
"""Sends changes to UFM, one by one, and follows the jobs in which UFM makes them.

A change that UFM refuses, or has trouble with, holds no other change back. The attempt ends only if
UFM does not answer, or does not take the user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import attrs
import requests

from nova_hpc.fabric.partitions.keys import Membership, format_pkey
from nova_hpc_ufm.client import (
    UfmClient,
    UfmRefusedError,
    UfmSilentError,
    UfmTroubleError,
    UfmUntrackedError,
)
from nova_hpc_ufm.jobs import UfmJob, UfmJobState, read_job_state, read_job_states
from nova_hpc_ufm.partitions import NAME_PREFIX, Members, UfmQuality
from nova_hpc_ufm.plan import UfmChanges

PKEYS: Final = "/resources/pkeys"
#: GUIDs in one request: those to be removed stand in its path.
_AT_ONCE: Final = 100
#: From this release on a partition can be given a name.
_NAMES_SINCE: Final = (6, 22)
#: An addition with a lost answer counts for so many seconds: longer than UFM needs for any.
_LOST_SECONDS: Final = 60.0
#: An attempt ends if UFM has trouble with its first changes.
_MOST_TROUBLES: Final = 3


@attrs.define
class UfmWriter:
    """Sends changes to UFM, and follows the jobs in which UFM carries them out.

    :ivar now: a monotonic clock, in seconds.
    :ivar note_jobs: called when the jobs have changed.
    :ivar refusals: P_Key and GUID, or None for the whole partition -> why UFM did not take it.
    :ivar sent: number of requests for changes since :meth:`begin`.
    """

    client: UfmClient
    now: Callable[[], float]
    note_jobs: Callable[[], None] = lambda: None
    jobs: tuple[UfmJob, ...] = ()
    refusals: dict[tuple[int, int | None], str] = attrs.field(factory=dict)
    sent: int = 0
    _troubled: list[UfmJob] = attrs.field(factory=list)

    def begin(self) -> None:
        """Forget the refusals of the last attempt."""
        self.refusals, self.sent, self._troubled = {}, 0, []

    # -- jobs ----------------------------------------------------------------------------

    def adopt_jobs(self, jobs: Collection[UfmJob]) -> None:
        """Take over the jobs of an agent process that has ended."""
        own = {job.number for job in self.jobs}
        self.jobs += tuple(job for job in jobs if not job.is_lost and job.number not in own)

    def follow_jobs(self) -> None:
        """Read the state of running jobs, and drop those that have ended.

        :raises SubnetManagerError: UFM does not answer.
        """
        numbers = [job.number for job in self.jobs if not job.is_lost]
        states = self._read_states(numbers) if numbers else {}
        left = []
        for job in self.jobs:
            state = states.get(job.number)
            if state is not None and state.error:
                self.refusals[job.pkey, None] = state.error
            if self.now() < job.until and (state is None or not state.has_ended):
                left.append(job)
        if len(left) != len(self.jobs):
            self.jobs = tuple(left)
            self.note_jobs()

    def _read_states(self, numbers: Sequence[str]) -> Mapping[str, UfmJobState]:
        states: dict[str, UfmJobState] = {}
        if len(numbers) > 1:
            # UFM may refuse the list for one that it has forgotten.
            with contextlib.suppress(UfmRefusedError, UfmTroubleError):
                states = read_job_states(self.client.get(f"/jobs/{','.join(numbers)}"))
        for number in numbers:
            if number not in states:
                states[number] = self._read_state(number)
        return states

    def _read_state(self, number: str) -> UfmJobState:
        try:
            return read_job_state(number, self.client.get(f"/jobs/{number}"))
        except UfmRefusedError:
            # A job that UFM has forgotten has ended; the next reading shows how.
            return UfmJobState(True)

    def expect_additions(self, pkey: int, guids: Collection[int]) -> None:
        """Record additions that UFM may still make, although the answers were lost."""
        kept = [
            job
            for job in self.jobs
            if not (job.is_lost and job.pkey == pkey and job.guids <= set(guids))
        ]
        until = self.now() + _LOST_SECONDS
        self.jobs = (*kept, UfmJob("", pkey, frozenset(guids), until=until))
        self.note_jobs()

    # -- changes -------------------------------------------------------------------------

    def remove(self, changes: UfmChanges) -> None:
        """Send the removals of members and partitions."""
        for pkey, guids in changes.removals.items():
            for some in _batches(guids):
                listed = ",".join(f"{guid:016x}" for guid in some)
                path = f"{PKEYS}/{pkey:#x}/guids/{listed}"
                self._try(UfmJob("", pkey, frozenset(some)), None, "DELETE", path)
        for pkey, members in changes.removed_partitions.items():
            self._try(UfmJob("", pkey, members, True), None, "DELETE", f"{PKEYS}/{pkey:#x}")

    def add(self, changes: UfmChanges) -> frozenset[int]:
        """Send new partitions, and the additions to existing partitions.

        :returns: P_Keys whose partitions UFM refuses to make.
        """
        absent = {
            pkey
            for pkey in changes.new_partitions
            if not self._try(
                UfmJob("", pkey, whole=True), None, "POST", f"{PKEYS}/add", self._describe_new(pkey)
            )
        }
        refused = frozenset(absent - {job.pkey for job in self._troubled})
        absent |= {job.pkey for job in self.jobs if job.whole and not job.is_lost}
        for pkey, members in changes.additions.items():
            if pkey not in absent:
                self._add_members(pkey, members)
        return refused

    def set_quality(self, pkey: int, quality: UfmQuality) -> None:
        """Send the quality-of-service settings of a partition."""
        body = {"pkey": f"{pkey:#x}", **attrs.asdict(quality)}
        self._try(UfmJob("", pkey), None, "PUT", f"{PKEYS}/qos_conf", body)

    def _add_members(self, pkey: int, members: Members) -> None:
        for membership in Membership:
            coming = [guid for guid in members if members[guid] is membership]
            for some in _batches(coming):
                self._add(pkey, membership, some)

    def _add(self, pkey: int, membership: Membership, guids: Sequence[int]) -> None:
        # One membership a request: some releases read a list of memberships as a list of "full".
        body = {
            "pkey": f"{pkey:#x}",
            "guids": [f"{guid:016x}" for guid in guids],
            "membership": str(membership),
            # The values with which the partition was made: UFM replaces missing ones by defaults.
            "index0": False,
            "ip_over_ib": True,
        }
        alone = guids[0] if len(guids) == 1 else None
        job = UfmJob("", pkey, frozenset(guids))
        if self._try(job, alone, "POST", f"{PKEYS}/", body) or alone is not None:
            return
        # UFM refuses a list for one GUID in it: halves find which.
        self.refusals.pop((pkey, None), None)
        half = len(guids) // 2
        self._add(pkey, membership, guids[:half])
        self._add(pkey, membership, guids[half:])

    def _describe_new(self, pkey: int) -> dict[str, Any]:
        body: dict[str, Any] = {"pkey": f"{pkey:#x}", "index0": False, "ip_over_ib": True}
        if self._takes_names():
            body["partition_name"] = f"{NAME_PREFIX}{format_pkey(pkey)}"
        return body

    def _takes_names(self) -> bool:
        answer = self.client.get("/app/ufm_version")
        stated = answer.get("ufm_release_version") if isinstance(answer, dict) else None
        parts = str(stated).split("-")[0].split(".")[:2]
        return all(part.isdecimal() for part in parts) and tuple(map(int, parts)) >= _NAMES_SINCE

    def _try(
        self,
        job: UfmJob,
        guid: int | None,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
    ) -> bool:
        """Send one change, as a job without a number; note its number, or its refusal."""
        self.sent += 1
        # A removal that comes late takes away a member at most; an addition gives a key.
        adds = method == "POST" and bool(job.guids)
        try:
            number = self.client.change(method, path, body)
        except UfmRefusedError as error:
            if method == "DELETE" and error.status == requests.codes.not_found:
                # Another was faster, or UFM has dropped the partition with its last member.
                return True
            self.refusals[job.pkey, guid] = str(error)
            return False
        except UfmTroubleError as error:
            if adds:
                self.expect_additions(job.pkey, job.guids)
            self._troubled.append(job)
            if len(self._troubled) == self.sent == _MOST_TROUBLES:
                raise
            self.refusals[job.pkey, guid] = str(error)
            return False
        except UfmUntrackedError:
            if adds:
                self.expect_additions(job.pkey, job.guids)
            return True
        except UfmSilentError:
            if adds:
                self.expect_additions(job.pkey, job.guids)
            raise
        if number is not None:
            self.jobs += (attrs.evolve(job, number=number),)
            self.note_jobs()
        return True


def _batches(guids: Collection[int]) -> Iterator[tuple[int, ...]]:
    rest = iter(guids)
    while some := tuple(islice(rest, _AT_ONCE)):
        yield some
