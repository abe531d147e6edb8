# SPDX-License-Identifier: Apache-2.0
"""Segments of shared memory around a server's start, and the actions that they exclude.

At a first start, or a move, a server gets a part, or the reason why not. At a restart it gets
its part again, because hardware must not change below a guest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs
from nova import objects
from nova.objects import fields
from nova.virt import hardware
from oslo_log import log as logging

from nova_hpc.from_nova import sharing_group
from nova_hpc.guest_tree import Abi, TopologyMode
from nova_hpc.placement import flavor as flavors
from nova_hpc.placement.flavor import FlavorError, SharedMemoryWish
from nova_hpc.placement.segment_shape import SegmentShape, count_parts
from nova_hpc.tenancy.guest_domains import DomainCondition
from nova_hpc.tenancy.segments import segment_choice, segment_record
from nova_hpc.tenancy.segments.segment_choice import (
    LACK_TEXTS,
    SegmentChoice,
    SegmentLack,
    SegmentRequest,
)
from nova_hpc.tenancy.segments.segment_file import SegmentError
from nova_hpc.wire import stats
from nova_hpc_common.level import AffinityPolicy
from virt_driver_patches.domain import segment_device
from virt_driver_patches.domain.guest_domain import GuestDomainXml
from virt_driver_patches.driver import guest_topology
from virt_driver_patches.driver.segment_keeper import SegmentKeeper, SegmentOutcome
from virt_driver_patches.errors import ClaimRefused

LOG = logging.getLogger(__name__)

_GIVEN: Final = (
    "The memory that the flavor's hpc:shared_memory asks for cannot be given on the host: "
)
_KEPT: Final = (
    "The server has memory that it shares with its server group, which cannot be made again on "
    "the host: "
)
_RESIZE: Final = " Or resize the server to a flavor without hpc:shared_memory."
#: Action -> end of its refusal, which names an alternative.
REFUSED: Final[Mapping[str, str]] = {
    "suspend": "cannot be suspended: resumed, its guest would write old content over the memory of "
    "the others. Shelve the server, or stop it, instead.",
    "snapshot": "cannot be snapshot while it runs here: its guest would write old content over the "
    "memory of the others. Stop the server before.",
    "live-migration": "cannot be live-migrated: the memory stays on the host. Use cold migration.",
    "resume": "cannot be resumed from its saved state: its guest would write old content over the "
    "memory of the others. Hard reboot the server, which starts it without that state.",
}


@attrs.frozen
class NodeSegments:
    """Gives servers their parts of this node's segments, around their starts and restarts."""

    keeper: SegmentKeeper

    def report(self, resources: dict[str, Any]) -> None:
        """Remove unused files, and report to the scheduler whether servers can get segments.

        :param resources: Nova's answer of ``get_available_resource``, changed in place.
        """
        self.keeper.put_in_order()
        if self.keeper.given:
            resources["stats"][stats.SHARED_MEMORY_KEY] = "1"

    # -- around a start ---------------------------------------------------------------

    @contextlib.contextmanager
    def starting(self, instance: objects.Instance, anew: bool) -> Iterator[None]:
        """Give a server its part, and hold the part until its domain runs or has failed.

        :param anew: whether the server's hardware may change, as at its first start and when
            it moves. If False, it must get the same part again.
        :raises ClaimRefused: with a text for the server's user; no file was created.
        """
        with self._holding(instance, lambda: self._decide(instance, anew)) as outcome:
            if outcome is not None and outcome.choice is not None:
                # Programs in the guest take a part without a name for an unused one.
                self.keeper.put_in_order()
            _record_segment(instance, outcome, anew)
            yield

    @contextlib.contextmanager
    def staying(self, instance: objects.Instance) -> Iterator[None]:
        """Keep a server's segment while a soft reboot replaces its running domain."""

        def read_present() -> SegmentOutcome | None:
            choice = None
            if self.keeper.used and _recorded_shape_of(instance) is not None:
                choice = self.keeper.find_former_choice(instance, self.keeper.domains())
            return None if choice is None else SegmentOutcome(choice)

        with self._holding(instance, read_present):
            yield

    @contextlib.contextmanager
    def returning(self, instance: objects.Instance, xml: Callable[[], str]) -> Iterator[None]:
        """Hold the part that is named in a domain whose XML Nova has stored.

        :param xml: reads this XML.
        :raises ClaimRefused: another server has the part, or it cannot be made again.
        """

        def take_again() -> SegmentOutcome | None:
            choice = None
            if _recorded_shape_of(instance) is not None:
                choice = self._take_named(instance, xml())
            return None if choice is None else SegmentOutcome(choice)

        with self._holding(instance, take_again):
            yield

    @contextlib.contextmanager
    def _holding(
        self, instance: objects.Instance, decide: Callable[[], SegmentOutcome | None]
    ) -> Iterator[SegmentOutcome | None]:
        """Decide and hold the result under one lock, until the block ends.

        :param decide: reads libvirt's domains, and chooses; returns None to hold nothing.
        """
        with self.keeper.lock:
            outcome = decide()
            hold = None if outcome is None else self.keeper.add_hold(instance.uuid, outcome)
        try:
            yield outcome
        finally:
            if hold is not None:
                self.keeper.end_hold(hold)

    def _take_named(self, instance: objects.Instance, xml: str) -> SegmentChoice | None:
        """Return the part that a stored domain names; create its file if it is missing."""
        uses = segment_record.read_segment_uses(GuestDomainXml(xml).root)
        named = [(use.file_in(self.keeper.path), use.part) for use in uses]
        choices = [SegmentChoice(name, part) for name, part in named if name and part is not None]
        if not choices:
            return None
        (choice, *_) = choices
        state = self.keeper.read_state(self.keeper.domains(), instance)
        if state is None or choice.name in state.unclear:
            raise ClaimRefused(_KEPT + LACK_TEXTS[SegmentLack.UNKNOWN])
        if state.taken.get(choice.name, {}).get(choice.part, instance.uuid) != instance.uuid:
            raise ClaimRefused(_KEPT + LACK_TEXTS[SegmentLack.PARTS])
        try:
            if choice.name not in state.taken:
                self.keeper.folder.make_file(choice.name)
        except SegmentError as error:
            LOG.error("%s", error, instance=instance)
            raise ClaimRefused(_KEPT + LACK_TEXTS[SegmentLack.MEMORY]) from error
        return choice

    def check_restart(self, instance: objects.Instance) -> None:
        """Refuse the restart of a server that would not get its part again. Creates nothing.

        :raises ClaimRefused: with a text for the server's user.
        """
        shape = _recorded_shape_of(instance)
        if shape is not None:
            with self.keeper.lock:
                self._choose_again(instance, shape)

    def _decide(self, instance: objects.Instance, anew: bool) -> SegmentOutcome | None:
        """Choose the outcome of a start; the caller holds the keeper's lock.

        New hardware follows the flavor, existing hardware follows its record. A server that was
        started without a segment keeps its hardware; its guest gets the reason.
        """
        if anew:
            wish = _read_wish(instance)
            return None if wish is None else self._give(instance, wish)
        recorded = _recorded_shape_of(instance)
        if recorded is not None:
            choice = self._choose_again(instance, recorded)
            try:
                self._make(choice)
            except SegmentError as error:
                LOG.error("%s", error, instance=instance)
                text = LACK_TEXTS[SegmentLack.MEMORY]
                raise ClaimRefused(f"{_KEPT}{text}{_RESIZE}") from error
            return SegmentOutcome(choice)
        if flavors.SHARED_MEMORY in (instance.flavor.extra_specs or {}):
            return SegmentOutcome(lack=SegmentLack.BEFORE)
        return None

    def _give(self, instance: objects.Instance, wish: SharedMemoryWish) -> SegmentOutcome:
        """Choose and create the part of a server that starts for the first time here.

        :raises ClaimRefused: it gets none, and the flavor requires one.
        """
        chosen = self._choose_first(instance, wish)
        if isinstance(chosen, SegmentChoice):
            try:
                self._make(chosen)
            except SegmentError as error:
                LOG.error("%s", error, instance=instance)
                chosen = SegmentLack.MEMORY
        if isinstance(chosen, SegmentChoice):
            LOG.info(
                "It has part %d of the shared memory %s",
                chosen.part,
                chosen.name,
                instance=instance,
            )
            return SegmentOutcome(chosen)
        if wish.policy is AffinityPolicy.REQUIRED:
            raise ClaimRefused(_GIVEN + LACK_TEXTS[chosen])
        LOG.warning("It has no shared memory here: %s", chosen.value, instance=instance)
        return SegmentOutcome(lack=chosen)

    def _choose_first(
        self, instance: objects.Instance, wish: SharedMemoryWish
    ) -> SegmentChoice | SegmentLack:
        """Choose a part, or the reason why there is none.

        Libvirt's domains are read last, after the node, the flavor and the server group allow it.
        """
        if not self.keeper.given:
            return SegmentLack.OFF
        if hardware.get_mem_encryption_constraint(instance.flavor, instance.image_meta):
            return SegmentLack.ENCRYPTED
        group = sharing_group.find_sharing_group(instance)
        if group.uuid is None:
            return SegmentLack.UNKNOWN if group.unknown else SegmentLack.GROUP
        domains = self.keeper.domains()
        state = self.keeper.read_state(domains, instance)
        if state is None:
            return SegmentLack.UNKNOWN
        shape = wished_shape_of(instance, instance.flavor.extra_specs)
        assert shape is not None
        node = instance.numa_topology.cells[0].id
        request = SegmentRequest(instance.uuid, group.uuid, shape, node)
        former = self.keeper.find_former_choice(instance, domains)
        return segment_choice.choose_segment(request, state, former)

    def _choose_again(self, instance: objects.Instance, shape: SegmentShape) -> SegmentChoice:
        """Choose for a server whose hardware must not change.

        A server that has left its group gets memory of its own, which no other server shares. If
        Nova gives no answer, a member of a segment stays its member: no server can
        join a group from outside, and a server does not change its group.
        """
        domains = self.keeper.domains()
        state = self.keeper.read_state(domains, instance)
        if state is None:
            raise ClaimRefused(_KEPT + LACK_TEXTS[SegmentLack.UNKNOWN])
        former = self.keeper.find_former_choice(instance, domains)
        group = sharing_group.find_sharing_group(instance)
        owner = group.uuid or instance.uuid
        if group.unknown and former is not None:
            owner = former.name.owner
        topology = instance.numa_topology
        node = topology.cells[0].id if topology is not None else 0
        request = SegmentRequest(instance.uuid, owner, shape, node, exact=True)
        chosen = segment_choice.choose_segment(request, state, former)
        if chosen in (SegmentLack.SIZE, SegmentLack.PARTS):
            # It can still start with memory of its own.
            own = attrs.evolve(request, owner=instance.uuid)
            chosen = segment_choice.choose_segment(own, state, former)
        if isinstance(chosen, SegmentLack):
            raise ClaimRefused(f"{_KEPT}{LACK_TEXTS[chosen]}{_RESIZE}")
        return chosen

    def _make(self, choice: SegmentChoice) -> None:
        """Make the file of a choice, if it is missing.

        :raises SegmentError: it cannot be made.
        """
        if choice.new:
            self.keeper.folder.make_file(choice.name)

    def check_saved_state(self, instance: objects.Instance) -> None:
        """Refuse the start of a server with a saved guest when its host boots.

        Nova suspends no guest that shares memory, but libvirt-guests saves all guests when the
        host goes down. A start from this state would harm the other guests. A start without it
        would lose the state, so the server's user has to decide.

        :raises ClaimRefused: with a text for the server's user; nothing was changed.
        """
        if not self.keeper.used:
            return
        domain = self.keeper.domains().of(instance.uuid)
        if domain is None or domain.condition is not DomainCondition.SAVED:
            return
        files = [use.file_in(self.keeper.path) for use in domain.following.segments]
        if any(files) or _recorded_shape_of(instance) is not None:
            raise ClaimRefused(f"A server that shares memory {REFUSED['resume']}")

    # -- the domain ---------------------------------------------------------------------

    def is_starting(self, instance: objects.Instance) -> bool:
        """Whether the guest of a server gets a part, or the reason why not."""
        has_start = self.keeper.outcome_of(instance.uuid) is not None
        return has_start or _recorded_shape_of(instance) is not None

    def add_to(self, domain: GuestDomainXml, instance: objects.Instance) -> dict[str, Any] | None:
        """Add the chosen segment to the guest's domain; return its entry for the guest's document.

        :returns: None if the flavor requests no segment.
        :raises ClaimRefused: the guest cannot have it.
        """
        outcome = self.keeper.outcome_of(instance.uuid)
        if outcome is None:
            if _recorded_shape_of(instance) is not None:
                raise ClaimRefused(_KEPT + "it was not asked for it. Hard reboot the server.")
            return None
        if outcome.choice is not None:
            name = outcome.choice.name
            try:
                segment_device.add_segment_device(
                    domain,
                    f"{self.keeper.path}/{name}",
                    name.shape.file_bytes,
                    outcome.choice.part,
                )
            except segment_device.SegmentDeviceError as error:
                raise ClaimRefused(f"{_GIVEN}{error}.") from error
        return outcome.told()

    # -- refusals -----------------------------------------------------------------------

    def check_allowed(
        self, action: str, instance: objects.Instance, find_guest: Callable[[], Any]
    ) -> None:
        """Refuse an action that would save or move a guest's memory while others share it.

        :param action: a key of :data:`REFUSED`.
        :param find_guest: finds Nova's ``Guest`` of the server.
        :raises ClaimRefused: with a text for the server's user.
        """
        is_sharing = _recorded_shape_of(instance) is not None or (
            self.keeper.used
            and segment_device.has_segment_device(GuestDomainXml(find_guest().get_xml_desc()))
        )
        if is_sharing:
            raise ClaimRefused(f"A server that shares memory {REFUSED[action]}")


