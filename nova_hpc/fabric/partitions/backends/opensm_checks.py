# SPDX-License-Identifier: Apache-2.0
"""The audit of one opensm: its options and files, and the losses by the agent's first write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nova_hpc.fabric.partitions.backends import opensm_trial
from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState, SubnetManagerError
from nova_hpc.fabric.partitions.backends.opensm_files import (
    PartitionStore,
    read_text,
    replace_text,
)
from nova_hpc.fabric.partitions.backends.opensm_process import read_running_options
from nova_hpc.fabric.partitions.backends.opensm_secrecy import audit_secrecy
from nova_hpc.fabric.partitions.file_audit import (
    OWN_PARTITIONS,
    FileTrial,
    audit_own_partitions,
    is_file_of_agent,
    list_file_losses,
)
from nova_hpc.fabric.partitions.first_write import (
    FIRST_WRITE,
    audit_first_write,
    list_table_losses,
    parse_accepted_losses,
    render_accepted_losses,
)
from nova_hpc.fabric.partitions.hardening import audit_opensm
from nova_hpc.fabric.partitions.manager_options import RunningOptions
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc.fabric.partitions.own_partitions import parse_own_partitions
from nova_hpc.fabric.partitions.partition_file import lay_out_partitions
from nova_hpc.fabric.partitions.port_reader import PortReader

_ACCEPTED: Final = "partitions.accepted-losses"
_ISOLATION: Final = "SDN04-04"


def read_running(conf: Any) -> RunningOptions:
    """Read the options that the command line of the running opensm sets.

    :param conf: the group ``[hpc_fabric_agent]``.
    """
    return read_running_options(Path(conf.opensm_pid_file), Path(conf.opensm_config))


class OpensmChecks:
    """The audit of one opensm and its agent: settings, and losses by the agent's first write."""

    def __init__(self, conf: Any, store: PartitionStore, reader: PortReader) -> None:
        """Read nothing yet.

        :param conf: the group ``[hpc_fabric_agent]``.
        """
        self._conf = conf
        self._own_path = Path(conf.own_partitions_file)
        self._accepted_path = Path(conf.state_path) / _ACCEPTED
        self._store = store
        self._reader = reader
        #: Members of networks, once they are known.
        self._desired = DesiredPartitions(0)

    def plan_first_write(self, desired: DesiredPartitions) -> None:
        """Store the desired partitions for the audit of losses by the agent's first write.

        See :class:`~nova_hpc.fabric.partitions.first_write.PlansFirstWrite`.
        """
        self._desired = desired

    def audit(
        self, judge: Callable[..., tuple[AuditRow, ...]] = audit_opensm
    ) -> tuple[AuditRow, ...]:
        """Audit opensm's options, its file of partitions and the agent's secrets; return all rows.

        :param judge: of the options, such as :func:`audit_opensm`.
        """
        text = self._store.read()
        trial = self._choose_trial()
        config = read_text(Path(self._conf.opensm_config))
        rows = judge(config, text, str(self._store.path), read_running(self._conf), trial)
        return (*rows, *self._audit_writes(text, trial), *audit_secrecy(self._conf))

    def _choose_trial(self) -> FileTrial | None:
        """Return the function that has a second opensm read a file; None if off or impossible.

        It decides if the text of a file is not enough.
        """
        may_try = self._conf.trial and opensm_trial.can_try_file()
        return opensm_trial.try_file if may_try else None

    def _is_first_write(self, text: str | None) -> bool:
        """Whether no agent has written here yet: it leaves its tickets behind."""
        return not is_file_of_agent(text) and not self._store.latest_ticket(text)

    def _audit_writes(self, text: str | None, trial: FileTrial | None) -> tuple[AuditRow, AuditRow]:
        """Audit the first write's losses: one row on the file, and one on the ports' tables."""
        if not self._is_first_write(text):
            found = "an agent has written the file before"
            return (
                AuditRow(OWN_PARTITIONS, _ISOLATION, AuditState.MET, found, needed=True),
                AuditRow(FIRST_WRITE, _ISOLATION, AuditState.MET, found, needed=True),
            )
        accepted = parse_accepted_losses(read_text(self._accepted_path), text)
        row = audit_own_partitions(
            text, read_text(self._own_path), str(self._own_path), trial=trial, accepted=accepted
        )
        try:
            return row, audit_first_write(self._list_table_losses(), accepted)
        except (SubnetManagerError, ValueError) as error:
            return row, AuditRow(
                FIRST_WRITE,
                _ISOLATION,
                AuditState.UNKNOWN,
                f"the memberships that ports would lose are unknown: {error}",
                "start the subnet manager before the agent's first start",
                needed=True,
            )

    def accept_losses(self) -> tuple[str, ...]:
        """Store the operator's decision to accept the present losses by the agent's first write.

        :returns: the losses.
        :raises SubnetManagerError: they are unknown, or the decision cannot be kept.
        """
        text = self._store.read()
        if not self._is_first_write(text):
            raise SubnetManagerError(
                f"an agent has written {self._store.path} before: there is nothing to accept"
            )
        try:
            of_file = list_file_losses(text, read_text(self._own_path), self._choose_trial())
        except ValueError as error:
            raise SubnetManagerError(f"{self._store.path}: {error}") from error
        losses = tuple(dict.fromkeys((*of_file, *self._list_table_losses())))
        try:
            self._accepted_path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SubnetManagerError(
                f"{self._accepted_path.parent} cannot be made: {error.strerror}"
            ) from error
        replace_text(self._accepted_path, render_accepted_losses(text, losses))
        return losses

    def _list_table_losses(self) -> tuple[str, ...]:
        own = parse_own_partitions(read_text(self._own_path) or "")
        fabric = self._reader.read_ports()
        tables = self._reader.read_tables(list(fabric.ports.values()))
        networks = lay_out_partitions(self._desired, own)
        return tuple(list_table_losses(fabric, tables, own, networks))
