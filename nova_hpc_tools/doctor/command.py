# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc doctor``: what is wrong with a node, a controller, Placement or a fleet."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from oslo_config import cfg

from nova_hpc.topology.peer_wish import Wish
from nova_hpc.wire import findings as document
from nova_hpc.wire.findings import Findings, Said
from nova_hpc.wire.version import WireError
from nova_hpc_tools.adopt import configure_options, configured, prepare, settings, spec_entries
from nova_hpc_tools.adopt import declaration_file as node_file
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.adopt.configure import Configure, Work
from nova_hpc_tools.adopt.findings import CHECKS, Finding, Severity, status
from nova_hpc_tools.base import Answer, CommandError, List
from nova_hpc_tools.doctor import checks_cloud as doctor_cloud
from nova_hpc_tools.doctor import checks_entries as doctor_entries
from nova_hpc_tools.doctor import checks_node as doctor_node
from nova_hpc_tools.doctor import facts_host as doctor_host
from nova_hpc_tools.doctor import facts_nova as doctor_nova
from nova_hpc_tools.doctor import facts_records as doctor_records
from nova_hpc_tools.doctor import facts_service as doctor_service
from nova_hpc_tools.doctor import other_checkers as doctor_others
from nova_hpc_tools.doctor.checks_cloud import Controller, Placement
from nova_hpc_tools.doctor.checks_node import Facts, Needless
from nova_hpc_tools.snapshot import SnapshotError

NODE, CONTROLLER, PLACEMENT, CLOUD = "node", "controller", "placement", "cloud"
_COLUMNS: Final = ("Node", "Severity", "Check", "Seen", "Why", "Cure", "Docs")
_LARGEST: Final = 1 << 24
_GOVERNOR: Final = "governor"
_TABLET: Final = "usbtablet"

#: Options of Nova and Placement with their defaults (nova/conf/scheduler.py, pci.py, libvirt.py,
#: compute.py, vnc.py, spice.py and quota.py of 32 to 34; placement/conf/placement.py of 13 to 16).
_NOVA: Final[Mapping[str, Sequence[cfg.Opt]]] = {
    "DEFAULT": [
        cfg.StrOpt("compute_driver"),
        cfg.StrOpt("pointer_model", default=_TABLET),
    ],
    "vnc": [cfg.BoolOpt("enabled", default=True)],
    "spice": [
        cfg.BoolOpt("enabled", default=False),
        cfg.BoolOpt("agent_enabled", default=True),
    ],
    "compute": [cfg.StrOpt(name) for name in settings.CPU_SETS],
    "pci": [
        *node_config.PCI,
        cfg.BoolOpt("report_in_placement", default=False),
    ],
    "filter_scheduler": [
        cfg.ListOpt("enabled_filters", default=list(settings.NOVA_FILTERS)),
        cfg.MultiStrOpt("available_filters", default=["nova.scheduler.filters.all_filters"]),
        cfg.ListOpt("weight_classes", default=[settings.ALL_WEIGHERS]),
        cfg.BoolOpt("pci_in_placement", default=False),
    ],
    "scheduler": [cfg.IntOpt(settings.NOVA_LIMIT, default=settings.FEWEST_CANDIDATES)],
    "quota": [cfg.IntOpt("server_group_members", default=10)],
    "libvirt": [
        cfg.StrOpt("connection_uri", default=""),
        cfg.BoolOpt("cpu_power_management", default=False),
        cfg.StrOpt("cpu_power_management_strategy", default="cpu_state"),
        cfg.IntOpt("mem_stats_period_seconds", default=10),
    ],
}
_PLACEMENT: Final[Mapping[str, Sequence[cfg.Opt]]] = {
    "placement": [
        cfg.StrOpt("allocation_candidates_generation_strategy", default="depth-first"),
        cfg.IntOpt(settings.PLACEMENT_LIMIT, default=-1),
        cfg.IntOpt("allocation_conflict_retry_count", default=10),
    ]
}


