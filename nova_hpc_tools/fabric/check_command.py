# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric check``: whether the subnet manager keeps partitions apart."""

from __future__ import annotations

import argparse
import contextlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import attrs
from oslo_config import cfg

from nova_hpc.conf import partitions as partition_options
from nova_hpc.fabric.partitions.backends.base import (
    AuditRow,
    AuditState,
    FileComparison,
    SubnetManager,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.choice import make_subnet_manager
from nova_hpc.fabric.partitions.keys import format_guid
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, parse_file
from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand
from nova_hpc_tools.site import service_settings, source_options

_COLUMNS: Final = ("Name", "Requirement", "State", "Found", "Cure")
_WRONG: Final = 1
#: The agent's program name for oslo.config.
_AGENT: Final = "nova-hpc-fabric-agent"
_ISOLATION: Final = "SDN04-04"
#: Names of subnet managers that read the agent's files.
_READ_FILES: Final = ("nvidia", "opensm")
#: Rows that the first line names.
_NAMED: Final = 4
#: Columns of a line.
_WIDTH: Final = 100
#: The most ports that have a row each.
_MOST_ROWS: Final = 50
#: Values of binding:vif_type of a port that has a host and no partition.
_NOT_BOUND: Final = ("unbound", "binding_failed")
_KINDS: Final = ("direct", "direct-physical")


@runtime_checkable
class ComparesFile(Protocol):
    """A subnet manager whose partitions file can be compared with the tables in force."""

    def compare_with_file(self) -> FileComparison:
        """Compare the tables of all ports with the current file."""


class CheckFabric(ListCommand):
    """Check on the subnet manager's host whether it keeps partitions apart; changes no fabric.

    One row for each setting that the isolation rests on, with the requirement's id in NVIDIA's
    Requirements for AI Clouds where it has one (SDN04-04, SDN04-05); then one for the file of
    partitions, one for the tables that are in force in all ports and the switch ports facing
    them, and one for each of those that differ. With --os-cloud, the faults of this fabric's agents
    are named, and ports of Neutron that have a host and are not bound (a request that broke off):
    the same request heals them.
    With --accept-losses, you accept the losses of the agent's first write, and each loss has a
    row: the agent begins then. The decision holds for exactly these losses and this file.
    "not available" means that this subnet manager lacks the setting; the row names the open risk.
    Needs root, as the agent does. The exit status is 0 if every available setting is met, 1 if
    one is not or cannot be read, 2 if nothing can be checked.
    """

    acts_with = ("accept_losses",)
    errors = (SubnetManagerError, service_settings.ConfigError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source_options.add_config_options(parser, "the agent beside the subnet manager")
        parser.add_argument(
            "--os-cloud",
            metavar="NAME",
            help="name in clouds.yaml of the cloud whose agents and ports are looked at, too. "
            "Its user needs the admin role",
        )
        parser.add_argument(
            "--accept-losses",
            action="store_true",
            help="accept the memberships that ports lose by the first write of the agent, and "
            "list them",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Audit the settings, compare the tables, and query the cloud if one is named."""
        require_manager_files(read_agent_group(parsed_args.config))
        accepted: tuple[AuditRow, ...] = ()
        if parsed_args.accept_losses:
            accepted = tuple(accept_losses(parsed_args.config))
        rows = (*accepted, *examine_fabric(parsed_args.config, parsed_args.os_cloud).rows)
        return CommandAnswer(
            columns=_COLUMNS,
            rows=[
                (row.name, row.requirement, row.state.value, row.found, row.cure) for row in rows
            ],
            status=_WRONG if any(map(is_wrong, rows)) else 0,
            show=lambda: _print_rows(rows, self.say),
        )


def require_manager_files(options: Any) -> None:
    """Check that this is the host of a subnet manager that reads files.

    :param options: the group ``[hpc_fabric_agent]``.
    :raises CommandError: none of its files is there.
    """
    files = (options.opensm_config, options.partitions_file)
    if options.subnet_manager in _READ_FILES and all(map(_is_missing, files)):
        raise CommandError(
            f"no subnet manager is set up here: neither {files[0]} nor {files[1]} is there; run "
            "this command on the subnet manager's host, or name its agent's configuration with "
            "--config-file"
        )


def _is_missing(path: str) -> bool:
    try:
        Path(path).lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass  # its folder may not be readable
    return False


@runtime_checkable
class AcceptsLosses(Protocol):
    """A subnet manager whose present file the agent's first write would replace."""

    def accept_losses(self) -> tuple[str, ...]:
        """Record that the operator accepts the losses of the first write; return them."""


def accept_losses(words: Sequence[str]) -> Iterator[AuditRow]:
    """Accept the losses of the agent's first write; yield a row for each loss.

    :param words: as :func:`source_options.add_config_options` stores them.
    :raises Exception: the errors in :attr:`CheckFabric.errors`, and CommandError.
    """
    options = read_agent_group(words)
    manager = make_subnet_manager(options.subnet_manager, options)
    try:
        if not isinstance(manager, AcceptsLosses):
            raise CommandError(f"{options.subnet_manager}: the agent takes no file over there")
        losses = manager.accept_losses()
    finally:
        manager.close()
    for loss in losses:
        yield AuditRow("accepted_loss", _ISOLATION, AuditState.MET, loss)


@attrs.frozen
class FabricFindings:
    """The result of ``fabric check`` on one fabric: audit rows, expected partitions, agents."""

    rows: tuple[AuditRow, ...]
    #: Its networks and their members; None if the manager reads no file, or the file is unreadable
    #: or was changed by others.
    layout: PartitionLayout | None = None
    #: Its agents, as objects of openstacksdk; None if no cloud was named.
    agents: tuple[Any, ...] | None = None


def examine_fabric(words: Sequence[str], cloud: str | None) -> FabricFindings:
    """Audit the settings, compare the tables, and query the cloud.

    :param words: as :func:`source_options.add_config_options` stores them.
    :param cloud: its name in clouds.yaml; None to query no cloud.
    :raises Exception: the errors in :attr:`CheckFabric.errors`, and CommandError.
    """
    options = read_agent_group(words)
    path = Path(options.partitions_file)
    manager = make_subnet_manager(options.subnet_manager, options)
    try:
        rows = [*manager.audit(), *check_partitions(manager, path)]
        layout = _read_layout(path) if isinstance(manager, ComparesFile) else None
    finally:
        manager.close()
    if cloud is None:
        return FabricFindings(tuple(rows), layout)
    network = _connect_network(cloud)
    agents = [
        agent for agent in _list_all(network.agents) if is_agent_of_fabric(agent, options.fabric)
    ]
    rows += describe_agents(agents, options.fabric)
    rows += describe_loose_ports(_list_all(network.ports))
    return FabricFindings(tuple(rows), layout, tuple(agents))


def _read_layout(path: Path) -> PartitionLayout | None:
    with contextlib.suppress(OSError, ValueError):
        file = parse_file(path.read_bytes().decode("utf-8", "surrogateescape"))
        return file.layout if file.unchanged else None
    return None


def is_agent_of_fabric(agent: Any, fabric: str | None) -> bool:
    """Whether an agent of Neutron is the one beside the subnet manager of this fabric.

    :param agent: of openstacksdk.
    """
    return agent.binary == _AGENT and (agent.configuration or {}).get("fabric") == fabric


def read_agent_group(words: Sequence[str]) -> Any:
    """Read the options ``[hpc_fabric_agent]`` of the fabric agent.

    :param words: as :func:`source_options.add_config_options` stores them.
    :raises ConfigError: the configuration cannot be read.
    """
    options = cfg.ConfigOpts()
    partition_options.register_agent_options(options)
    files = service_settings.config_files_of(words, prog=_AGENT, project="neutron")
    try:
        options([], default_config_files=[str(path) for path in files], default_config_dirs=[])
    except (cfg.Error, OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise service_settings.ConfigError(f"the configuration cannot be read: {text}") from error
    service_settings.check_option_values(
        options, partition_options.AGENT_GROUP.name, ("poll_interval", "subnet_manager")
    )
    return options.hpc_fabric_agent


def is_wrong(row: AuditRow) -> bool:
    """Whether the operator has to act: a row is not met, or is needed and unknown."""
    return row.state is AuditState.NOT_MET or (row.needed and row.state is AuditState.UNKNOWN)


def check_partitions(manager: SubnetManager, path: Path) -> Iterator[AuditRow]:
    """Yield audit rows for the file of partitions and for the P_Key tables in force.

    :param path: the partitions file; unused if the manager reads no file.
    """
    if not isinstance(manager, ComparesFile):
        yield AuditRow(
            "tables",
            _ISOLATION,
            AuditState.UNKNOWN,
            "this subnet manager reads no file that could be compared",
            "the agent compares by its interface: see its faults in openstack network agent show",
        )
        return
    yield _check_file(path)
    try:
        compared = manager.compare_with_file()
    except SubnetManagerError as error:
        yield AuditRow("tables", _ISOLATION, AuditState.UNKNOWN, str(error), needed=True)
        return
    yield describe_managers(compared)
    if not compared.wrong:
        found = f"the tables of {compared.ports} ports are exactly as in the file"
        yield AuditRow("tables", _ISOLATION, AuditState.MET, found, needed=True)
        return
    yield AuditRow(
        "tables",
        _ISOLATION,
        AuditState.NOT_MET,
        f"those of {len(compared.wrong)} of {compared.ports} ports are not as in the file",
        "check that the agent runs; changes of the last seconds may still be on their way",
        needed=True,
    )
    for reason in compared.wrong[:_MOST_ROWS]:
        yield AuditRow("table", _ISOLATION, AuditState.NOT_MET, reason)


def describe_managers(compared: FileComparison) -> AuditRow:
    """Build the audit row for ports with a subnet manager; they may not be in a network."""
    managers = ", ".join(
        f"{format_guid(guid)} ({state})" for guid, state in sorted(compared.managers.items())
    )
    if not compared.members:
        return AuditRow("managers", _ISOLATION, AuditState.MET, managers or "none answers")
    bound = ", ".join(map(format_guid, sorted(compared.members)))
    return AuditRow(
        "managers",
        _ISOLATION,
        AuditState.NOT_MET,
        f"{managers}; the file gives a network's key to {bound}",
        "managers are no compute nodes: move the manager, or take the adapter out of device_spec",
    )


def _check_file(path: Path) -> AuditRow:
    name = "partitions_file"
    try:
        file = parse_file(path.read_bytes().decode("utf-8", "surrogateescape"))
    except OSError as error:
        reason = error.strerror or str(error)
        return AuditRow(name, _ISOLATION, AuditState.UNKNOWN, f"{path}: {reason}", needed=True)
    except ValueError as error:
        cure = "start the agent: it writes the file whole"
        return AuditRow(name, _ISOLATION, AuditState.NOT_MET, f"{path}: {error}", cure, needed=True)
    if not file.unchanged:
        return AuditRow(
            name,
            _ISOLATION,
            AuditState.NOT_MET,
            f"{path} was changed by others since the agent wrote it",
            "a running agent puts it right within seconds; own partitions go into "
            "[hpc_fabric_agent]own_partitions_file",
            needed=True,
        )
    members = sum(map(len, file.layout.partitions.values()))
    found = f"ticket {file.ticket}: {len(file.layout.partitions)} networks, {members} members"
    return AuditRow(name, _ISOLATION, AuditState.MET, found, needed=True)


def describe_loose_ports(ports: Iterable[Any]) -> list[AuditRow]:
    """Build audit rows for ports of Neutron that have a host and are not bound.

    :param ports: objects of openstacksdk.
    """
    return [
        AuditRow(
            f"port {port.id}",
            _ISOLATION,
            AuditState.NOT_MET,
            f"{port.binding_vif_type} on host {port.binding_host_id}: it has no partition",
            f"openstack port set --host {port.binding_host_id} {port.id}",
        )
        for port in ports
        if port.binding_host_id
        and port.binding_vif_type in _NOT_BOUND
        and port.binding_vnic_type in _KINDS
    ]


def describe_agents(agents: Iterable[Any], fabric: str | None) -> list[AuditRow]:
    """Build audit rows for faults of this fabric's agents, and one if none of them is alive.

    :param agents: objects of openstacksdk, also of other fabrics.
    """
    rows = []
    lives = False
    for agent in agents:
        if not is_agent_of_fabric(agent, fabric):
            continue
        configuration = agent.configuration or {}
        lives = lives or bool(agent.is_alive)
        rows += [
            AuditRow(f"agent {agent.host}", _ISOLATION, AuditState.NOT_MET, str(fault))
            for fault in configuration.get("faults", ())
        ]
    if not lives:
        found = f"Neutron has no live agent of the fabric {fabric}: ports cannot be bound"
        rows.append(AuditRow("agent", _ISOLATION, AuditState.NOT_MET, found, f"start {_AGENT}"))
    return rows


def _connect_network(cloud: str) -> Any:
    try:
        import openstack
    except ImportError as error:
        raise CommandError("openstacksdk is not installed: pip install openstacksdk") from error
    try:
        return openstack.connect(cloud=cloud).network
    except Exception as error:  # Configuration and catalog have errors of several libraries.
        raise CommandError(f"the cloud {cloud!r} cannot be queried: {_one_line(error)}") from error


def _list_all(ask: Callable[[], Iterable[Any]]) -> list[Any]:
    try:
        return list(ask())
    except Exception as error:
        raise CommandError(f"Neutron does not answer: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _print_rows(rows: Sequence[AuditRow], say: Any) -> None:
    names = [row.name for row in rows if is_wrong(row)]
    if names:
        more = ", ..." if names[_NAMED:] else ""
        say(f"{len(names)} of {len(rows)} rows need work: {', '.join(names[:_NAMED])}{more}")
    else:
        say(f"partitions are kept apart: {len(rows)} rows need no work")
    for row in rows:
        requirement = f" [{row.requirement}]" if row.requirement else ""
        _print_wrapped(f"{row.state.value:>13}  ", f"{row.name}{requirement}: {row.found}", say)
        _print_wrapped(" " * 17, row.cure, say)


def _print_wrapped(begin: str, text: str, say: Any) -> None:
    """Print a text in lines of 100 columns at most, if it has no longer word."""
    lines = textwrap.wrap(
        printable_text(text),
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        say(line)
