# SPDX-License-Identifier: Apache-2.0
"""Set NVLink partitions: the step that makes those of a server active, and no other.

The manager of the fabric knows the partitions, Nova knows who has the GPUs,
and the ledger of this node joins them, because a manager that was restarted has to
be told at once which partitions are in use. The rules, which hold whenever the
service is killed:

* what a server gets is in the ledger before it is made active;
* it leaves the ledger only when the manager has it no longer;
* a server starts only after the manager was read back: exactly its partitions
  are active, and no other that has one of its GPUs.

All is done below the lock of this step, and not the ledger's own: the manager may take its
time to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs

from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.nvlink import partitions as nvlink
from nova_hpc.tenancy.nvlink.backend import (
    BackendError,
    NvlinkBackend,
    NvlinkSettings,
    WaitsError,
    load_nvlink_backend,
)
from nova_hpc.tenancy.nvlink.partitions import (
    NoPartitionError,
    NvlinkFabricError,
    NvlinkPartition,
    Tenancies,
)
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import (
    DeviceTenant,
    NodeView,
    RefusedError,
    StepError,
    TenancyStep,
    WithheldDevices,
)
from nova_hpc.topology import nvlink as sets
from nova_hpc.topology.model import AddressError, address_key, normalise_address
from nova_hpc.wire.ledger import Ledger, PartitionTenancy

_OUT_OF_ORDER: Final = "The NVLinks of the node cannot be set now."


def run_fabric_call(argv: Sequence[str], timeout: float) -> tuple[int, str]:
    """Run a program that may never end; see :data:`nova_hpc.tenancy.nvlink.backend.Run`."""
    try:
        return hygiene_reset.run_with_deadline(argv, timeout)
    except hygiene_reset.ResetError as error:
        raise NvlinkFabricError(f"the manager of the NVLink fabric: {error}") from error


def nvlink_settings_of(options: Any) -> NvlinkSettings:
    """``[hpc]nvlink_*`` of these *options*.

    :raises BackendError: they make no sense.
    """
    gpus: dict[int, str] = {}
    for number, text in options.nvlink_gpus.items():
        try:
            address = normalise_address(text)
        except AddressError as error:
            raise BackendError(f"[hpc]nvlink_gpus: {error}") from error
        if not number.isascii() or not number.isdigit():
            raise BackendError(
                f"[hpc]nvlink_gpus: {number!r} is no physical id; write it like "
                "1:0000:1b:00.0,2:0000:43:00.0"
            )
        if address in gpus.values():
            raise BackendError(f"[hpc]nvlink_gpus names {address} twice")
        gpus[int(number)] = address
    return NvlinkSettings(
        address=options.nvlink_address,
        timeout=float(options.nvlink_timeout),
        library=options.nvlink_library,
        gpus=gpus,
    )


@attrs.frozen
class NvlinkSweep:
    """The findings of a periodic look."""

    #: GPU -> why it must not be given.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log.
    notes: tuple[str, ...] = ()


@attrs.frozen
class NvlinkState:
    """The ledger's record of the fabric."""

    tenancies: Tenancies = attrs.field(factory=dict, hash=False)
    #: Every GPU that the manager has ever shown.
    known: frozenset[str] = frozenset()
    #: Why it is unknown which server has which partition; None: it is known.
    lost: str | None = None


