"""NVLink partitions around a server, in Nova's words.

The rules are in :mod:`nova_hpc.tenancy.nvlink.keeper` and
:mod:`nova_hpc.tenancy.nvlink.partitions`; here they meet the claim and the periodic update.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
from nova import exception, objects
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Claim
from nova_hpc.offer.nvlink_sets import SWITCH_ROLE
from nova_hpc.placement import flavor
from nova_hpc.placement.model import Nvlink
from nova_hpc.tenancy.health import Finding, Kind
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.tenancy.nvlink import partitions as nvlink
from nova_hpc.tenancy.nvlink.backend import BackendError
from nova_hpc.tenancy.nvlink.keeper import Keeper
from nova_hpc.tenancy.nvlink.partitions import FabricError, NoPartitionError
from nova_hpc.topology import nvlink as sets
from nova_hpc.wire import tags
from virt_driver_patches.driver.hygiene import LAST
from virt_driver_patches.driver.reading import Reading, Source
from virt_driver_patches.driver.withhold import in_use
from virt_driver_patches.errors import ClaimRefused, DeviceFault

LOG = logging.getLogger(__name__)

_OUT_OF_ORDER = "The NVLinks of the node cannot be set now."


class _Said:
    """What was logged already, so that each update does not repeat it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: frozenset[str] = frozenset()

    def say(self, texts: Collection[str]) -> None:
        with self._lock:
            new = set(texts) - self._texts
            self._texts = frozenset(texts)
        for text in sorted(new):
            LOG.warning("%s", text)


@attrs.frozen
class Links:
    """The partitions of one node."""

    keeper: Keeper
    host: str
    _said: _Said = attrs.field(factory=_Said, init=False, eq=False)

    @classmethod
    def from_config(cls, conf: Any, host: str) -> Links | None:
        """As ``[hpc]nvlink_*`` says; None where it is switched off.

        :raises nova.exception.InvalidConfiguration: it cannot be used.
        """
        try:
            keeper = Keeper.from_options(conf.hpc)
        except BackendError as error:
            raise exception.InvalidConfiguration(str(error)) from error
        return None if keeper is None else cls(keeper, host)

    def begin(self, reading: Reading) -> None:
        """Refuse to start where servers with GPUs could not be started.

        :raises nova.exception.InvalidConfiguration: the manager cannot be
            reached or used.
        """
        try:
            partitions = self.keeper.begin([each.address for each in reading.node.functions])
        except (FabricError, StateError) as error:
            raise exception.InvalidConfiguration(f"[hpc]nvlink_backend: {error}") from error
        switches = sorted(
            address
            for address, (_, entry) in reading.specs.offers(reading.node).items()
            if entry.get(tags.ROLE) == SWITCH_ROLE
        )
        if switches:
            LOG.warning(
                "[pci]device_spec offers NVSwitches to servers, and who has them links the GPUs of "
                "all: %s; only the machine that manages them may get them",
                ", ".join(switches),
            )
        missing, wrong = nvlink.differences(partitions, sets.rebuild(_tagged(reading)).sets)
        for one in missing:
            LOG.warning("An NVLink partition is no NVLink set of this node: %s", _listed(one))
        for one in wrong:
            LOG.warning(
                "An NVLink set of this node is no NVLink partition, so servers that get it are "
                "refused: %s; see nova-hpc nvlink check",
                _listed(one),
            )

    # -- a server starts --------------------------------------------------------

    def give(self, instance: objects.Instance, addresses: Sequence[str], reading: Reading) -> None:
        """Activate the partition of exactly the GPUs that a server gets.

        :raises ClaimRefused: no partition has exactly these.
        :raises DeviceFault: the manager has not activated it, or nobody knows.
        """
        self._make(self.keeper.give, instance, addresses, reading)

    def keep(self, instance: objects.Instance, claim: Claim, reading: Reading) -> None:
        """Activate it again where it is active no longer. Raises as :meth:`give`."""
        self._make(self.keeper.keep, instance, claim.addresses, reading)

    def _make(
        self,
        make: Callable[[str, Collection[str], Collection[str], bool], None],
        instance: objects.Instance,
        addresses: Sequence[str],
        reading: Reading,
    ) -> None:
        gpus = self.keeper.members(_tagged(reading)) & frozenset(addresses)
        if not gpus:
            return
        others = in_use(self.host, instance.node) - frozenset(addresses)
        asked = (instance.flavor.extra_specs or {}).get(flavor.NVLINK)
        try:
            make(instance.uuid, gpus, others, asked == Nvlink.REQUIRED.value)
        except NoPartitionError as error:
            LOG.warning("The claimed GPUs are refused: %s", error, instance=instance)
            raise ClaimRefused(error.user) from error
        except (FabricError, StateError) as error:
            LOG.error("The claimed GPUs must not be given: %s", error, instance=instance)
            raise DeviceFault(_OUT_OF_ORDER) from error

    # -- a server is gone ---------------------------------------------------------

    def take_back(self, instance: objects.Instance, source: Source) -> None:
        """Deactivate what a server had, if it was destroyed for good. Never raises."""
        if instance.task_state not in LAST:
            return
        try:
            for partition, why in self.keeper.take_back(instance.uuid).items():
                LOG.error("NVLink partition %s is still active: %s", partition, why)
        except (FabricError, StateError) as error:
            # The next periodic update tries again.
            LOG.error("NVLink partitions are still active: %s", error, instance=instance)

    # -- the periodic update --------------------------------------------------------

    def sweep(self, reading: Reading, taken: Callable[[], frozenset[str]]) -> dict[str, Finding]:
        """Address -> why a GPU must not be offered."""
        tagged = _tagged(reading)
        try:
            found = self.keeper.sweep(taken, tagged)
            reasons, notes = found.reasons, found.notes
        except StateError as error:
            reasons, notes = dict.fromkeys(self.keeper.members(tagged), str(error)), ()
        self._said.say(notes)
        offered = reading.specs.offers(reading.node)
        return {
            each: Finding(Kind.NVLINK, reason)
            for each, reason in reasons.items()
            if each in offered
        }


def _tagged(reading: Reading) -> dict[str, str]:
    """Address -> tag of the devices that are in NVLink sets."""
    offers = reading.specs.offers(reading.node)
    return {each: entry[tags.NVLINK] for each, (_, entry) in offers.items() if tags.NVLINK in entry}


def _listed(gpus: Collection[str]) -> str:
    return ", ".join(sorted(gpus))
