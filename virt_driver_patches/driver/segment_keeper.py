# SPDX-License-Identifier: Apache-2.0
"""The segments of one node: listed, counted, and removed after use.

Libvirt's domains are the record. A hold stores the choice of a start until the domain runs or
has failed. A file without a running domain and without a hold is removed, but only if libvirt
answers. One lock covers libvirt's answer, the holds and the decision that depends on both:
without it a start that ends in between would appear in neither.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from nova import objects
from oslo_log import log as logging

from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.segments import segment_choice
from nova_hpc.tenancy.segments.segment_choice import SegmentChoice, SegmentLack, SegmentState
from nova_hpc.tenancy.segments.segment_file import FolderListing, SegmentError, SegmentFolder
from nova_hpc.tenancy.segments.segment_record import SegmentFileName
from virt_driver_patches import privileged

LOG = logging.getLogger(__name__)


@attrs.frozen
class SegmentOutcome:
    """The segment of a server that starts, or the reason why it gets none."""

    choice: SegmentChoice | None = None
    lack: SegmentLack | None = None

    def told(self) -> dict[str, Any]:
        """Return the outcome as an entry of the guest's document."""
        if self.choice is not None:
            shape = self.choice.name.shape
            return {"bytes": shape.part_bytes, "part": self.choice.part, "parts": shape.parts}
        return {"why": (self.lack or SegmentLack.UNKNOWN).value}


@attrs.frozen(eq=False)
class SegmentHold:
    """A server's part of a segment, held while the server starts or restarts."""

    server: str
    outcome: SegmentOutcome


@attrs.frozen
class _PartUses:
    """Which servers use which parts of the node's segment files, at one moment."""

    #: File -> part -> server that runs with the part or is about to.
    taken: dict[SegmentFileName, dict[int, str]] = attrs.field(factory=dict)
    #: Files with a part that two servers use, or with a guest of unknown part.
    unclear: set[SegmentFileName] = attrs.field(factory=set)
    #: One sentence for each of these files, for operators.
    problems: list[str] = attrs.field(factory=list)

    def add(self, name: SegmentFileName, part: int | None, server: str) -> None:
        """Count that a server uses a part; note a problem if another server has the part too.

        :param part: number of the part; None if it is unknown, which makes the file unclear.
        """
        parts = self.taken.setdefault(name, {})
        other = server if part is None else parts.setdefault(part, server)
        if part is not None and other == server:
            return
        self.unclear.add(name)
        wrong = (
            f"server {server} has an unknown part of {name}"
            if part is None
            else f"servers {other} and {server} have the same part {part} of {name}"
        )
        self.problems.append(
            f"{wrong}, so no other server gets a part of it: stop one of them (openstack server "
            "stop), and start it again"
        )


