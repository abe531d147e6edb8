# SPDX-License-Identifier: Apache-2.0
"""The step that activates exactly a server's NVLink partitions.

The manager of the fabric has the partitions, Nova has the servers of the GPUs,
and the ledger of this node joins them, because a restarted manager
immediately needs the list of partitions in use. These rules hold whenever the
service is killed:

* a server's partition is in the ledger before it is activated;
* it leaves the ledger only when it is no longer active in the manager;
* a server starts only after the manager was read back: exactly its partitions
  are active, and no other that contains one of its GPUs.

All of this runs under the lock of this step, and not under the ledger's own: the manager may
answer slowly.
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
    """Run a program that may never end; return its exit status and its output.

    See :data:`nova_hpc.tenancy.nvlink.backend.Run`.

    :param timeout: seconds.
    :raises NvlinkFabricError: the program did not run or did not end in time.
    """
    try:
        return hygiene_reset.run_with_deadline(argv, timeout)
    except hygiene_reset.ResetError as error:
        raise NvlinkFabricError(f"the manager of the NVLink fabric: {error}") from error


def nvlink_settings_of(options: Any) -> NvlinkSettings:
    """Read ``[hpc]nvlink_*`` from these *options*.

    :raises BackendError: a value is not valid.
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
    """The results of a periodic check of NVLink partitions: reasons by GPU, and notes to log."""

    #: GPU -> why it must not be given.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log.
    notes: tuple[str, ...] = ()


@attrs.frozen
class NvlinkState:
    """The ledger's record of the NVLink fabric: partitions by server, known GPUs, and its loss."""

    tenancies: Tenancies = attrs.field(factory=dict, hash=False)
    #: Every GPU that the manager has ever shown.
    known: frozenset[str] = frozenset()
    #: Why the servers' partitions are unknown; None if they are known.
    lost: str | None = None


