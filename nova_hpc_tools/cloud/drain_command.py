# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc drain``: servers leave a host, aligned and inside their domains."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.placement.flavor import has_fabric_keys, has_hpc_keys
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_tools.base import CommandAnswer, CommandError, Count, ListCommand
from nova_hpc_tools.cloud import announcement, drain, server_moves
from nova_hpc_tools.cloud.announcement import Announcement
from nova_hpc_tools.cloud.drain import Move
from nova_hpc_tools.cloud.drain_api import (
    COLD,
    EVACUATION,
    MOVED,
    BindingGroup,
    DrainCloud,
    DrainMigration,
    DrainServer,
)
from nova_hpc_tools.cloud.explain import find_nodes
from nova_hpc_tools.cloud.server_moves import DrainStopError, MovePatience
from nova_hpc_tools.fabric import nova_aggregates
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.planned_time import parse_planned_time
from nova_hpc_tools.site import source_options
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers

_TO_DO: Final = 1
#: The reason that operators read in ``openstack compute service list --long``.
_REASON: Final = "nova-hpc drain"
_COLUMNS: Final = ("Server", "ID", "To", "Level", "Domain", "Done", "Reason", "Planned")
_CONFIRM: Final = "confirm"
_SERVICE: Final = "nova-compute"


@attrs.frozen
class _HostSurvey:
    """The servers on the drained host, and the moves from there that have begun."""

    service: Any
    #: Servers that use keys of this project.
    servers: tuple[DrainServer, ...]
    #: Number of other servers; they stay.
    others: int
    #: Moves that are under way or wait for their confirmation.
    begun: tuple[Move, ...]
    #: UUID of a server -> why it cannot leave.
    refusals: Mapping[str, str]