@attrs.frozen
class SegmentKeeper:
    """Lists, counts and removes the files of shared memory (segments) on one node."""

    #: Reads the node's guest domains.
    domains: Callable[[], NodeGuestDomains]
    #: The host's NUMA nodes.
    nodes: Callable[[], Collection[int]]
    #: ``[hpc]shared_memory_dir``.
    folder: SegmentFolder
    #: ``[hpc]shared_memory_mb``.
    values: tuple[str, ...]
    #: Starts in progress, oldest first; changed under the lock.
    _holds: list[SegmentHold] = attrs.field(init=False, factory=list, eq=False)
    #: Held by one choice or cleanup at a time, from libvirt's answer to the resulting changes.
    lock: threading.Lock = attrs.field(init=False, factory=threading.Lock, eq=False)
    _said: dict[str, frozenset[str]] = attrs.field(init=False, factory=dict, eq=False)

    @classmethod
    def from_options(
        cls,
        conf: Any,
        domains: Callable[[], NodeGuestDomains],
        nodes: Callable[[], Collection[int]],
    ) -> SegmentKeeper:
        """Build the keeper from nova-compute's options ``[hpc]``, when the service starts."""
        folder = SegmentFolder(Path(conf.hpc.shared_memory_dir), Path(conf.hpc.sysfs_root))
        return cls(domains, nodes, folder, tuple(conf.hpc.shared_memory_mb))

    @property
    def path(self) -> PurePosixPath:
        """The directory, in the form that domains contain."""
        return PurePosixPath(self.folder.path)

    @property
    def pools(self) -> dict[int, int]:
        """NUMA node -> bytes for segments."""
        return segment_choice.read_pools(self.values, self.nodes())

    @property
    def given(self) -> bool:
        """Whether this node gives segments: an entry of ``[hpc]shared_memory_mb`` is above 0."""
        return any(int(value.rpartition(":")[2]) for value in self.values)

    @property
    def used(self) -> bool:
        """Whether this node may have segments."""
        return self.given or os.path.lexists(self.path)

    def outcome_of(self, server: str) -> SegmentOutcome | None:
        """Return the result of a server's start in progress; None if there is no such start."""
        own = [hold.outcome for hold in tuple(self._holds) if hold.server == server]
        return own[-1] if own else None

    def add_hold(self, server: str, outcome: SegmentOutcome) -> SegmentHold:
        """Store a choice. The caller has held the lock since before it read the state."""
        hold = SegmentHold(server, outcome)
        self._holds.append(hold)
        return hold

    def end_hold(self, hold: SegmentHold) -> None:
        """End a start: from now on libvirt's domains show whether the server has its part."""
        with self.lock:
            self._holds.remove(hold)
        self.put_in_order()

    def _listing(self) -> FolderListing | None:
        """Return the files; None if they are unreliable. Log their problems."""
        try:
            listing = self.folder.list_files()
        except SegmentError as error:
            self._say("files", [str(error)])
            return None
        self._say("files", listing.problems)
        return listing

    def _say(self, topic: str, texts: Collection[str]) -> None:
        """Log texts that are new since the last call."""
        for text in texts:
            if text not in self._said.get(topic, ()):
                LOG.error("Shared memory: %s", text)
        self._said[topic] = frozenset(texts)

    def read_state(
        self, domains: NodeGuestDomains, instance: objects.Instance
    ) -> SegmentState | None:
        """Return the segments' current state; None if unknown. The caller holds the lock."""
        if domains.unknown is not None:
            LOG.error("No shared memory can be given: %s", domains.unknown, instance=instance)
            return None
        listing = self._listing()
        if listing is None:
            return None
        uses = self._read_part_uses(domains)
        damaged = listing.damaged & uses.taken.keys()
        names = listing.usable | damaged
        return SegmentState(
            taken={name: uses.taken.get(name, {}) for name in names},
            lost=frozenset(uses.taken.keys() - names),
            unclear=frozenset(uses.unclear | damaged),
            pools=self.pools,
        )

    def _read_part_uses(self, domains: NodeGuestDomains) -> _PartUses:
        """Return the use of all parts by running domains and by starts. Log unclear parts."""
        uses = _PartUses()
        for domain in domains.domains:
            for use in domain.live.segments:
                name = use.file_in(self.path)
                if name is not None:
                    uses.add(name, use.part, domain.uuid)
        for hold in self._holds:
            if hold.outcome.choice is not None:
                uses.add(hold.outcome.choice.name, hold.outcome.choice.part, hold.server)
        self._say("parts", uses.problems)
        return uses

    def find_former_choice(
        self, instance: objects.Instance, domains: NodeGuestDomains
    ) -> SegmentChoice | None:
        """Return the segment of the server's domain, or of its last run."""
        domain = domains.of(instance.uuid)
        if domain is None:
            return None
        for use in (*domain.live.segments, *domain.following.segments):
            name = use.file_in(self.path)
            if name is not None and use.part is not None:
                return SegmentChoice(name, use.part)
        return None

    def put_in_order(self) -> None:
        """Remove files without a running guest, and write the parts' owners. Never raises."""
        if not self.used:
            return
        try:
            with self.lock:
                domains = self.domains()
                if domains.unknown is not None:
                    LOG.warning("All shared memory is kept for now: %s", domains.unknown)
                    return
                listing = self._listing()
                if listing is None:
                    return
                taken = self._read_part_uses(domains).taken
                for name in sorted(listing.usable | listing.damaged):
                    if name not in taken:
                        self._remove(name)
                    elif name in listing.usable:
                        self._write_members(name, taken[name])
                self._say_full(listing)
        except Exception:
            LOG.exception("Shared memory cannot be put in order")

    def _remove(self, name: SegmentFileName) -> None:
        try:
            self.folder.remove_file(name)
            LOG.info("The shared memory %s is given back: no running guest has it", name)
        except SegmentError as error:
            LOG.error("Shared memory that no guest has cannot be given back: %s", error)

    def _write_members(self, name: SegmentFileName, servers: Mapping[int, str]) -> None:
        """Write each part's server, as information for users in the guests."""
        try:
            self.folder.write_members(name, servers)
            return
        except SegmentError as error:
            reason = str(error)
        if os.geteuid() != 0 and not self._said.get("members"):
            # Libvirt has given the file to QEMU, so now only root may write to it. An unusable
            # helper is tried only once, because each try would start sudo.
            try:
                privileged.write_members_by_helper(name, servers)
                return
            except SegmentError as error:
                reason = str(error)
        text = f"guests are not told the names of the servers that they share with: {reason}"
        self._say("members", [text])

    def _say_full(self, listing: FolderListing) -> None:
        """Log segments that exceed the pool, for example after the option was lowered."""
        pools = self.pools
        state = SegmentState({name: {} for name in listing.usable | listing.damaged})
        charges = {name.node: state.charge_of(name.node) for name in state.taken}
        self._say(
            "full",
            [
                f"segments take {charge >> 20} MiB of NUMA node {node}, and [hpc]shared_memory_mb "
                f"gives {pools.get(node, 0) >> 20}: running servers keep theirs, and others get "
                "none before some have ended"
                for node, charge in sorted(charges.items())
                if charge > pools.get(node, 0)
            ],
        )
