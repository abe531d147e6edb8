"""Clean devices, in Nova's words: before a server, after it, and in between.

The rules are in :mod:`nova_hpc.tenancy.hygiene`; here they meet the claim, the
periodic update and Placement.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import os_traits
from nova import exception, objects
from nova.compute import provider_tree, task_states
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Claim
from nova_hpc.tenancy import locked_file
from nova_hpc.tenancy.health import Finding, Kind
from nova_hpc.tenancy.hygiene import Keeper, cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.bench import Bench, Candidate
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.wire import tags
from virt_driver_patches import privileged
from virt_driver_patches.driver.reading import Reading, Source
from virt_driver_patches.errors import DeviceFault

LOG = logging.getLogger(__name__)

_ONE_TIME_USE = os_traits.HW_PCI_ONE_TIME_USE

#: Tasks after whose ``destroy`` the server has its devices no longer. After
#: others it has them still, or the next periodic update finds them free.
LAST = (task_states.DELETING, task_states.SHELVING_OFFLOADING)


def _expect_privileges(read_config: Callable[[list[str]], object]) -> None:
    """Refuse to start where every device would end in quarantine after its first server."""
    try:
        read_config([])
    except Exception as error:
        raise exception.InvalidConfiguration(
            "nova-compute is not root and may not reset PCI devices "
            f"({type(error).__name__}: {error}); copy etc/rootwrap.d/nova-hpc.filters to "
            "/etc/nova/rootwrap.d/, or set [hpc]clean_devices = False"
        ) from error


@attrs.frozen
class Hygiene:
    """The keeper of one node."""

    keeper: Keeper

    @classmethod
    def from_config(cls, conf: Any) -> Hygiene | None:
        """As ``[hpc]`` says; None where it is switched off.

        :raises nova.exception.InvalidConfiguration: a cleaner, or what only
            root may do, cannot be used.
        """
        if not conf.hpc.clean_devices:
            return None
        root, state = Path(conf.hpc.sysfs_root), Path(conf.hpc.hygiene_file)
        timeout = float(conf.hpc.reset_timeout)
        folder = locked_file.locks_of(state)
        me_too = os.geteuid() == 0
        reset = hygiene_reset.reset if me_too else privileged.reset
        tools = cleaner.Tools(
            root=root,
            timeout=timeout,
            reset=lambda address: reset(root, address, timeout, folder),
            need_reset=Kind.RESET.value in conf.hpc.health_checks,
        )
        try:
            cleaners = cleaner.load(conf.hpc.cleaners, tools)
        except cleaner.CleanerError as error:
            raise exception.InvalidConfiguration(str(error)) from error
        read_config = None if me_too else functools.partial(privileged.read_configs, root)
        if read_config is not None:
            _expect_privileges(read_config)
        return cls(
            Keeper(
                Bench(
                    root=root,
                    state_file=state,
                    quarantine_file=Path(conf.hpc.quarantine_file),
                    cleaners=cleaners,
                    timeout=timeout,
                    read_config=read_config,
                )
            )
        )

    # -- a server starts --------------------------------------------------------

    def give(self, instance: objects.Instance, addresses: Sequence[str], reading: Reading) -> None:
        """Check devices before a server gets them, and remember that it has.

        :raises DeviceFault: one of them must not be given.
        """
        wanted = _candidates(reading, addresses)
        try:
            refused = self.keeper.give(instance.uuid, wanted)
        except StateError as error:
            LOG.error("No PCI device can be given: %s", error, instance=instance)
            raise DeviceFault("The node cannot keep records of its PCI devices.") from error
        for address, reason in refused.items():
            LOG.error(
                "PCI device %s must not be given to the server: %s",
                address,
                reason,
                instance=instance,
            )
        if refused:
            raise DeviceFault(
                f"Of the {len(wanted)} PCI devices that were claimed for the server, "
                f"{len(refused)} did not pass the check before it starts."
            )

    def keep(self, instance: objects.Instance, claim: Claim, reading: Reading) -> None:
        """Remember the devices of a server that was made before this was in use."""
        try:
            self.keeper.keep(instance.uuid, claim.addresses)
        except StateError as error:
            # It has them already, so there is nothing to refuse.
            LOG.error("It is not recorded who has PCI devices: %s", error, instance=instance)

    # -- a server is gone ---------------------------------------------------------

    def take_back(self, instance: objects.Instance, source: Source) -> None:
        """Clean what a server had, if it was destroyed for good. Never raises."""
        if instance.task_state not in LAST:
            return
        try:
            if not self.keeper.has_given(instance.uuid):
                return
            dirty = self.keeper.take_back(instance.uuid, _roles(source.read()))
        except StateError as error:
            LOG.error("PCI devices are not clean yet: %s", error, instance=instance)
            return
        for address, reason in dirty.items():
            LOG.error("PCI device %s is in quarantine: %s", address, reason, instance=instance)

    # -- the periodic update --------------------------------------------------------

    def sweep(self, reading: Reading, taken: Callable[[], frozenset[str]]) -> dict[str, Finding]:
        """Address -> why a free device must not be offered, after all was cleaned."""
        offers = reading.offers()
        ill = reading.judge(offers)
        try:
            reasons = self.keeper.sweep(_candidates(reading, offers), taken, ill.keys())
        except StateError as error:
            LOG.error("PCI devices are not offered: %s", error)
            reasons = dict.fromkeys(offers, str(error))
        return {each: Finding(Kind.HYGIENE, reason) for each, reason in reasons.items()}

    def unreserve(self, tree: provider_tree.ProviderTree, nodename: str) -> None:
        """Let Placement give clean one-time-use devices again. Never raises.

        Nova reserves such a device when a server gets it, and again at every
        update as long as it has it, after this was called.
        """
        try:
            owed = self.keeper.owed()
            if not owed:
                return
            done = set()
            for address in owed:
                name = f"{nodename}_{address.upper()}"
                # Nova marks the provider of a one-time-use device with this trait.
                if not tree.exists(name) or not tree.has_traits(name, [_ONE_TIME_USE]):
                    done.add(address)
                    continue
                inventory = tree.data(name).inventory
                if not any(fields.get("reserved") for fields in inventory.values()):
                    done.add(address)
                    continue
                LOG.info("PCI device %s is clean and can be used again", address)
                free = {key: {**fields, "reserved": 0} for key, fields in inventory.items()}
                tree.update_inventory(name, free)
            self.keeper.settle(done)
        except StateError as error:
            LOG.error("Clean PCI devices stay reserved: %s", error)


def _candidates(reading: Reading, addresses: Iterable[str]) -> dict[str, Candidate]:
    roles = _roles(reading)
    found = {each: Candidate.of(reading.node, each, roles.get(each)) for each in addresses}
    return {each: candidate for each, candidate in found.items() if candidate is not None}


def _roles(reading: Reading) -> dict[str, str | None]:
    """Address -> role of everything that the node's entries offer."""
    offers = reading.offers()
    return {each: entry.get(tags.ROLE) for each, (_, entry) in offers.items()}
