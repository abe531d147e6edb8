# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc drain``: servers leave a host, aligned and inside their domains."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from nova_hpc.outside.text import printable, shell_command
from nova_hpc.placement.flavor import has_fabric_keys, has_hpc_keys
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.base import Answer, CommandError, Count, List
from nova_hpc_tools.cloud import drain
from nova_hpc_tools.cloud import server_moves as drain_run
from nova_hpc_tools.cloud.drain import Move
from nova_hpc_tools.cloud.drain_api import COLD, MOVED, DrainCloud, Group, Migration, Seen
from nova_hpc_tools.cloud.explain import find_nodes
from nova_hpc_tools.cloud.server_moves import Patience, StopError
from nova_hpc_tools.fabric import nova_aggregates as fabric_cloud
from nova_hpc_tools.fabric.nova_aggregates import CloudError
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers

_TO_DO: Final = 1
#: What operators read in ``openstack compute service list --long``.
_REASON: Final = "nova-hpc drain"
_COLUMNS: Final = ("Server", "ID", "To", "Level", "Domain", "Done")
_CONFIRM: Final = "confirm"
_SERVICE: Final = "nova-compute"


@attrs.frozen
class _Look:
    """What is on the host, and what is on its way from there."""

    service: Any
    #: With wishes of this project's.
    servers: tuple[Seen, ...]
    #: How many others; they stay.
    others: int
    #: Cold migrations that are under way or wait for their confirmation.
    begun: tuple[Move, ...]
    refusals: tuple[str, ...]


