# SPDX-License-Identifier: Apache-2.0
"""The steps on devices around a server, connected to Nova.

The steps implement :class:`nova_hpc.tenancy.step.TenancyStep`. This module connects their
protocol with the instance, its task, the claim, the periodic update and Placement,
independently of the individual steps. :func:`steps_of` returns a node's steps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import os_traits
from nova import exception, objects
from nova.compute import provider_tree, task_states
from oslo_log import log as logging

from nova_hpc.from_nova.claim import ServerClaim
from nova_hpc.placement import flavor
from nova_hpc.placement.model import Nvlink
from nova_hpc.tenancy.adapters import step as adapters
from nova_hpc.tenancy.adapters.plan import AddressPrefix, PrefixError
from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.hygiene.step import HygieneStep
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.nvlink.backend import BackendError
from nova_hpc.tenancy.nvlink.step import NvlinkStep
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.peer import acs_registers
from nova_hpc.tenancy.peer.step import PeerToPeerStep
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError, StepError, TenancyStep
from nova_hpc.topology.nvlink import SWITCH_ROLE
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.wire import tags
from virt_driver_patches import privileged
from virt_driver_patches.driver import stage as cleaning
from virt_driver_patches.driver.reading import NodeReading, ReadingSource
from virt_driver_patches.errors import ClaimRefused, DeviceFault

LOG = logging.getLogger(__name__)

#: Tasks after whose ``destroy`` the server no longer has its devices. After
#: other tasks it still has them, or the next periodic update finds them free.
LAST_TASKS = (task_states.DELETING, task_states.SHELVING_OFFLOADING)

#: Tasks whose ``destroy`` ends a server here while it is, or moves, elsewhere.
#: After any other task a server starts again with the same devices.
_ELSEWHERE = (
    task_states.BLOCK_DEVICE_MAPPING,
    task_states.NETWORKING,
    task_states.RESIZE_REVERTING,
    task_states.SCHEDULING,
    task_states.SPAWNING,
)


class _LoggedTexts:
    """The texts that are already logged, so that not every start and update repeats them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, frozenset[str]] = {}

    def say(
        self, topic: str, texts: Collection[str], forget: bool, level: int = logging.WARNING
    ) -> None:
        """Log new texts.

        :param forget: whether a text that is missing this time is new when it returns.
        """
        with self._lock:
            logged = self._texts.get(topic, frozenset())
            self._texts[topic] = frozenset(texts) if forget else logged | frozenset(texts)
        for text in dict.fromkeys(texts):
            if text not in logged:
                LOG.log(level, "%s", text)


