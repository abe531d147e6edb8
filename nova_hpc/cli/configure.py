# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc configure``: the settings of a node and of its cloud."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from nova_hpc.cli import include_files, node_config
from nova_hpc.cli.base import Answer, CommandError, Count, List
from nova_hpc.offer import (
    aliases,
    configured,
    declaration,
    device_spec,
    nvlink_sets,
    roles,
    settings,
)
from nova_hpc.offer.configured import Loss
from nova_hpc.offer.declaration import Declaration, DeclarationError
from nova_hpc.offer.identity import Form
from nova_hpc.topology import lstopo, sysfs
from nova_hpc.topology.model import AddressError, InventoryError, Node, normalise_address

_NETWORK: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

#: The files that depend on the inventory.
_OF_THE_NODE: Final = (settings.COMMON, settings.COMPUTE)


class Configure(List):
    """Write the settings of Nova and Placement that this node needs.

    Reads the inventory of this machine (or of a capture) and prints include
    files for Nova and Placement; with --write, shows how they differ from
    those in a directory and writes them there. Running it again changes
    nothing. Filters, weighers and aliases that are configured are added to;
    whatever would be lost is named, and nothing is written.
    """

    errors = (
        InventoryError,
        include_files.IncludeError,
        node_config.ConfigError,
        roles.RoleError,
        nvlink_sets.NvlinkError,
        DeclarationError,
        aliases.ClashError,
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source = parser.add_argument_group("where the inventory comes from")
        one = source.add_mutually_exclusive_group()
        one.add_argument(
            "--root",
            type=Path,
            default=Path("/"),
            metavar="DIR",
            help="directory that holds sys and proc of the node (default: /)",
        )
        one.add_argument(
            "--xml",
            type=Path,
            metavar="FILE",
            help="an lstopo XML instead; it does not tell physical from virtual functions",
        )
        source.add_argument(
            "--also",
            type=Path,
            action="append",
            default=[],
            metavar="PATH",
            help="capture (a directory like --root, or an lstopo XML) of a node of another kind, "
            "whose devices the aliases have to name, too; may be repeated",
        )
        offer = parser.add_argument_group("what is offered to servers")
        node_config.add_options(offer, "Nova's services: what it says is added to")
        offer.add_argument(
            "--device-role",
            action="append",
            metavar="JSON",
            help="a value of [hpc]device_role; given once or more, these replace those of the "
            "configuration and are written to the file of the node",
        )
        offer.add_argument(
            "--nvlink-set",
            action="append",
            metavar="JSON",
            help="a value of [hpc]nvlink_set; given once or more, these replace those of the "
            "configuration (default of the option: all GPUs where the node has NVSwitches)",
        )
        offer.add_argument(
            "--whole-pf",
            action="append",
            default=[],
            metavar="ADDRESS|all",
            help="give this physical function as a whole although virtual functions are switched "
            "on, which are then not offered; may be repeated",
        )
        offer.add_argument(
            "--offer-switches",
            action="store_true",
            help="offer the devices of the role nvswitch, too. Whoever has them decides which GPUs "
            "are linked: only where each server gets all switches of its GPUs, or for the one "
            "machine that manages them",
        )
        offer.add_argument(
            "--leave-out",
            action="append",
            default=[],
            metavar="ADDRESS",
            help="do not offer this device, e.g. an adapter that manages the NVSwitches, or one "
            "that the host uses, nor its virtual functions; may be repeated",
        )
        offer.add_argument(
            "--resource-class",
            action="append",
            default=[],
            metavar="ROLE=NAME",
            help="count the devices of a role as this resource class, and let its alias ask for "
            "any product of it (default: see --role-identity); may be repeated",
        )
        offer.add_argument(
            "--role-identity",
            action="append",
            default=[],
            metavar="ROLE=FORM",
            help="by what Nova tells the devices of a role from others. class: by a resource class "
            "of the role; trait: by a trait, for nodes that have servers; ids: by vendor and "
            "product alone (default: as it is configured, and class where nothing is); may be "
            "repeated",
        )
        offer.add_argument(
            "--trait",
            action="append",
            default=[],
            metavar="ROLE=NAME",
            help="give the devices of a role this trait; may be repeated",
        )
        offer.add_argument(
            "--physical-network",
            action="append",
            default=[],
            metavar="ROLE=NAME",
            help="keep the devices of a role for Neutron's direct ports on this physical network: "
            "no alias asks for them (default: as it is configured); may be repeated",
        )
        offer.add_argument(
            "--one-time-use",
            action="append",
            default=[],
            metavar="ROLE",
            help="have Nova reserve the devices of a role when a server gets them, until they were "
            "found clean; not for virtual functions; may be repeated",
        )
        offer.add_argument(
            "--alias-names",
            choices=("auto", "product"),
            default="auto",
            help="auto: an alias is called as its role where that has one kind of device; "
            "product: always role and product id, e.g. gpu-2330 (default: auto)",
        )
        cloud = parser.add_argument_group("the node and its cloud")
        cloud.add_argument(
            "--housekeeping-cores",
            type=Count(0),
            default=1,
            metavar="N",
            help="physical cores of each NUMA node that stay with the host, with all of their "
            "threads (default: 1)",
        )
        cloud.add_argument(
            "--hosts",
            type=Count(1),
            default=1,
            metavar="N",
            help="number of hosts that can match one request: the limits of Placement become at "
            f"least that, and never less than {settings.FEWEST_CANDIDATES}",
        )
        cloud.add_argument(
            "--enabled-filters",
            metavar="LIST",
            help="the deployment's filters, separated by commas, to which those of this project "
            "are added in their place (default: the configured ones, or Nova's)",
        )
        output = parser.add_argument_group("what is written")
        output.add_argument(
            "--part",
            choices=settings.PARTS,
            action="append",
            help="only this file; may be repeated (default: all of them)",
        )
        output.add_argument(
            "--write",
            type=Path,
            metavar="DIR",
            help="show the differences to the files in DIR, then write them there",
        )
        output.add_argument(
            "--dry-run", action="store_true", help="with --write: show the differences only"
        )
        output.add_argument(
            "--keep",
            choices=settings.SINGLE,
            action="append",
            default=[],
            help="leave this option as it is configured; may be repeated",
        )
        output.add_argument(
            "--replace",
            action="append",
            default=[],
            metavar="NAME",
            help="take away what is configured under this name: an option, or one filter, alias or "
            "device of it. Otherwise nothing is written when something would be lost; may be "
            "repeated",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Print or write the files."""
        args = parsed_args
        if args.dry_run and args.write is None:
            raise CommandError("--dry-run needs --write: without it nothing is written anyway")
        parts = [part for part in settings.PARTS if not args.part or part in args.part]
        told = node_config.told(args.config, args.write, settings.PLACEMENT in parts)
        sets = nvlink_sets.strict(args.nvlink_set or told.nvlink_set)
        node = sysfs.read(args.root) if args.xml is None else lstopo.read(args.xml)
        if not node.functions and not node.numa_nodes:
            # Never replace good settings by those of an empty directory.
            raise CommandError(
                f"no CPU and no PCI device found in {node.source}: name the directory that holds "
                "sys and proc of the node"
            )
        before = told.configured
        table = node_config.table(args.device_role or told.device_role, node, before.device_spec)
        classes, chosen = _resource_classes(args.resource_class), _forms(args.role_identity)
        networks = _networks(args.physical_network)
        identity = configured.forms(before, node, table, chosen)
        # A name of the operator's own is an identity.
        identity |= {role: chosen.get(role, Form.IDS) for role in classes if role in identity}
        wishes = Declaration(
            whole=frozenset(_whole(args.whole_pf)),
            resource_classes=classes,
            identity={**identity, **chosen},
            networks=configured.networks(before, node, table, networks),
            traits=_traits(args.trait),
            one_time_use=frozenset(args.one_time_use),
            switches=args.offer_switches,
            left_out=_addresses("--leave-out", args.leave_out),
            nvlink=sets or None,
        )
        wishes.check(node, table)
        # The others are only named, so wishes about single devices are not theirs.
        named = Declaration(
            resource_classes=wishes.resource_classes,
            identity=wishes.identity,
            networks=networks,
            traits=wishes.traits,
            switches=wishes.switches,
        )
        spec = device_spec.build(node, table, wishes)
        if spec.mixed:
            raise CommandError(
                "Nova takes all virtual functions of an adapter for one kind of device, but there "
                f"is {'; '.join(spec.mixed)}: change --device-role so that each adapter has one"
            )
        result = settings.render(
            node,
            spec,
            settings.Options(
                hosts=args.hosts,
                housekeeping_cores=args.housekeeping_cores,
                filters=_filters(args.enabled_filters),
                product_names=args.alias_names == "product",
                # On one line each, however they were typed.
                device_role=[json.dumps(json.loads(text)) for text in args.device_role or ()],
                keep=frozenset(args.keep),
                declaration=wishes,
            ),
            others=[device_spec.build(_read(path), table, named) for path in args.also],
            before=before,
        )
        files = {
            settings.file_name(part): include_files.owned(result.files[part]) for part in parts
        }
        if set(_OF_THE_NODE) & set(parts):
            kept = [
                f"The role {old} stays: a node that is configured now has {new} for these devices."
                for new, old in sorted(table.kept.items())
            ]
            _tell(node, spec, [*result.remarks, *kept])
        losses = [
            loss for part in parts for loss in result.losses[part] if not loss.meant(args.replace)
        ]
        if losses and not args.dry_run:
            raise _refusal(losses)
        if args.write is None:
            return Answer(("File", "Content"), list(files.items()), show=lambda: _show(files))
        rows = self._write(args.write, files, args.dry_run)
        if losses:
            raise _refusal(losses)
        return Answer(("File", "State"), rows)

    def _write(
        self, folder: Path, files: Mapping[str, str], dry_run: bool
    ) -> list[tuple[str, str]]:
        """Show the differences and write; every file and what became of it."""
        changes = include_files.compare(folder, files)
        states = {str(folder / name): "unchanged" for name in files}
        if not changes:
            self.say("Nothing to do.")
        for change in changes:
            self.say(change.diff() or f"{change.path}: permissions become 0644\n", end="")
            states[str(change.path)] = "would be written" if dry_run else "written"
        if dry_run and changes:
            self.say(f"Nothing written: --dry-run. {len(changes)} of {len(files)} files differ.")
        if not dry_run:
            include_files.write(changes)
            for change in changes:
                self.say(f"Wrote {change.path}")
        return list(states.items())


def _refusal(losses: Sequence[Loss]) -> CommandError:
    """What would be lost, one line each, and how it is kept or given up."""
    lines = []
    for loss in losses:
        cure = f"--replace {loss.name} where it is meant"
        if loss.option in settings.SINGLE:
            cure = f"--keep {loss.option} leaves it, {cure}"
        lines.append(f"{loss.text}: {cure}")
    return CommandError("\n".join(lines))


def _show(files: Mapping[str, str]) -> None:
    for number, (name, text) in enumerate(files.items()):
        print(f"{'' if number == 0 else chr(10)}### {name}\n{text}", end="")


def _tell(node: Node, spec: device_spec.DeviceSpec, remarks: Sequence[str]) -> None:
    """Say on standard error what the files do not show."""
    lines = [f"The inventory: {problem}" for problem in node.problems]
    lines += [f"Not offered: {item.address} ({item.role}): {item.reason}" for item in spec.omitted]
    for line in [*lines, *remarks]:
        print(line, file=sys.stderr)


def _read(path: Path) -> Node:
    return sysfs.read(path) if path.is_dir() else lstopo.read(path)


# --- values of options ---------------------------------------------------------


def _whole(values: Iterable[str]) -> Iterable[str]:
    """Addresses of --whole-pf, normalised; or ``all``."""
    for value in values:
        try:
            yield value if value == declaration.EVERY else normalise_address(value)
        except AddressError as error:
            raise CommandError(f"--whole-pf: {error}") from error


def _addresses(option: str, values: Iterable[str]) -> frozenset[str]:
    """PCI addresses, normalised."""
    try:
        return frozenset(map(normalise_address, values))
    except AddressError as error:
        raise CommandError(f"{option}: {error}") from error


def _pairs(
    option: str, values: Iterable[str], form: str = "ROLE=NAME"
) -> Iterable[tuple[str, str]]:
    for value in values:
        role, equals, name = value.partition("=")
        if not (role and equals and name):
            raise CommandError(f"{option}: {value!r} is not {form}")
        yield role, name


def _resource_classes(values: Sequence[str]) -> dict[str, str]:
    """Role -> resource class, of --resource-class."""
    found: dict[str, str] = {}
    for role, name in _pairs("--resource-class", values):
        if found.setdefault(role, declaration.check_resource_class(name)) != name:
            raise CommandError(f"--resource-class: role {role!r} has two: {found[role]} and {name}")
    return found


def _forms(values: Sequence[str]) -> dict[str, Form]:
    """Role -> form, of --role-identity."""
    found: dict[str, Form] = {}
    for role, name in _pairs("--role-identity", values, "ROLE=FORM"):
        if name not in {form.value for form in Form}:
            words = ", ".join(form.value for form in Form)
            raise CommandError(f"--role-identity: {name!r} is none of {words}")
        if found.setdefault(role, Form(name)) is not Form(name):
            raise CommandError(f"--role-identity: role {role!r} has two")
    return found


def _networks(values: Sequence[str]) -> dict[str, str]:
    """Role -> physical network, of --physical-network."""
    found: dict[str, str] = {}
    for role, name in _pairs("--physical-network", values):
        if not _NETWORK.fullmatch(name):
            raise CommandError(f"--physical-network: {name!r} is no name of a network")
        if found.setdefault(role, name) != name:
            raise CommandError(f"--physical-network: role {role!r} has two: {found[role]}, {name}")
    return found


def _traits(values: Sequence[str]) -> dict[str, frozenset[str]]:
    """Role -> traits, of --trait."""
    found: dict[str, frozenset[str]] = {}
    for role, name in _pairs("--trait", values):
        found[role] = found.get(role, frozenset()) | {declaration.check_trait(name)}
    return found


def _filters(text: str | None) -> Sequence[str] | None:
    """Names of --enabled-filters; None without it."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(name.isidentifier() for name in names):
        raise CommandError("--enabled-filters: write names of filters, separated by commas")
    return names