class Doctor(List):
    """Say what is wrong, why it matters, and what makes it right.

    Looks at this machine or the capture of another one, at what its services
    are told, and at its declaration; with --part cloud, at what Nova and
    Placement have of all nodes; changes nothing. With --merge, at what
    the doctor has found on many nodes. The exit status is 0 where nothing is
    wrong, 1 where something is (warnings), 3 where it keeps servers from
    their devices or other teams from theirs (errors), and 2 where nothing
    could be read.
    """

    acts_with = ()
    errors = (*Configure.errors, SnapshotError, WireError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_options(parser)
        parser.add_argument(
            "--others",
            action="store_true",
            help="run virt-host-validate and oslo-config-validator, too, and say what they find",
        )
        parser.add_argument(
            "--merge",
            type=Path,
            metavar="DIR",
            help="put together what -f json has written on many nodes, one .json file each",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Look, and say it."""
        args = parsed_args
        if args.merge is not None:
            return self._answer(*_merged(args.merge))
        if args.others and args.root != Path("/"):
            raise CommandError("--others looks at this machine, and --root names another one")
        here = look_here(args)
        found = [*here.found]
        if args.others:
            found += doctor_others.look(node_config.files(args.config), libvirt=here.libvirt)
        said = tuple(map(_said, found))
        everything = Findings(here.node, said, here.aliases)
        rows = [(each.node or here.node, one) for each, one in zip(found, said, strict=True)]
        answer = self._answer(rows, status(found))
        return attrs.evolve(answer, document=lambda: document.dumps(everything))

    def _answer(self, rows: Sequence[tuple[str | None, Said]], code: int) -> Answer:
        for node, each in rows:
            name = f"{node}: " if node else ""
            self.say(f"{each.severity.upper()} {name}{each.seen} [{each.check}]")
            self.say(f"  {each.why}")
            self.say(f"  Cure: {each.cure}")
            self.say(f"  {each.docs}")
        if not rows:
            self.say("Nothing is wrong.")
        cells = [
            (node or "", each.severity, each.check, each.seen, each.why, each.cure, each.docs)
            for node, each in rows
        ]
        return Answer(_COLUMNS, cells, status=code)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare where to look."""
    configure_options.add_place(parser)
    node_config.add_options(parser, "the services that are looked at")
    parser.add_argument(
        "--part",
        choices=(NODE, CONTROLLER, PLACEMENT, CLOUD),
        action="append",
        help="what this machine is; cloud: compare what Nova, Placement and the fabric map have "
        "of all nodes, where nova-manage runs; may be repeated (default: node)",
    )


def _said(found: Finding) -> Said:
    return Said(
        check=found.check,
        severity=found.severity.word,
        seen=found.seen,
        why=CHECKS[found.check].why,
        cure=found.cure,
        docs=found.anchor,
    )


# --- this machine -----------------------------------------------------------------------


@attrs.frozen
class Here:
    """What was looked at, and what is wrong."""

    found: tuple[Finding, ...]
    #: Its name; None: nobody knows.
    node: str | None
    #: Values of ``[pci]alias``.
    aliases: tuple[str, ...]
    #: Where libvirt would say whether it is new enough; None: nothing depends on that.
    libvirt: str | None = None


def look_here(args: argparse.Namespace) -> Here:
    """What is wrong here.

    :raises Exception: what :attr:`Doctor.errors` names, and CommandError.
    """
    parts = args.part or [NODE]
    nova = node_config.load(node_config.files(args.config), _NOVA)
    if set(parts) == {CLOUD}:
        # Where no node is looked at, none has to be there.
        found = doctor_records.look(args.config)
        return Here(tuple(found), socket.gethostname(), tuple(nova.pci.alias))
    node_parts = (settings.COMMON, settings.COMPUTE)
    expected = node_parts if NODE in parts else (settings.CONTROLLER,)
    work = Work.read(configure_options.as_configure(args, expected))
    hosts = (work.wishes.limits.hosts if work.wishes.limits else None) or 1
    found = []
    libvirt = None
    if NODE in parts:
        facts = _facts(work, nova)
        found += doctor_node.look(facts)
        found += doctor_entries.look(
            doctor_nova.read(
                work.root,
                work.node,
                nova,
                facts.spec.lines(),
            )
        )
        if doctor_service.wanted(work.node, facts.offered, nova):
            libvirt = doctor_service.uri(nova)
    limit = None
    if CONTROLLER in parts:
        told = _controller(args.config, nova)
        limit = told.limit
        found += doctor_cloud.controller(told, hosts)
    if PLACEMENT in parts:
        found += doctor_cloud.placement(_placement(), limit, hosts)
    if CLOUD in parts:
        found += doctor_records.look(args.config, alone=False)
    return Here(tuple(found), work.node.hostname, tuple(nova.pci.alias), libvirt)


def _facts(work: Work, nova: Any) -> Facts:
    spec, _ = work.render()
    table = work.table()
    lines = spec_entries.translated(spec_entries.lines(nova.pci.device_spec), work.node)
    never = node_file.withheld(
        work.root, work.node, table, lines, (), ("all",), work.told.anyway
    ).reasons
    sets = {name: value for name in settings.CPU_SETS if (value := nova.compute[name]) is not None}
    dedicated = configured.parse_cpus(sets.get(settings.CPU_SETS[1], "")) or frozenset()
    host = doctor_host.read(
        work.root,
        work.node,
        [each for offer in spec.offers for each in (offer.provider, *offer.functions)],
        dedicated & work.node.cpus,
    )
    libvirt = nova.libvirt
    slows = libvirt.cpu_power_management and libvirt.cpu_power_management_strategy == _GOVERNOR
    facts = Facts(
        node=work.node,
        roles=table,
        spec=spec,
        wishes=work.wishes,
        device_spec=lines,
        driver=nova.compute_driver,
        report=nova.pci.report_in_placement,
        cpu_sets=sets,
        never=never,
        drift=prepare.drift(work),
        host=attrs.evolve(host, nova_slows=slows),
        peer=Wish(nova.hpc.peer_to_peer),
        nvlink=nova.hpc.nvlink_backend,
        own_roles=bool(work.told.other_roles),
        stand_ins=work.stand_ins,
        needless=tuple(_needless(nova)),
    )
    service = doctor_service.read(work.root, work.node, facts.offered, nova)
    return attrs.evolve(facts, service=service)


def _needless(nova: Any) -> Iterator[Needless]:
    """As nova/virt/libvirt/driver.py gives them to every guest whose image says nothing of it."""
    agent = nova.spice.enabled and nova.spice.agent_enabled and not nova.vnc.enabled
    if nova.pointer_model == _TABLET and not agent:
        what = "a USB tablet with its controller"
        yield Needless(what, "[DEFAULT]pointer_model", _TABLET, "ps2mouse")
    seconds = nova.libvirt.mem_stats_period_seconds
    if seconds > 0:
        # Memory of devices is pinned: a balloon can give nothing back.
        what = f"a memory balloon that is asked every {seconds} s"
        yield Needless(what, "[libvirt]mem_stats_period_seconds", str(seconds), "0")


def _controller(words: Sequence[str], nova: Any) -> Controller:
    by_file, weighers = {}, {}
    for path in node_config.files(words, "nova-scheduler"):
        alone = node_config.load([path], _NOVA)
        where = alone.get_location("enabled_filters", "filter_scheduler")
        if where is not None and where.location.is_user_controlled:
            by_file[str(path)] = tuple(alone.filter_scheduler.enabled_filters)
        where = alone.get_location("weight_classes", "filter_scheduler")
        if where is not None and where.location.is_user_controlled:
            weighers[str(path)] = tuple(alone.filter_scheduler.weight_classes)
    scheduler = nova.filter_scheduler
    return Controller(
        filters=tuple(scheduler.enabled_filters),
        available=tuple(scheduler.available_filters),
        weighers=tuple(scheduler.weight_classes),
        pci_in_placement=scheduler.pci_in_placement,
        limit=nova.scheduler[settings.NOVA_LIMIT],
        aliases=tuple(nova.pci.alias),
        group_members=nova.quota.server_group_members,
        cache=nova.hpc[settings.CACHE],
        by_file=by_file,
        weighers_by_file=weighers,
    )


def _placement() -> Placement:
    folder = os.environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    words = [f"--config-file={folder}/placement.conf"] if folder else []
    options = node_config.load(node_config.files(words, "placement", "placement"), _PLACEMENT)
    told = options.placement
    return Placement(
        strategy=told.allocation_candidates_generation_strategy,
        limit=told[settings.PLACEMENT_LIMIT],
        retries=told.allocation_conflict_retry_count,
    )


# --- the fleet --------------------------------------------------------------------------


def _merged(folder: Path) -> tuple[list[tuple[str | None, Said]], int]:
    """What was found on all nodes, and between them; what cannot be read is a finding."""
    if not folder.is_dir():
        raise CommandError(f"--merge: there is no directory {folder}")
    rows: list[tuple[str | None, Said]] = []
    aliases: dict[str, Iterable[str]] = {}
    more: list[Finding] = []
    for path in sorted(folder.glob("*.json")):
        try:
            found = document.loads(path.read_bytes()[:_LARGEST].decode("utf-8"))
        except (OSError, UnicodeDecodeError, WireError) as error:
            cure = "Run nova-hpc doctor -f json there again."
            more.append(Finding("not-read", f"{path.name}: {error}.", cure, path.stem))
            continue
        name = found.node or path.stem
        aliases[name] = found.aliases
        rows += [(name, each) for each in found.findings]
    if not aliases and not more:
        raise CommandError(f"--merge: no .json file in {folder}")
    more += doctor_cloud.fleet(aliases)
    rows += [(each.node, _said(each)) for each in more]
    known = {each.word: each.value for each in Severity}
    # One of a later release counts as a warning at least.
    return rows, max((known.get(each.severity, 1) for _, each in rows), default=0)