@attrs.frozen
class NvlinkStep(TenancyStep):
    """Keeps the partitions of one node's NVLink fabric as its servers need them."""

    name: ClassVar[str] = "nvlink"

    backend: NvlinkBackend
    ledger: LedgerFile
    #: The role of NVSwitches in the node's offers.
    switch_role: str | None = None

    @classmethod
    def from_options(
        cls, options: Any, ledger: LedgerFile, switch_role: str | None = None
    ) -> NvlinkStep | None:
        """As group ``[hpc]`` of the configuration says; None where it is switched off.

        :raises BackendError: it cannot be used.
        """
        backend = load_nvlink_backend(
            options.nvlink_backend, nvlink_settings_of(options), run_fabric_call
        )
        if backend is None:
            return None
        return cls(backend, ledger, switch_role)

    # -- the protocol ---------------------------------------------------------------

    def begin(self, view: NodeView) -> tuple[str, ...]:
        """Refuse to start where servers with GPUs could not be started."""
        try:
            partitions = self.reach([function.address for function in view.node.functions])
        except (NvlinkFabricError, LedgerError) as error:
            raise StepError(f"[hpc]nvlink_backend: {error}") from error
        notes = []
        switches = sorted(
            address for address, role in view.roles.items() if role and role == self.switch_role
        )
        if switches:
            notes.append(
                "[pci]device_spec offers NVSwitches to servers, and who has them links the GPUs of "
                f"all: {', '.join(switches)}; only the machine that manages them may get them"
            )
        missing, wrong = nvlink.compare_with_nvlink_sets(
            partitions, sets.rebuild_nvlink_sets(view.sets).sets
        )
        for gpus in missing:
            notes.append(
                f"An NVLink partition is no NVLink set of this node: {_join_sorted_gpus(gpus)}"
            )
        for gpus in wrong:
            notes.append(
                "An NVLink set of this node is no NVLink partition, so servers that get it are "
                f"refused: {_join_sorted_gpus(gpus)}; see nova-hpc doctor --nvlink"
            )
        return tuple(notes)

    def before_start(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Activate the partition of exactly the GPUs that a server gets."""
        return self._before(self.give, tenant, view)

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Activate it again where it is active no longer."""
        return self._before(self.keep, tenant, view)

    def _before(
        self,
        make: Callable[[str, Collection[str], Collection[str], bool], None],
        tenant: DeviceTenant,
        view: NodeView,
    ) -> tuple[str, ...]:
        gpus = self.members(view.sets) & frozenset(tenant.devices)
        if not gpus:
            return ()
        others = tenant.owners.records() - frozenset(tenant.devices)
        try:
            make(tenant.server, gpus, others, tenant.linked)
        except NoPartitionError as error:
            reason = f"The claimed GPUs are refused: {error}"
            raise RefusedError(error.user, [reason], claim=True) from error
        except (NvlinkFabricError, LedgerError) as error:
            reason = f"The claimed GPUs must not be given: {error}"
            raise RefusedError(_OUT_OF_ORDER, [reason]) from error
        return ()

    def after_end(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """Deactivate what a server had; what has failed the next look tries again."""
        try:
            failed = self.take_back(server)
        except (NvlinkFabricError, LedgerError) as error:
            return (f"NVLink partitions are still active: {error}",)
        return tuple(
            f"NVLink partition {partition_id} is still active: {reason}"
            for partition_id, reason in failed.items()
        )

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Deactivate what has outlived its server."""
        try:
            # The links of a guest that runs are not cut, whoever has forgotten its server.
            swept = self.sweep(lambda: owners.busy(self.members(view.sets)), view.sets)
        except LedgerError as error:
            swept = NvlinkSweep(dict.fromkeys(self.members(view.sets), str(error)))
        findings = {
            address: Symptom(HealthSign.NVLINK, reason)
            for address, reason in swept.reasons.items()
            if address in view.roles
        }
        return WithheldDevices(findings, swept.notes)

    # -- what is remembered -----------------------------------------------------------

    def state(self) -> NvlinkState:
        """The state that is stored."""
        ledger = self.ledger.read()
        lost = None
        if ledger.lost:
            lost = f"{ledger.problems[0]}; repair or remove it first"
        elif ledger.partitions is None:
            lost = f"the ledger {self.ledger.path} does not say who has NVLink partitions"
        return NvlinkState(ledger.partitions or {}, ledger.gpus, lost)

    def members(self, tagged: Iterable[str] = ()) -> frozenset[str]:
        """The GPUs of the fabric, as far as they are known without asking it.

        :param tagged: devices that the node's tags put into NVLink sets.
        """
        return self.state().known | set(self.backend.settings.gpus.values()) | set(tagged)

    # -- the service starts -----------------------------------------------------

    def reach(self, functions: Collection[str]) -> tuple[NvlinkPartition, ...]:
        """Reach the manager and see whether its GPUs are those of this node.

        :param functions: addresses of the node's PCI functions.
        :raises NvlinkFabricError: it cannot be reached or used.
        :raises LedgerError: nothing can be remembered.
        """
        with self.ledger.locked(self.name):
            state = self.state()
            partitions = self._list(state, nvlink.list_held_partitions(state.tenancies))
            for partition in partitions:
                strange = sorted(partition.gpus - set(functions), key=address_key)
                if strange:
                    raise NvlinkFabricError(
                        f"NVLink partition {partition.id} has a GPU at {strange[0]}, "
                        f"where this node "
                        "has no device; write the addresses of this node into [hpc]nvlink_gpus"
                    )
            if not state.lost:
                self._keep(state, partitions, state.tenancies)
            return partitions

    # -- a server starts ----------------------------------------------------------

    def give(
        self, server: str, gpus: Collection[str], others: Collection[str], linked: bool
    ) -> None:
        """Make the partitions of a server that gets *gpus*, and no other of these, active.

        :param server: its UUID.
        :param gpus: all GPUs of the fabric that it gets.
        :param others: devices that other servers have.
        :param linked: its flavor requires NVLinks.
        :raises NoPartitionError: there is none with exactly these.
        :raises NvlinkFabricError: they are not active, or that is unknown.
        :raises LedgerError: nothing can be remembered.
        """
        self._make(server, frozenset(gpus), others, linked, fresh=True)

    def keep(
        self, server: str, gpus: Collection[str], others: Collection[str], linked: bool
    ) -> None:
        """The same for a server that starts again with the GPUs that it has.

        What is active stays so. Raises as :meth:`give`.
        """
        self._make(server, frozenset(gpus), others, linked, fresh=False)

    def _make(
        self, server: str, gpus: frozenset[str], others: Collection[str], linked: bool, fresh: bool
    ) -> None:
        with self.ledger.locked(self.name):
            state = self.state()
            if state.lost:
                raise NvlinkFabricError(state.lost)
            used = frozenset(others) if fresh else gpus | frozenset(others)
            needed = nvlink.list_needed_partitions(state.tenancies, used)
            partitions = self._list(state, needed)
            plan = nvlink.plan_partitions(partitions, gpus, others, linked, fresh)
            # What was another's, or nobody's, stays in the file until it is gone.
            left = {
                key: tenancy.gpus for key, tenancy in state.tenancies.items() if tenancy.gpus & gpus
            }
            left |= {
                partition.id: partition.gpus
                for partition in partitions
                if partition.id in plan.deactivate
            }
            own_tenancies = {
                partition.id: PartitionTenancy(server, partition.gpus) for partition in plan.chosen
            }
            rest = {key: tenancy for key, tenancy in state.tenancies.items() if key not in left}
            ending = {
                key: PartitionTenancy(nvlink.NOBODY, former_gpus)
                for key, former_gpus in left.items()
            }
            state = self._keep(state, partitions, rest | ending | own_tenancies)
            for partition_id in plan.deactivate:
                self.backend.deactivate(partition_id)
            for partition_id in plan.activate:
                self.backend.activate(partition_id)
            if plan.deactivate or plan.activate:
                partitions = self.backend.partitions()
                _read_back(partitions, plan.chosen, gpus)
            self._keep(state, partitions, rest | own_tenancies)

    # -- a server is gone -----------------------------------------------------------

    def take_back(self, server: str) -> dict[int, str]:
        """Deactivate what a server had.

        :returns: partition -> why it is still active, as far as is known.
        :raises NvlinkFabricError: the manager cannot be asked.
        :raises LedgerError: nothing can be remembered.
        """
        if not _partitions_of_server(self.state().tenancies, server):
            return {}
        with self.ledger.locked(self.name):
            state = self.state()
            own_ids = _partitions_of_server(state.tenancies, server)
            partitions = self._list(
                state, set(nvlink.list_held_partitions(state.tenancies)) - own_ids
            )
            failed = self._deactivate(own_ids, partitions)
            gone = own_ids - failed.keys()
            self._keep(
                state,
                partitions,
                {key: tenancy for key, tenancy in state.tenancies.items() if key not in gone},
            )
            return failed

    def _deactivate(
        self, ids: Iterable[int], partitions: Iterable[NvlinkPartition]
    ) -> dict[int, str]:
        active = {partition.id for partition in partitions if partition.active}
        failed = {}
        for partition_id in sorted(active & set(ids)):
            try:
                self.backend.deactivate(partition_id)
            except NvlinkFabricError as error:
                failed[partition_id] = str(error)
        return failed

    # -- from time to time --------------------------------------------------------------

    def sweep(
        self, taken: Callable[[], frozenset[str]], tagged: Collection[str] = ()
    ) -> NvlinkSweep:
        """Deactivate what has outlived its server; tell a restarted manager the rest.

        :param taken: asks for the devices that servers have now.
        :param tagged: see :meth:`members`.
        :raises LedgerError: nothing can be remembered.
        """
        with self.ledger.locked(self.name):
            # A server's GPUs are Nova's before they are in the file: so what is
            # in the file and not in the answer has outlived its server.
            state = self.state()
            used = taken()
            notes = [] if state.lost is None else [state.lost]
            try:
                partitions = self._list(state, nvlink.list_needed_partitions(state.tenancies, used))
            except NvlinkFabricError as error:
                return NvlinkSweep(dict.fromkeys(self.members(tagged), str(error)), tuple(notes))
            tenancies = nvlink.adopt_active_partitions(partitions, state.tenancies, used)
            needed = set(nvlink.list_needed_partitions(tenancies, used))
            active = {partition.id for partition in partitions if partition.active}
            for partition_id in sorted(needed - active):
                notes.append(
                    f"NVLink partition {partition_id} of server "
                    f"{tenancies[partition_id].server} is not active; "
                    "the server has NVLinks again when it is stopped and started"
                )
            failed = self._deactivate(tenancies.keys() - needed, partitions)
            left = {
                key: tenancy for key, tenancy in tenancies.items() if key in needed | failed.keys()
            }
            self._keep(state, partitions, left)
            reasons = {gpu: reason for key, reason in failed.items() for gpu in tenancies[key].gpus}
            return NvlinkSweep(reasons, tuple(notes))

    def restore(self) -> tuple[int, ...]:
        """Tell a manager that was restarted which partitions servers have.

        :returns: their ids.
        :raises NvlinkFabricError: it did not take them, or it is unknown which.
        :raises LedgerError: another process is at work.
        """
        with self.ledger.locked(self.name):
            state = self.state()
            held_ids = nvlink.list_held_partitions(state.tenancies)
            self._tell(state, held_ids)
            return held_ids

    # -- the manager ------------------------------------------------------------------

    def _list(self, state: NvlinkState, needed: Iterable[int]) -> tuple[NvlinkPartition, ...]:
        """The table; a manager that waits for the list of what is *needed* gets it."""
        try:
            return self.backend.partitions()
        except WaitsError as waits:
            try:
                self._tell(state, needed)
            except NvlinkFabricError as error:
                raise NvlinkFabricError(f"{waits}; {error}") from error
            return self.backend.partitions()

    def _tell(self, state: NvlinkState, needed: Iterable[int]) -> None:
        if state.lost:
            # An empty list would cut the links of running servers.
            raise NvlinkFabricError(
                f"{state.lost}, so the node does not know which partitions servers have; "
                "stop the servers with GPUs and start the manager of the fabric afresh"
            )
        self.backend.set_active(sorted(needed))

    def _keep(
        self, state: NvlinkState, partitions: Iterable[NvlinkPartition], tenancies: Tenancies
    ) -> NvlinkState:
        """Write down what has changed."""
        gpus = state.known.union(*(partition.gpus for partition in partitions))
        new = NvlinkState(dict(tenancies), gpus)
        if new != state:

            def edit(ledger: Ledger) -> Ledger:
                return attrs.evolve(ledger, partitions=new.tenancies, gpus=new.known)

            self.ledger.change(edit)
        return new


def _partitions_of_server(tenancies: Tenancies, server: str) -> set[int]:
    return {key for key, tenancy in tenancies.items() if tenancy.server == server}


def _read_back(
    partitions: Iterable[NvlinkPartition], chosen: Iterable[NvlinkPartition], gpus: frozenset[str]
) -> None:
    wanted = {partition.id for partition in chosen}
    active = {
        partition.id for partition in partitions if partition.active and partition.gpus & gpus
    }
    if active != wanted:
        raise NvlinkFabricError(
            f"the NVLink partitions {sorted(active)} are active, and {sorted(wanted)} should be"
        )


def _join_sorted_gpus(gpus: Collection[str]) -> str:
    return ", ".join(sorted(gpus))
