"""Set virtual functions of adapters, in Nova's words: before a server, and after it.

The rules are in :mod:`nova_hpc.tenancy.adapters.keeper`; here they meet the
claim and the periodic update. Values never come from a flavor or an image.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from nova import exception, objects
from nova.compute import task_states
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Claim
from nova_hpc.tenancy import quarantine
from nova_hpc.tenancy.adapters import find
from nova_hpc.tenancy.adapters import keeper as adapter_keeper
from nova_hpc.tenancy.adapters.addresses import Prefix, PrefixError
from nova_hpc.tenancy.adapters.keeper import Keeper, Outcome
from nova_hpc.tenancy.health import Finding, Kind
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.tenancy.quarantine import QuarantineError
from nova_hpc.topology.model import address_key
from nova_hpc.wire import tags
from virt_driver_patches.driver import adapters_privileged
from virt_driver_patches.driver.hygiene import LAST
from virt_driver_patches.driver.reading import Reading, Source
from virt_driver_patches.errors import DeviceFault

LOG = logging.getLogger(__name__)

#: Tasks whose ``destroy`` ends a server here that may be, or come, elsewhere.
#: After any other a server starts again with the functions as they are.
_ELSEWHERE = (
    task_states.BLOCK_DEVICE_MAPPING,
    task_states.NETWORKING,
    task_states.RESIZE_REVERTING,
    task_states.SCHEDULING,
    task_states.SPAWNING,
)


class _Said:
    """What was logged already, so that every start does not repeat it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}

    def say(self, notes: Mapping[str, str]) -> None:
        with self._lock:
            new = {each: text for each, text in notes.items() if self._texts.get(each) != text}
            self._texts.update(new)
        for each, text in sorted(new.items()):
            LOG.warning("The virtual function %s is left as it is: %s", each, text)