@attrs.frozen
class TenancySteps:
    """The steps of one node, in the order in which a server's start needs them."""

    steps: tuple[TenancyStep, ...] = ()
    #: Nova's name for the node -> the sources that show which server has a device.
    owners: Callable[[str], DeviceOwners] = attrs.field(kw_only=True)
    _said: _LoggedTexts = attrs.field(factory=_LoggedTexts, init=False, eq=False)

    def step(self, name: str) -> TenancyStep | None:
        """Return the step with this name; None if it is switched off."""
        return next((step for step in self.steps if step.name == name), None)

    def begin(self, reading: NodeReading) -> None:
        """Run the steps' checks when the service starts.

        :raises nova.exception.InvalidConfiguration: servers could not be started.
        """
        for step in self.steps:
            try:
                self._said.say(f"{step.name} begins", step.begin(_node_view_of(reading)), True)
            except StepError as error:
                raise exception.InvalidConfiguration(str(error)) from error

    def give(
        self,
        instance: objects.Instance,
        addresses: Sequence[str],
        reading: NodeReading,
        ports: Collection[str],
        node: str | None = None,
    ) -> None:
        """Prepare devices for a server, before its domain exists.

        :param ports: the *addresses* that belong to its ports.
        :param node: Nova's name for this node, if the server is still on another.
        :raises ClaimRefused: other devices would work.
        :raises DeviceFault: the server must not get these devices.
        """
        if addresses:
            tenant = self._tenant(instance, addresses, ports, node)
            for step in self.steps:
                self._ask(instance, step, step.before_start, tenant, reading)

    def keep(self, instance: objects.Instance, claim: ServerClaim, reading: NodeReading) -> None:
        """Prepare the restart of a server with its present devices.

        Raises like :meth:`give`.
        """
        tenant = self._tenant(instance, claim.addresses, claim.ports)
        for step in self.steps:
            self._ask(instance, step, step.before_restart, tenant, reading)

    def _tenant(
        self,
        instance: objects.Instance,
        addresses: Sequence[str],
        ports: Collection[str],
        node: str | None = None,
    ) -> DeviceTenant:
        asked = (instance.flavor.extra_specs or {}).get(flavor.NVLINK)
        return DeviceTenant(
            server=instance.uuid,
            devices=tuple(addresses),
            ports=frozenset(ports),
            linked=asked == Nvlink.REQUIRED.value,
            owners=self.owners(node or instance.node),
        )

    def _ask(
        self,
        instance: objects.Instance,
        step: TenancyStep,
        ask: Callable[[DeviceTenant, NodeView], tuple[str, ...]],
        tenant: DeviceTenant,
        reading: NodeReading,
    ) -> None:
        """Run one step before a start, and convert its refusal into an error of the driver.

        :raises ClaimRefused: other devices of the node would work.
        :raises DeviceFault: the devices must not be given.
        """
        try:
            self._said.say(f"{step.name} starts", ask(tenant, _node_view_of(reading)), False)
        except RefusedError as error:
            for reason in error.reasons:
                LOG.error("%s", reason, instance=instance)
            raise (ClaimRefused if error.claim else DeviceFault)(error.user) from error

    def take_back(self, instance: objects.Instance, source: ReadingSource) -> None:
        """Run the steps after a server's domain is gone. Never raises.

        The steps run in reverse order, so that cleaning sees the state that the others leave.
        """
        if instance.task_state in LAST_TASKS:
            self._end(instance, source, lambda step: step.after_end)
        elif instance.task_state in _ELSEWHERE:
            self.rest(instance, source)

    def rest(self, instance: objects.Instance, source: ReadingSource) -> None:
        """Run the steps after a server has moved but keeps its devices here. Never raises."""
        self._end(instance, source, lambda step: step.after_move)

    def _end(
        self,
        instance: objects.Instance,
        source: ReadingSource,
        tell: Callable[
            [TenancyStep], Callable[[str, Callable[[], NodeView], DeviceOwners], tuple[str, ...]]
        ],
    ) -> None:
        """Run the steps after a server's end or move, unless its guest may still have devices."""
        if not self.steps:
            return
        owners = self.owners(instance.node or "")
        domains = owners.domains()
        own = domains.of(instance.uuid)
        reason = domains.unknown
        if own is not None and own.live.all:
            reason = f"{own} is still there"
        if reason is not None:
            # Nova reports it gone, but a running guest would lose its devices. The next
            # update tries again.
            LOG.error("Its devices are left as they are for now: %s", reason, instance=instance)
            return
        owners = owners.with_domains(domains)
        for step in reversed(self.steps):
            for note in tell(step)(instance.uuid, lambda: _node_view_of(source.read()), owners):
                LOG.error("%s", note, instance=instance)

    def sweep(
        self, reading: NodeReading, owners: DeviceOwners
    ) -> tuple[dict[str, Symptom], tuple[str, ...]]:
        """Run the steps on free devices.

        :returns: address -> why a device must not be offered; and alarms, one sentence each.
        """
        findings: dict[str, Symptom] = {}
        alarms: list[str] = []
        if self.steps:
            ill = reading.fresh()
            view = attrs.evolve(_node_view_of(reading), ill=ill)
            for step in reversed(self.steps):
                withheld = step.withhold(view, owners)
                self._said.say(f"{step.name} looks", withheld.notes, True)
                findings.update(withheld.findings)
                alarms += withheld.alarms
        self._said.say("alarms", alarms, True, logging.ERROR)
        return findings, tuple(alarms)

    def unreserve(
        self, tree: provider_tree.ProviderTree, nodename: str, held: Collection[str] = ()
    ) -> None:
        """Let Placement give clean one-time-use devices again. Never raises.

        :param held: withheld devices: they stay reserved until they are offered again.

        Nova reserves such a device when a server gets it. It reserves it again at every
        update while the server has it, after this call
        (``nova/compute/pci_placement_translator.py``, releases 32 to 34).
        """
        for step in self.steps:
            try:
                waiting = sorted(step.unreported() - frozenset(held))
                step.report(
                    [
                        address
                        for address in waiting
                        if _is_given_by_placement(tree, nodename, address)
                    ]
                )
            except LedgerError as error:
                LOG.error("Clean PCI devices stay reserved: %s", error)


def _is_given_by_placement(tree: provider_tree.ProviderTree, nodename: str, address: str) -> bool:
    """Whether Placement gives a clean device; if not yet, lift its reservation now."""
    name = f"{nodename}_{address.upper()}"
    # Nova marks the provider of a one-time-use device with this trait.
    if not tree.exists(name) or not tree.has_traits(name, [os_traits.HW_PCI_ONE_TIME_USE]):
        return True
    inventory = tree.data(name).inventory
    if not any(fields.get("reserved") for fields in inventory.values()):
        return True
    LOG.info("PCI device %s is clean and can be used again", address)
    tree.update_inventory(
        name, {key: {**fields, "reserved": 0} for key, fields in inventory.items()}
    )
    return False