class Drain(ListCommand):
    """Move the servers with hpc: keys off a host.

    Plans all moves first, with the scheduler's own functions: each server goes to a host of its
    domain (hpc:fabric) where its devices are as close as its flavor requires, and which its server
    group allows. If one of them has no place, nothing is changed. With --yes the compute service is
    disabled. Then one server after the other is migrated cold, checked by Nova's scheduler, and
    confirmed. The command ends at the first server that does not leave, and prints its state.
    Running it again goes on. Servers without hpc: keys stay. The exit status is 0 if no server with
    hpc: keys is left on the host, 1 if some are (yet), 2 if it cannot be done.

    With --dead the host is off and its nova-compute is down. Servers with a place are evacuated:
    Nova builds them again on the host of the plan. The others are left as they are, each with its
    reason; Nova would set them to ERROR. Disks that no other host can read start from their image.

    With --at, work on the host is announced to the owners of all its servers, and nothing moves.
    Each server gets a tag with the time. --no-at removes the tags. The exit status is 1 if Nova
    refuses a tag.
    """

    acts_with = ("yes", "at", "no_at")
    errors = (SnapshotError, NovaApiError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="HOST", help="as Nova calls its compute service")
        step = parser.add_mutually_exclusive_group()
        step.add_argument("--yes", action="store_true", help="carry out the shown steps")
        step.add_argument(
            "--at",
            type=parse_planned_time,
            metavar="TIME",
            help="announce now to owners that work on the host begins at TIME, like "
            "2026-12-04T08:00Z; an earlier announcement is replaced",
        )
        step.add_argument(
            "--no-at", action="store_true", help="no work is planned any more: remove the tags"
        )
        parser.add_argument(
            "--dead",
            action="store_true",
            help="the host is switched off: evacuate the servers that have a place elsewhere",
        )
        parser.add_argument(
            "--server",
            action="append",
            default=[],
            metavar="ID",
            help="with --dead: only this server; may be given several times",
        )
        parser.add_argument(
            "--timeout",
            type=Count(1),
            default=1800,
            metavar="SECONDS",
            help="how long one server may take, default: %(default)s",
        )
        source_options.add_config_options(
            parser.add_argument_group("where the cloud is read"), "Nova's scheduler"
        )
        group = parser.add_argument_group("which cloud")
        group.add_argument(
            "--os-cloud",
            metavar="NAME",
            help="name in clouds.yaml (default: OS_CLOUD, or OS_AUTH_URL and the like in the "
            "environment). Its user needs the admin role",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Look, plan, and with --yes do it."""
        args = parsed_args
        cloud = self.cloud(args)
        if args.server and not args.dead:
            raise CommandError("--server needs --dead: a live host is drained as a whole")
        if args.at or args.no_at:
            if args.dead:
                raise CommandError("--at and --no-at move nothing: leave --dead out")
            return self._announce(cloud, args.host, args.at or "")
        look = _survey_drained_host(cloud, args.host, args.dead, frozenset(args.server))
        taken = cloud_readers.obtain_snapshot(None, args.config)
        find_nodes(taken, args.host)
        make_plan = drain.plan_evacuation if args.dead else drain.plan_drain
        # A live host's plan names all obstacles at once; a dead host's leaves such servers out.
        planned = [
            server for server in look.servers if not (args.dead and server.uuid in look.refusals)
        ]
        plan = make_plan(taken, args.host, _collect_movers(cloud, planned, args.host))
        refusals = {**plan.refusals, **look.refusals}
        moves = (*look.begun, *plan.moves)
        if refusals and not args.dead:
            reasons = map(printable_text, sorted(refusals.values()))
            raise CommandError("\n".join([f"nothing was changed on {args.host}:", *reasons]))
        for problem in taken.problems:
            print(f"note: {printable_text(problem)}", file=sys.stderr)
        if look.others:
            print(
                f"note: {look.others} servers without hpc: keys stay on {args.host}",
                file=sys.stderr,
            )
        for reason in sorted(refusals.values()):
            print(f"stays: {printable_text(reason)}", file=sys.stderr)
        done: list[Move] = []
        stop_reason: str | None = None
        patience = MovePatience(args.timeout)
        failed: dict[str, str] = {}
        if args.yes and args.dead:
            done, failed = self._evacuate(cloud, args.host, look, plan.moves, patience)
        elif args.yes:
            done, stop_reason = self._do(cloud, args.host, look, plan.moves, patience)
        for reason in failed.values():
            print(f"failed: {printable_text(reason)}", file=sys.stderr)
        if args.yes:
            self._clear_moved_servers(cloud)
        if stop_reason is not None:
            print(f"{self._name}: {stop_reason}", file=sys.stderr)
        names = {server.uuid: server.name for server in look.servers}
        times = {server.uuid: server.planned for server in look.servers}
        rows: list[tuple[object, ...]] = [
            (
                *(move.name, move.server, _format_move_target(move), move.level, move.domain),
                *(move in done, failed.get(move.server, "")),
                "" if move in done else times.get(move.server, ""),
            )
            for move in moves
        ]
        rows += [
            (names.get(uuid, uuid), uuid, "", "", "", False, reason, times.get(uuid, ""))
            for uuid, reason in refusals.items()
        ]
        status = 0 if stop_reason is None and len(done) == len(rows) else _TO_DO
        return CommandAnswer(
            columns=_COLUMNS,
            rows=rows,
            status=status,
            show=lambda: _print_drain_result(
                args.host, moves, done, args.yes, stop_reason, len(refusals)
            ),
        )

    def cloud(self, args: argparse.Namespace) -> DrainCloud:
        """The cloud; tests have one of their own."""
        return DrainCloud(nova_aggregates.connect_compute_proxy(args))

    def _announce(self, cloud: DrainCloud, host: str, time: str) -> CommandAnswer:
        """Announce a time to the owners of the host's servers; "" takes announcements back."""
        cloud.service(host)
        results: list[Announcement] = []
        for result in announcement.announce_work(cloud, host, time):
            self._report_announcement(result)
            results.append(result)
        if not time:
            self._clear_moved_servers(cloud)
        failed = sum(bool(result.failure) for result in results)
        count = _format_server_count(len(results) - failed)
        return CommandAnswer(
            columns=_COLUMNS,
            rows=[
                (
                    *(result.server.name, result.server.uuid, "", "", ""),
                    *(not result.failure, result.failure, "" if result.failure else time),
                )
                for result in results
            ],
            status=_TO_DO if failed else 0,
            show=lambda: print(
                f"work on {host} at {time} is announced to the owners of {count}"
                if time
                else f"no work on {host} is announced any more; {count} had an announcement"
            ),
        )

    def _clear_moved_servers(self, cloud: DrainCloud) -> None:
        """Remove announcements from servers that have left the announced host."""
        try:
            for result in announcement.clear_moved_servers(cloud):
                self._report_announcement(result)
        except NovaApiError as error:
            print(f"note: former announcements stay: {printable_text(str(error))}", file=sys.stderr)

    def _report_announcement(self, result: Announcement) -> None:
        server = f"{result.server.name} ({result.server.uuid})"
        if result.failure:
            print(f"failed: {server}: {printable_text(result.failure)}", file=sys.stderr)
        elif result.time:
            self.say(f"done: {server} is announced for {result.time}")
        else:
            self.say(f"done: {server} has no announcement any more")

    def _do(
        self,
        cloud: DrainCloud,
        host: str,
        look: _HostSurvey,
        moves: Sequence[Move],
        patience: MovePatience,
    ) -> tuple[list[Move], str | None]:
        """Do the moves in order; returns the finished moves, and the reason if it stopped."""
        done: list[Move] = []
        total = len(look.begun) + len(moves)
        at = ""
        try:
            at = f"disabling nova-compute on {host}"
            self._disable(cloud, host, look)
            for move in (*look.begun, *moves):
                at = _format_move(move)
                act = (
                    server_moves.await_server_move
                    if move in look.begun
                    else server_moves.move_server_off
                )
                new_host = act(cloud, host, move, patience)
                self.say(f"done: {move.name} is {f'on {new_host}' if new_host else 'deleted'}")
                done.append(move)
        except (DrainStopError, NovaApiError) as error:
            return done, _explain_drain_stop(host, len(done), total, f"{at}: {error}")
        except KeyboardInterrupt:
            print(
                f"{self._name}: {_explain_drain_stop(host, len(done), total, at)}", file=sys.stderr
            )
            raise
        left = [server for server in cloud.servers_of(host) if _has_hpc_wishes(server)]
        if left:
            names = ", ".join(server.name for server in left)
            return done, f"servers came to {host} meanwhile: {names}; run it again"
        return done, None

    def _evacuate(
        self,
        cloud: DrainCloud,
        host: str,
        look: _HostSurvey,
        moves: Sequence[Move],
        patience: MovePatience,
    ) -> tuple[list[Move], dict[str, str]]:
        """Evacuate one server after the other; returns the finished moves, and server -> failure.

        One failure does not end it.
        """
        done: list[Move] = []
        failed: dict[str, str] = {}
        self._disable(cloud, host, look)
        for move in (*look.begun, *moves):
            begun = move in look.begun
            act = server_moves.await_evacuation if begun else server_moves.evacuate_server
            try:
                new_host = act(cloud, host, move, patience)
            except (DrainStopError, NovaApiError) as error:
                failed[move.server] = f"{move.name} ({move.server}): {error}"
                continue
            self.say(f"done: {move.name} is {f'on {new_host}' if new_host else 'deleted'}")
            done.append(move)
        return done, failed

    def _disable(self, cloud: DrainCloud, host: str, look: _HostSurvey) -> None:
        if look.service.get("status") != "disabled":
            cloud.disable(look.service, _REASON)
            self.say(f"done: nova-compute on {host} takes no new servers")


def _survey_drained_host(
    cloud: DrainCloud, host: str, dead: bool = False, only: frozenset[str] = frozenset()
) -> _HostSurvey:
    """Find the servers that have to leave, and those that cannot.

    :param dead: whether the host is switched off.
    :param only: UUIDs of the servers that count; all if empty.
    :raises CommandError: the host is not dead.
    """
    service = cloud.service(host)
    if dead and service.get("state") != "down":
        raise CommandError(
            f"nova-compute on {host} is {service.get('state')}: Nova evacuates no server of it; "
            "leave --dead out"
        )
    there = [server for server in cloud.servers_of(host) if not only or server.uuid in only]
    migrations = cloud.moves_from(host)
    moving = {migration.server for migration in migrations}
    refusals: dict[str, str] = {}
    begun: list[Move] = []
    for migration in migrations:
        server = cloud.server(migration.server)
        if server is None or not _has_hpc_wishes(server) or (only and server.uuid not in only):
            continue
        if migration.kind == (EVACUATION if dead else COLD):
            begun.append(Move(migration.server, server.name, migration.target or _CONFIRM))
        else:
            refusals[server.uuid] = _explain_other_move(migration, server, host, dead)
    servers = tuple(
        server for server in there if _has_hpc_wishes(server) and server.uuid not in moving
    )
    others = sum(not _has_hpc_wishes(server) for server in there)
    unmovable = server_moves.find_unmovable_servers(servers, dead)
    return _HostSurvey(service, servers, others, tuple(begun), {**refusals, **unmovable})


def _explain_other_move(
    migration: DrainMigration, server: DrainServer, host: str, dead: bool
) -> str:
    head = f"{server.name} ({server.uuid}): "
    if dead or migration.kind == EVACUATION:
        return f"{head}its {migration.kind} ends only when {host} is back"
    if migration.status == MOVED:
        return head + (
            f"its resize waits for its user, and holds devices on {host} until then: confirm or "
            "revert it (openstack server resize confirm)"
        )
    return f"{head}it is being resized: wait for it"


def _has_hpc_wishes(server: DrainServer) -> bool:
    return has_hpc_keys(server.extra_specs) or has_fabric_keys(server.extra_specs)


def _collect_movers(
    cloud: DrainCloud, servers: Sequence[DrainServer], host: str
) -> list[drain.DrainedServer]:
    """The servers with the hosts that their server groups forbid."""
    groups = cloud.binding_groups() if servers else []
    servers_with_groups = [(server, _server_groups_of(server, groups)) for server in servers]
    concerned = frozenset(
        member
        for _, server_groups in servers_with_groups
        for group in server_groups
        for member in group.members
    )
    hosts = cloud.hosts_of(concerned) if concerned else {}
    return [
        drain.DrainedServer(
            uuid=server.uuid,
            name=server.name,
            flavor=server.flavor,
            extra_specs=server.extra_specs,
            apart=_hosts_kept_apart(server, server_groups, hosts),
            tied=_explain_affinity_tie(server, server_groups, hosts, host),
        )
        for server, server_groups in servers_with_groups
    ]


def _server_groups_of(server: DrainServer, groups: Iterable[BindingGroup]) -> list[BindingGroup]:
    return [group for group in groups if server.uuid in group.members]


def _hosts_of_other_members(
    server: DrainServer, group: BindingGroup, hosts: dict[str, str]
) -> list[str]:
    return [hosts[member] for member in group.members if member != server.uuid and member in hosts]


def _hosts_kept_apart(
    server: DrainServer, groups: Iterable[BindingGroup], hosts: dict[str, str]
) -> frozenset[str]:
    return frozenset(
        host
        for group in groups
        if group.policy == "anti-affinity"
        for host, count in Counter(_hosts_of_other_members(server, group, hosts)).items()
        if count >= group.most
    )


def _explain_affinity_tie(
    server: DrainServer, groups: Iterable[BindingGroup], hosts: dict[str, str], host: str
) -> str:
    for group in groups:
        if group.policy == "affinity" and host in _hosts_of_other_members(server, group, hosts):
            return (
                f"its server group {group.uuid} has the policy affinity, so Nova keeps it on the "
                f"host of its other members, {host}"
            )
    return ""


def _format_move_target(move: Move) -> str:
    return move.target or "(Nova chooses)"


def _format_move(move: Move) -> str:
    level = f", level {move.level}" if move.level else ""
    domain = f", in {move.domain}" if move.domain else ""
    return f"{move.name} ({move.server}) to {_format_move_target(move)}{level}{domain}"


def _explain_drain_stop(host: str, done: int, total: int, what: str) -> str:
    again = shell_command("openstack", "compute", "service", "set", "--enable", host, _SERVICE)
    return (
        f"{done} of {total} servers have left {host}, which takes no new ones; stopped at {what}; "
        f"run it again to go on, or let {host} take servers again: {again}"
    )


def _format_server_count(count: int) -> str:
    return f"{count} server{'' if count == 1 else 's'}"


def _print_drain_result(
    host: str,
    moves: Sequence[Move],
    done: Sequence[Move],
    yes: bool,
    stop_reason: str | None,
    refused: int,
) -> None:
    if not moves and refused:
        print(f"no server with hpc: keys of {host} has a place elsewhere")
    elif not moves:
        print(f"no server with hpc: keys is on {host}")
    elif not yes:
        for move in moves:
            print(f"to do: {_format_move(move)}")
        print(f"{_format_server_count(len(moves))}; nothing was changed, --yes does it")
    elif stop_reason is None:
        print(
            f"{_format_server_count(len(done))} {'has' if len(done) == 1 else 'have'} left {host}"
        )