class Drain(List):
    """Move the servers with hpc: keys off a host.

    Plans all moves first, with the scheduler's own functions: each server goes to a host of
    its domain (hpc:fabric) where its devices are as close as its flavor asks, and its server
    group allows it. Where one of them has no place, nothing is changed. With --yes the
    compute service is disabled, and then one server after the other is migrated cold, checked
    by Nova's scheduler, and confirmed. The first that does not leave ends it, with the state
    said; running it again goes on. Servers without hpc: keys stay. The exit status is 0 when
    no server with hpc: keys is left on the host, 1 when some are (yet), 2 when it cannot be
    done.
    """

    acts_with = ("yes",)
    errors = (SnapshotError, CloudError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="HOST", help="as Nova calls its compute service")
        parser.add_argument("--yes", action="store_true", help="do what is shown")
        parser.add_argument(
            "--timeout",
            type=Count(1),
            default=1800,
            metavar="SECONDS",
            help="how long one server may take, default: %(default)s",
        )
        node_config.add_options(
            parser.add_argument_group("where the cloud is read"), "Nova's scheduler"
        )
        group = parser.add_argument_group("which cloud")
        group.add_argument(
            "--os-cloud",
            metavar="NAME",
            help="name in clouds.yaml (default: OS_CLOUD, or OS_AUTH_URL and the like in the "
            "environment); its user needs the admin role",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Look, plan, and with --yes do it."""
        args = parsed_args
        cloud = self.cloud(args)
        look = _look(cloud, args.host)
        taken = cloud_readers.take(None, args.config)
        find_nodes(taken, args.host)
        plan = drain.plan(taken, args.host, _movers(cloud, look.servers, args.host))
        refusals = [*look.refusals, *plan.refusals]
        if refusals:
            raise CommandError(
                "\n".join(
                    [f"nothing was changed on {args.host}:", *map(printable, sorted(refusals))]
                )
            )
        for problem in taken.problems:
            print(f"note: {printable(problem)}", file=sys.stderr)
        if look.others:
            print(
                f"note: {look.others} servers without hpc: keys stay on {args.host}",
                file=sys.stderr,
            )
        moves = (*look.begun, *plan.moves)
        done: list[Move] = []
        why: str | None = None
        if args.yes:
            done, why = self._do(cloud, args.host, look, plan.moves, Patience(args.timeout))
        if why is not None:
            print(f"{self._name}: {why}", file=sys.stderr)
        rows = [
            (move.name, move.server, _target(move), move.level, move.domain, at < len(done))
            for at, move in enumerate(moves)
        ]
        status = 0 if why is None and len(done) == len(moves) else _TO_DO
        return Answer(
            columns=_COLUMNS,
            rows=rows,
            status=status,
            show=lambda: _show(args.host, moves, done, args.yes, why),
        )

    def cloud(self, args: argparse.Namespace) -> DrainCloud:
        """The cloud; tests have one of their own."""
        return DrainCloud(fabric_cloud.compute(args))

    def _do(
        self,
        cloud: DrainCloud,
        host: str,
        look: _Look,
        moves: Sequence[Move],
        patience: Patience,
    ) -> tuple[list[Move], str | None]:
        """Do it in order; what was done, and why no more."""
        done: list[Move] = []
        total = len(look.begun) + len(moves)
        at = ""
        try:
            if look.service.get("status") != "disabled":
                at = f"disabling nova-compute on {host}"
                cloud.disable(look.service, _REASON)
                self.say(f"done: nova-compute on {host} takes no new servers")
            for move in (*look.begun, *moves):
                at = _line(move)
                act = drain_run.finish if move in look.begun else drain_run.leave
                now = act(cloud, host, move, patience)
                self.say(f"done: {move.name} is {f'on {now}' if now else 'deleted'}")
                done.append(move)
        except (StopError, CloudError) as error:
            return done, _stopped(host, len(done), total, f"{at}: {error}")
        except KeyboardInterrupt:
            print(f"{self._name}: {_stopped(host, len(done), total, at)}", file=sys.stderr)
            raise
        left = [each for each in cloud.servers_of(host) if _is_ours(each)]
        if left:
            names = ", ".join(each.name for each in left)
            return done, f"servers came to {host} meanwhile: {names}; run it again"
        return done, None


def _look(cloud: DrainCloud, host: str) -> _Look:
    """What has to leave, and why it cannot."""
    service = cloud.service(host)
    there = cloud.servers_of(host)
    migrations = cloud.moves_from(host)
    moving = {each.server for each in migrations}
    refusals: list[str] = []
    begun: list[Move] = []
    for each in migrations:
        server = cloud.server(each.server)
        if server is None or not _is_ours(server):
            continue
        if each.kind == COLD:
            begun.append(Move(each.server, server.name, each.target or _CONFIRM))
        else:
            refusals.append(_resize(each, server, host))
    servers = tuple(each for each in there if _is_ours(each) and each.uuid not in moving)
    others = sum(not _is_ours(each) for each in there)
    refusals += drain_run.unmovable(servers)
    return _Look(service, servers, others, tuple(begun), tuple(refusals))


def _resize(migration: Migration, server: Seen, host: str) -> str:
    said = f"{server.name} ({server.uuid}): "
    if migration.status == MOVED:
        return said + (
            f"its resize waits for its user, and holds devices on {host} until then: confirm or "
            "revert it (openstack server resize confirm)"
        )
    return f"{said}it is being resized: wait for it"


def _is_ours(server: Seen) -> bool:
    return has_hpc_keys(server.extra_specs) or has_fabric_keys(server.extra_specs)


def _movers(cloud: DrainCloud, servers: Sequence[Seen], host: str) -> list[drain.Mover]:
    """The servers with what their server groups forbid them."""
    groups = cloud.binding_groups() if servers else []
    mine = [(each, _groups_of(each, groups)) for each in servers]
    concerned = frozenset(
        member for _, found in mine for group in found for member in group.members
    )
    hosts = cloud.hosts_of(concerned) if concerned else {}
    return [
        drain.Mover(
            uuid=server.uuid,
            name=server.name,
            flavor=server.flavor,
            extra_specs=server.extra_specs,
            apart=_apart(server, found, hosts),
            tied=_tied(server, found, hosts, host),
        )
        for server, found in mine
    ]


def _groups_of(server: Seen, groups: Iterable[Group]) -> list[Group]:
    return [group for group in groups if server.uuid in group.members]


def _others(server: Seen, group: Group, hosts: dict[str, str]) -> list[str]:
    return [hosts[each] for each in group.members if each != server.uuid and each in hosts]


def _apart(server: Seen, groups: Iterable[Group], hosts: dict[str, str]) -> frozenset[str]:
    return frozenset(
        host
        for group in groups
        if group.policy == "anti-affinity"
        for host, count in Counter(_others(server, group, hosts)).items()
        if count >= group.most
    )


def _tied(server: Seen, groups: Iterable[Group], hosts: dict[str, str], host: str) -> str:
    for group in groups:
        if group.policy == "affinity" and host in _others(server, group, hosts):
            return (
                f"its server group {group.uuid} has the policy affinity, so Nova keeps it on the "
                f"host of its other members, {host}"
            )
    return ""


def _target(move: Move) -> str:
    return move.target or "(Nova chooses)"


def _line(move: Move) -> str:
    level = f", level {move.level}" if move.level else ""
    domain = f", in {move.domain}" if move.domain else ""
    return f"{move.name} ({move.server}) to {_target(move)}{level}{domain}"


def _stopped(host: str, done: int, total: int, what: str) -> str:
    again = shell_command("openstack", "compute", "service", "set", "--enable", host, _SERVICE)
    return (
        f"{done} of {total} servers have left {host}, which takes no new ones; stopped at {what}; "
        f"run it again to go on, or let {host} take servers again: {again}"
    )


def _servers(count: int) -> str:
    return f"{count} server{'' if count == 1 else 's'}"


def _show(
    host: str, moves: Sequence[Move], done: Sequence[Move], yes: bool, why: str | None
) -> None:
    if not moves:
        print(f"no server with hpc: keys is on {host}")
    elif not yes:
        for move in moves:
            print(f"to do: {_line(move)}")
        print(f"{_servers(len(moves))}; nothing was changed, --yes does it")
    elif why is None:
        print(f"{_servers(len(done))} {'has' if len(done) == 1 else 'have'} left {host}")