def wished_shape_of(instance: objects.Instance, specs: Mapping[str, str]) -> SegmentShape | None:
    """Return the largest segment that a server with a flavor of these *specs* may get here."""
    try:
        wish = flavors.read_shared_memory(specs)
    except FlavorError:
        return None  # the start of the server refuses the flavor
    if wish is None:
        return None
    dedicated = len(hardware.get_cpu_dedicated_set() or ())
    return SegmentShape(wish.mib, count_parts(dedicated, instance.flavor.vcpus))


def _recorded_shape_of(instance: objects.Instance) -> SegmentShape | None:
    """Return the segment in the record of the server's hardware.

    :raises ClaimRefused: the record cannot be read.
    """
    abi = guest_topology.load_stored_abi(instance)
    return None if abi is None else abi.segment


def _read_wish(instance: objects.Instance) -> SharedMemoryWish | None:
    """Return the flavor's request for shared memory, after checking its rules.

    :raises ClaimRefused: a rule is broken.
    """
    specs = instance.flavor.extra_specs or {}
    try:
        wish = flavors.read_shared_memory(specs, instance.flavor.memory_mb)
    except FlavorError as error:
        raise ClaimRefused(f"The flavor cannot be used: {error}.") from error
    if wish is not None and not _has_dedicated_cpus(instance):
        raise ClaimRefused(
            "The flavor cannot be used: hpc:shared_memory needs CPUs of the server's own, since "
            "who waits in shared memory keeps a CPU busy; set hw:cpu_policy=dedicated in the "
            "flavor, or remove the key."
        )
    return wish


def _has_dedicated_cpus(instance: objects.Instance) -> bool:
    topology = instance.numa_topology
    cells = topology.cells if topology is not None else ()
    return bool(cells) and all(
        cell.cpu_policy == fields.CPUAllocationPolicy.DEDICATED for cell in cells
    )


def _record_segment(instance: objects.Instance, outcome: SegmentOutcome | None, anew: bool) -> None:
    """Store the segment with the server; Nova saves it together with the server's state."""
    if not anew:
        return
    abi = guest_topology.load_stored_abi(instance)
    if outcome is not None and outcome.choice is not None:
        shape = outcome.choice.name.shape
        abi = attrs.evolve(abi or Abi(mode=TopologyMode.FLAT), segment=shape)
    elif abi is None or abi.segment is None:
        return
    elif flavors.has_hpc_keys(instance.flavor.extra_specs or {}):
        abi = attrs.evolve(abi, segment=None)
    else:
        abi = None
    guest_topology.record_guest_abi(instance, abi)