@attrs.frozen
class Adapters:
    """The virtual functions of one node."""

    keeper: Keeper
    quarantine_file: Path
    _said: _Said = attrs.field(factory=_Said, init=False, eq=False)

    @classmethod
    def from_config(cls, conf: Any, source: Source) -> Adapters | None:
        """As ``[hpc]`` says; None where it is switched off and nothing is left to put back.

        :raises nova.exception.InvalidConfiguration: it cannot be used.
        """
        try:
            prefix = Prefix.parse(conf.hpc.address_prefix)
        except PrefixError as error:
            raise exception.InvalidConfiguration(f"[hpc]address_prefix: {error}") from error
        file = Path(conf.hpc.adapters_file)
        if conf.hpc.set_adapters == adapter_keeper.OFF and not file.exists():
            return None
        me_too = os.geteuid() == 0
        if not me_too:
            _expect_privileges(source)
        return cls(
            Keeper(
                root=Path(conf.hpc.sysfs_root),
                state_file=file,
                prefix=prefix,
                mode=conf.hpc.set_adapters,
                write=None if me_too else adapters_privileged.write,
            ),
            Path(conf.hpc.quarantine_file),
        )

    # -- a server starts ----------------------------------------------------------

    def give(self, instance: objects.Instance, addresses: Sequence[str], reading: Reading) -> None:
        """Set functions before a server gets them.

        :raises DeviceFault: one of them could not be set; then none is.
        """
        mine = sorted(_functions(reading, addresses), key=address_key)
        if not mine:
            return
        claim = Claim.of(instance)
        ours = {each for found in claim.claimed.values() for each in found}
        wanted = [each for each in mine if each in ours]
        ports = [each for each in mine if each not in ours]
        self._judge(
            instance,
            len(mine),
            lambda: self.keeper.give(instance.uuid, reading.node, wanted, ports),
        )

    def keep(self, instance: objects.Instance, claim: Claim, reading: Reading) -> None:
        """Set functions of a server again that starts again, where they have lost it.

        :raises DeviceFault: one of them could not be set.
        """
        mine = _functions(reading, claim.addresses)
        if mine:
            self._judge(
                instance,
                len(mine),
                lambda: self.keeper.keep(instance.uuid, reading.node, claim.addresses),
            )

    def _judge(self, instance: objects.Instance, total: int, work: Callable[[], Outcome]) -> None:
        try:
            outcome = work()
        except StateError as error:
            LOG.error("No adapter can be set: %s", error, instance=instance)
            raise DeviceFault("The node cannot keep records of its network adapters.") from error
        self._said.say(outcome.notes)
        for each, reason in outcome.refused.items():
            LOG.error(
                "The virtual function %s could not be set for the server: %s",
                each,
                reason,
                instance=instance,
            )
        if outcome.refused:
            raise DeviceFault(
                f"The addresses and rights of the {total} virtual functions that were claimed for "
                "the server could not be set."
            )

    # -- a server is gone, or moves -------------------------------------------------

    def take_back(self, instance: objects.Instance, source: Source) -> None:
        """Put back what a server had, or has no more here. Never raises."""
        if instance.task_state in LAST:
            self._end(instance, source, self.keeper.take_back)
        elif instance.task_state in _ELSEWHERE:
            self.rest(instance, source)

    def rest(self, instance: objects.Instance, source: Source) -> None:
        """Put back what a server has that does not run here now. Never raises.

        Elsewhere it has the same addresses, which must not be in a fabric twice.
        """
        self._end(instance, source, self.keeper.rest)

    def _end(
        self,
        instance: objects.Instance,
        source: Source,
        work: Callable[[str, Callable[[], Any]], Mapping[str, str]],
    ) -> None:
        try:
            failed = work(instance.uuid, lambda: source.read().node)
        except StateError as error:
            LOG.error("Adapters are not put back yet: %s", error, instance=instance)
            return
        self._put_away(failed)

    # -- the periodic update ----------------------------------------------------------

    def sweep(self, reading: Reading, taken: Callable[[], frozenset[str]]) -> dict[str, Finding]:
        """Address -> why a free function must not be offered, after all were put back."""
        try:
            failed = self.keeper.sweep(reading.node, taken)
        except StateError as error:
            LOG.error("Virtual functions are not offered: %s", error)
            failed = dict.fromkeys(_functions(reading), str(error))
        else:
            self._put_away(failed)
        return {each: Finding(Kind.HYGIENE, reason) for each, reason in failed.items()}

    def _put_away(self, failed: Mapping[str, str]) -> None:
        """Quarantine what could not be put back; one that is there keeps its reason."""
        known = quarantine.read(self.quarantine_file).reasons
        reasons = {
            each: f"its addresses could not be taken from it: {why}"
            for each, why in failed.items()
            if each not in known
        }
        for each, why in reasons.items():
            LOG.error("PCI device %s goes into quarantine: %s", each, why)
        if reasons:
            try:
                quarantine.put_all(self.quarantine_file, reasons)
            except QuarantineError as error:
                LOG.error("It is withheld until it can be quarantined: %s", error)


def _functions(reading: Reading, addresses: Iterable[str] | None = None) -> frozenset[str]:
    """The virtual functions of network adapters that the node offers with a role.

    :param addresses: only of these.
    """
    node = reading.node
    every = [each.address for each in node.functions] if addresses is None else addresses
    found = [each for each in every if find.parent_of(node, each) is not None]
    # Matching all of a large node takes longer than setting a few.
    part = attrs.evolve(node, functions=tuple(filter(None, map(node.function, found))))
    offers = reading.specs.offers(part)
    return frozenset(each for each in found if offers.get(each, (None, {}))[1].get(tags.ROLE))


def _expect_privileges(source: Source) -> None:
    """Refuse to start where no server with a virtual function could start."""
    if not _functions(source.read()):
        return
    try:
        adapters_privileged.ready()
    except Exception as error:
        raise exception.InvalidConfiguration(
            "nova-compute is not root and may not set virtual functions of adapters "
            f"({type(error).__name__}: {error}); copy etc/rootwrap.d/nova-hpc.filters to "
            "/etc/nova/rootwrap.d/, or set [hpc]set_adapters = off"
        ) from error