@attrs.frozen
class NvlinkStep(TenancyStep):
    """Keeps the partitions of one node's NVLink fabric in the state that its servers need."""

    name: ClassVar[str] = "nvlink"

    backend: NvlinkBackend
    ledger: LedgerFile
    #: The role of NVSwitches in the node's offers.
    switch_role: str | None = None

    @classmethod
    def from_options(
        cls, options: Any, ledger: LedgerFile, switch_role: str | None = None
    ) -> NvlinkStep | None:
        """Build the step from group ``[hpc]`` of the configuration; None if it is switched off.

        :raises BackendError: it is unusable.
        """
        backend = load_nvlink_backend(
            options.nvlink_backend, nvlink_settings_of(options), run_fabric_call
        )
        if backend is None:
            return None
        return cls(backend, ledger, switch_role)

    # -- the protocol ---------------------------------------------------------------

    def begin(self, view: NodeView) -> tuple[str, ...]:
        """Refuse to start if servers with GPUs could not be started."""
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
        """Activate the partitions of exactly the GPUs that a server gets."""
        return self._before(self.give, tenant, view)

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Activate the server's NVLink partitions again if they are no longer active."""
        return self._before(self.keep, tenant, view)

    def _before(
        self,
        make: Callable[[str, Collection[str], Collection[str], bool], None],
        tenant: DeviceTenant,
        view: NodeView,
    ) -> tuple[str, ...]:
        """Run *make* for the server's GPUs of the fabric, and convert its errors.

        :raises RefusedError: the partitions are not active.
        """
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
        """Deactivate a server's partitions; the next periodic check retries failures."""
        try:
            failed = self.take_back(server)
        except (NvlinkFabricError, LedgerError) as error:
            return (f"NVLink partitions are still active: {error}",)
        return tuple(
            f"NVLink partition {partition_id} is still active: {reason}"
            for partition_id, reason in failed.items()
        )

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Deactivate partitions whose server has ended; withhold GPUs with partitions in doubt."""
        try:
            # Never cut the links of a running guest, even if Nova has lost its server.
            swept = self.sweep(lambda: owners.busy(self.members(view.sets)), view.sets)
        except LedgerError as error:
            swept = NvlinkSweep(dict.fromkeys(self.members(view.sets), str(error)))
        findings = {
            address: Symptom(HealthSign.NVLINK, reason)
            for address, reason in swept.reasons.items()
            if address in view.roles
        }
        return WithheldDevices(findings, swept.notes)

    # -- the record -------------------------------------------------------------------

    def state(self) -> NvlinkState:
        """Read the ledger's record of NVLink partitions; ``lost`` explains a missing record."""
        ledger = self.ledger.read()
        lost = None
        if ledger.lost:
            lost = f"{ledger.problems[0]}; repair or remove it first"
        elif ledger.partitions is None:
            lost = f"the ledger {self.ledger.path} does not say who has NVLink partitions"
        return NvlinkState(ledger.partitions or {}, ledger.gpus, lost)

    def members(self, tagged: Iterable[str] = ()) -> frozenset[str]:
        """Return the GPUs of the fabric that are known without the manager.

        :param tagged: devices that the node's tags put into NVLink sets.
        """
        return self.state().known | set(self.backend.settings.gpus.values()) | set(tagged)

    # -- the service starts -----------------------------------------------------

    def reach(self, functions: Collection[str]) -> tuple[NvlinkPartition, ...]:
        """Reach the manager and check that this node has its GPUs.

        :param functions: addresses of the node's PCI functions.
        :raises NvlinkFabricError: it cannot be reached or used.
        :raises LedgerError: the ledger cannot be written.
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
        """Activate the partitions of a server that gets *gpus*, and no other with one of these.

        :param server: its UUID.
        :param gpus: all GPUs of the fabric that it gets.
        :param others: devices that other servers have.
        :param linked: whether its flavor requires NVLinks.
        :raises NoPartitionError: no partition has exactly these.
        :raises NvlinkFabricError: they are not active, or their state is unknown.
        :raises LedgerError: the ledger cannot be written.
        """
        self._make(server, frozenset(gpus), others, linked, fresh=True)

    def keep(
        self, server: str, gpus: Collection[str], others: Collection[str], linked: bool
    ) -> None:
        """Prepare a server that starts again with its present GPUs.

        Active partitions stay active. Raises like :meth:`give`.
        """
        self._make(server, frozenset(gpus), others, linked, fresh=False)

    def _make(
        self, server: str, gpus: frozenset[str], others: Collection[str], linked: bool, fresh: bool
    ) -> None:
        """Activate a server's partitions in three phases.

        The ledger first gets the server's partitions, and former ones of its GPUs as ending. Then
        the manager deactivates, activates, and is read back. Last the ending ones leave the
        ledger. So a killed service leaves entries from which the next sweep can continue.
        """
        with self.ledger.locked(self.name):
            state = self.state()
            if state.lost:
                raise NvlinkFabricError(state.lost)
            used = frozenset(others) if fresh else gpus | frozenset(others)
            needed = nvlink.list_needed_partitions(state.tenancies, used)
            partitions = self._list(state, needed)
            plan = nvlink.plan_partitions(partitions, gpus, others, linked, fresh)
            # Former partitions of these GPUs stay in the file until they are inactive.
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
        """Deactivate a server's partitions.

        :returns: partition -> why it is still active, as far as is known.
        :raises NvlinkFabricError: the manager does not answer.
        :raises LedgerError: the ledger cannot be written.
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

    # -- periodically -------------------------------------------------------------------

    def sweep(
        self, taken: Callable[[], frozenset[str]], tagged: Collection[str] = ()
    ) -> NvlinkSweep:
        """Deactivate partitions whose server has ended; send the others to a restarted manager.

        :param taken: returns the devices that servers have now.
        :param tagged: see :meth:`members`.
        :raises LedgerError: the ledger cannot be written.
        """
        with self.ledger.locked(self.name):
            # Nova records a server's GPUs before the file does. So a server of the
            # file whose GPUs are missing in the answer has ended.
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
        """Send the partitions that servers have to a restarted manager.

        :returns: their ids.
        :raises NvlinkFabricError: it did not accept them, or they are unknown.
        :raises LedgerError: another process holds the lock.
        """
        with self.ledger.locked(self.name):
            state = self.state()
            held_ids = nvlink.list_held_partitions(state.tenancies)
            self._tell(state, held_ids)
            return held_ids

    # -- the manager ------------------------------------------------------------------

    def _list(self, state: NvlinkState, needed: Iterable[int]) -> tuple[NvlinkPartition, ...]:
        """List the NVLink manager's partitions; first send a waiting manager the *needed* ones."""
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
        """Write partitions and GPUs to the ledger if they have changed; return the new state."""
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