def _node_view_of(reading: NodeReading) -> NodeView:
    offers = reading.offers()
    return NodeView(
        node=reading.node,
        roles={address: entry.get(tags.ROLE) for address, (_, entry) in offers.items()},
        sets={
            address: entry[tags.NVLINK]
            for address, (_, entry) in offers.items()
            if tags.NVLINK in entry
        },
    )


# -- the steps of a node --------------------------------------------------------------


def steps_of(conf: Any, source: ReadingSource) -> Iterator[TenancyStep]:
    """Yield the steps that ``[hpc]`` enables, in the order in which a server's start needs them.

    :raises nova.exception.InvalidConfiguration: a step cannot be used.
    """
    root = os.geteuid() == 0
    yield cleaning.forbidden_step_of(conf, source.ledger)
    try:
        cleaning.check_roles(conf, source.specs)
        if conf.hpc.clean_devices:
            hygiene = _hygiene_step_of(conf, source.ledger, root)
            stage = cleaning.stage_of(conf, hygiene)
            yield from (step for step in (stage, hygiene) if step is not None)
        else:
            cleaning.expect_none(conf)
            LOG.warning("[hpc]clean_devices is off: PCI devices are not cleaned between servers")
    except cleaning.OptionError as error:
        raise exception.InvalidConfiguration(str(error)) from error
    try:
        links = NvlinkStep.from_options(conf.hpc, source.ledger, SWITCH_ROLE)
    except BackendError as error:
        raise exception.InvalidConfiguration(str(error)) from error
    if links is not None:
        yield links
    adapter_step = _adapter_step_of(conf, source, root)
    if adapter_step is not None:
        yield adapter_step
    else:
        LOG.warning("[hpc]set_adapters is off: virtual functions are left as they are")
    wish = PeerWish(conf.hpc.peer_to_peer)
    if wish is not PeerWish.KEEP:
        make = acs_registers.apply_peer_wish if root else privileged.apply_wish_by_helper
        yield PeerToPeerStep(Path(conf.hpc.sysfs_root), wish, make)


def _hygiene_step_of(conf: Any, ledger: LedgerFile, root: bool) -> HygieneStep:
    sysfs, timeout = Path(conf.hpc.sysfs_root), float(conf.hpc.reset_timeout)

    tools = cleaner.CleanerTools(
        root=sysfs,
        timeout=timeout,
        reset=hygiene_reset.reset_call(sysfs, timeout, ledger.locks)
        if root
        else privileged.reset_by_helper,
        need_reset=HealthSign.RESET.value in conf.hpc.health_checks,
    )
    try:
        cleaners = cleaner.load_cleaners(conf.hpc.cleaners, tools)
    except cleaner.CleanerError as error:
        raise exception.InvalidConfiguration(str(error)) from error
    read_config = None if root else privileged.read_configs_by_helper
    if not root:
        # Without the helper every device would end in quarantine after its first server.
        _expect_helper(conf, "reset PCI devices", "clean_devices = False")
    records = HygieneRecords(sysfs, ledger, read_config, HealthRules.from_options(conf.hpc))
    return HygieneStep(records, cleaners, timeout)


def _adapter_step_of(conf: Any, source: ReadingSource, root: bool) -> adapters.AdapterStep | None:
    """Return None if the step is switched off, and no setting is left to restore."""
    try:
        prefix = AddressPrefix.parse(conf.hpc.address_prefix)
    except PrefixError as error:
        raise exception.InvalidConfiguration(f"[hpc]address_prefix: {error}") from error
    ledger = source.ledger.read()
    left = ledger.lost or any(device.adapter is not None for device in ledger.devices.values())
    if conf.hpc.set_adapters == adapters.OFF and not left:
        return None
    if not root:
        view = _node_view_of(source.read())
        if adapters.adapter_functions_of(
            view, [function.address for function in view.node.functions]
        ):
            _expect_helper(conf, "set virtual functions of adapters", "set_adapters = off")
    return adapters.AdapterStep(
        root=Path(conf.hpc.sysfs_root),
        ledger=source.ledger,
        prefix=prefix,
        mode=conf.hpc.set_adapters,
        write=None if root else privileged.write_setting_by_helper,
    )


def _expect_helper(conf: Any, what: str, off: str) -> None:
    """Refuse to start a service that is not root if its privileged helper does not work."""
    try:
        privileged.expect_same_settings(conf)
    except privileged.SettingsError as error:
        raise exception.InvalidConfiguration(str(error)) from error
    except Exception as error:
        raise exception.InvalidConfiguration(
            f"nova-compute is not root and may not {what} "
            f"({type(error).__name__}: {error}); copy etc/rootwrap.d/nova-hpc.filters to "
            f"/etc/nova/rootwrap.d/, or set [hpc]{off}"
        ) from error
