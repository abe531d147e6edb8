# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc configure``: the settings of a node and of its cloud."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy.nvlink import nvlink_sets
from nova_hpc.topology import lstopo, roles, sysfs
from nova_hpc.topology.model import InventoryError, Node
from nova_hpc.wire import capture
from nova_hpc.wire.node_declaration import NodeDeclaration, Wishes
from nova_hpc_tools.adopt import (
    aliases,
    configure_options,
    configured,
    device_spec,
    include_files,
    layout_files,
    layouts,
    node_wishes,
    overlooked,
    readiness,
    replacement,
    settings,
    spec_entries,
)
from nova_hpc_tools.adopt import declaration_file as node_file
from nova_hpc_tools.adopt import device_spec_edit as spec_edit
from nova_hpc_tools.adopt import foreign_entries as configure_entries
from nova_hpc_tools.adopt import include_writer as configure_write
from nova_hpc_tools.adopt import questions as configure_ask
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.adopt.configured import Configured, HeldBack, Loss
from nova_hpc_tools.adopt.declaration import EVERY, Declaration, DeclarationError
from nova_hpc_tools.adopt.identity import Form
from nova_hpc_tools.base import Answer, CommandError, List

#: The files that depend on the inventory.
_OF_THE_NODE: Final = (settings.COMMON, settings.COMPUTE)


class Configure(List):
    """Write the settings of Nova and Placement that this node needs.

    Reads the inventory of this machine (or of a capture) and the node's
    declaration, and prints include files for Nova and Placement; with --write,
    shows how they differ from those in a directory and writes them there, and
    the declaration with what the options say. Running it again changes
    nothing. Filters, weighers and aliases that are configured are added to,
    limits are never lowered, CPU sets stay; whatever would be lost is named,
    and nothing is written.
    """

    acts_with = ("write", "undo")
    errors = (
        InventoryError,
        include_files.IncludeError,
        node_config.ConfigError,
        node_file.NodeFileError,
        roles.RoleError,
        nvlink_sets.NvlinkError,
        DeclarationError,
        aliases.ClashError,
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        configure_options.add(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Print or write the files."""
        args = parsed_args
        _check_words(args)
        writer = configure_write.Writer(args.write, args.dry_run, self.say)
        if args.undo:
            return Answer(("File", "State"), writer.undo(args.config))
        if args.write is not None:
            configure_write.check_folder(args.write)
        work = Work.read(args)
        spec, result = work.render()
        parts = work.parts(spec)
        files = {
            name: include_files.owned(text)
            for name, text in work.files(parts, spec, result).items()
        }
        work.tell(spec, result if parts else None)
        losses = [
            loss for part in parts for loss in result.losses[part] if not loss.meant(args.replace)
        ]
        edits = work.edits(spec) if settings.COMPUTE in parts else []
        if losses and not args.dry_run:
            raise _refusal(losses)
        if args.write is None:
            return Answer(("File", "Content"), list(files.items()), show=lambda: _show(files))
        # What was said counts the next time, too, also where nothing is offered by it.
        declared = work.remembered(spec) if settings.COMPUTE in parts else work.declared
        said = parts or declared != NodeDeclaration()
        change = work.file.change(declared) if said else None
        rows = writer.write(args.config, files, change, edits)
        if losses:
            raise _refusal(losses)
        return Answer(("File", "State"), rows)


@attrs.frozen
class Offered:
    """What a node offers, and by which wishes."""

    spec: device_spec.DeviceSpec
    roles: roles.Roles
    declaration: Declaration
    #: The same for nodes of other kinds.
    named: Declaration
    withheld: node_file.Withheld


@attrs.frozen
class Work:
    """What a node is, what it was told and what is declared for it; ``doctor`` looks, too."""

    args: argparse.Namespace
    node: Node
    #: Where the node's files are; None: it came from an XML.
    root: Path | None
    told: node_config.Told
    file: node_file.NodeFile
    declared: NodeDeclaration
    wishes: Wishes
    #: Where the devices of the declaration's lists are.
    left_out: node_wishes.Found
    in_use: node_wishes.Found
    whole: node_wishes.Found
    identified: node_file.Identified
    #: Addresses that the file names by numbers which stand for serial numbers.
    stand_ins: tuple[str, ...] = ()
    #: The entries of others that are to be taken out.
    taken: configure_entries.Taken = attrs.field(factory=configure_entries.Taken)

    @classmethod
    def read(cls, args: argparse.Namespace) -> Work:
        """Read all of it, as the options say; raises what :attr:`Configure.errors` names."""
        words = configure_options.wishes(args)
        parts = args.part or settings.PARTS
        root = args.root if args.xml is None else None
        here = root is not None and root.resolve() == Path("/")
        node = lstopo.read(args.xml) if root is None else sysfs.read(root)
        identified = node_file.identify(root, node)
        if capture.HOST in identified.replaced:
            node = attrs.evolve(node, hostname=None)
        told = node_config.told(
            args.config, args.write, settings.PLACEMENT in parts, layout_files.merged(args, node)
        )
        told = attrs.evolve(told, configured=configure_entries.translated(told.configured, node))
        file = node_file.read(
            args.declaration, here, args.write, layout_files.declaration(args, node)
        )
        if set(_OF_THE_NODE) & set(parts) and not {"device_spec"} & {*args.replace}:
            _check_node(node)
        configure_options.check(words, node)
        hardware = dict(identified.hardware)
        words = attrs.evolve(
            words,
            left_out=node_wishes.with_hardware(words.left_out, hardware),
            offer_in_use=node_wishes.with_hardware(words.offer_in_use, hardware),
            whole_pf=node_wishes.with_hardware(words.whole_pf, hardware),
        )
        before = file.declaration
        if before is None:
            roles.strict(told.configured.device_role)
            own = told.configured.device_role
            before = NodeDeclaration(node_wishes.from_before(told.configured.held_back, own))
        before, stand_ins = node_wishes.without_stand_ins(before, str(file.path))
        node_wishes.check_replaced(before, identified.replaced, str(file.path))
        if args.add_device_role:
            words = attrs.evolve(
                words, roles=configure_options.more_roles(args, before, node, told)
            )
        declared = node_wishes.told(before, node.hostname, words, args.replace)
        if args.ask:
            declared = configure_ask.ask(declared, node, root, told, hardware)
        wishes = node_wishes.for_node(declared, node.hostname, str(file.path))
        return cls(
            args=args,
            node=node,
            root=root,
            told=told,
            file=file,
            declared=declared,
            wishes=wishes,
            left_out=node_wishes.find(wishes.left_out, hardware, node),
            in_use=node_wishes.find(wishes.offer_in_use, hardware, node),
            whole=node_wishes.find(wishes.whole_pf, hardware, node),
            identified=identified,
            stand_ins=tuple(stand_ins),
            taken=configure_entries.taken(args.replace, told.configured.other_device_spec),
        )

    def table(self) -> roles.Roles:
        """Which function plays which role here."""
        own = self.wishes.roles
        entries = [json.dumps(dict(each)) for each in own or ()]
        others = list(self.told.other_roles)
        if entries and others and list(map(json.loads, entries)) != _objects(others):
            raise CommandError(
                f"two declarations disagree: roles of {self.file.path or '--device-role'} and "
                "[hpc]device_role of a configuration file of yours, of which Nova takes both: "
                "remove one of them"
            )
        return node_config.table(
            entries or self.told.device_role, self.node, self.told.configured.device_spec
        )

    def before(self) -> Configured:
        """What is configured; what was held back is in the declaration now."""
        found = self.told.configured
        if self.file.declaration is None or settings.COMPUTE not in found.files:
            return found
        old = node_wishes.for_node(self.file.declaration, self.node.hostname, str(self.file.path))
        hardware = self.identified.hardware
        held = HeldBack(
            node_wishes.find(old.left_out, hardware, self.node).addresses,
            node_wishes.find(old.whole_pf, hardware, self.node).addresses,
        )
        return attrs.evolve(found, held_back=held)

    def offer(self) -> Offered:
        """What the node offers, and by which wishes."""
        node, wishes, before = self.node, self.wishes, self.before()
        table = self.table()
        sets = nvlink_sets.strict(wishes.nvlink_sets or self.told.nvlink_set)
        whole = frozenset(
            each for each in self.whole.addresses if each == EVERY or node.function(each)
        )
        kept_back = node_file.withheld(
            self.root,
            node,
            table,
            before.device_spec,
            self.in_use.addresses,
            whole,
            self.told.anyway,
        )
        mine = node_wishes.to_declaration(
            wishes,
            left_out=self.left_out.addresses,
            whole=whole,
            sets=sets,
            withheld={
                **configure_entries.on_their_driver(before.device_spec, node),
                **kept_back.reasons,
            },
        )
        identity = configured.forms(before, node, table, mine.identity)
        # A name of the operator's own is an identity.
        identity |= {
            role: mine.identity.get(role, Form.IDS)
            for role in mine.resource_classes
            if role in identity
        }
        declaration = attrs.evolve(
            mine,
            identity={**identity, **mine.identity},
            networks=configured.networks(before, node, table, mine.networks),
            kept=self.kept(table),
        )
        declaration.check(node, table)
        # The others are only named, so wishes about single devices are not theirs.
        named = Declaration(
            resource_classes=mine.resource_classes,
            identity=declaration.identity,
            networks=mine.networks,
            traits=mine.traits,
            switches=mine.switches,
        )
        spec = device_spec.build(node, table, declaration)
        if spec.mixed:
            raise CommandError(
                "Nova takes all virtual functions of an adapter for one kind of device, but there "
                f"is {'; '.join(spec.mixed)}: change --device-role so that each adapter has one"
            )
        return Offered(spec, table, declaration, named, kept_back)

    def kept(self, table: roles.Roles) -> dict[str, dict[str, str | None]]:
        """Address -> what an entry of others says of a device, and ours goes on saying."""
        # A class that was named for the role counts; that it changes is a loss of its own.
        named = {
            role
            for role, wish in node_wishes.names(self.wishes)
            if wish.resource_class is not None or wish.identity == Form.CLASS.value
        }
        found = replacement.kept_keys(
            self.told.configured.device_spec, self.node, self.wishes.kept or {}
        )
        for address, said in found.items():
            function = self.node.function(address)
            if function is not None and table.role_of(function, self.node) in named:
                said.pop("resource_class", None)
        return found

    def remembered(self, spec: device_spec.DeviceSpec) -> NodeDeclaration:
        """The declaration, with what entries that may be taken out have said."""
        kept = configure_entries.to_remember(self.kept(self.table()), spec)
        return node_wishes.keep(self.declared, self.node.hostname, kept)

    def plan(self, spec: device_spec.DeviceSpec) -> replacement.Plan:
        """What becomes of the entries of others."""
        return replacement.plan(
            self.told.configured.other_device_spec,
            spec.lines(),
            self.node,
            self.taken.lines,
            # The files of a layout say again what others have said.
            translate=self.args.layout != layouts.PLAIN,
        )

    def edits(self, spec: device_spec.DeviceSpec) -> list[include_files.Change]:
        """What changes in files of others; in a layout theirs are not what counts.

        :raises include_files.IncludeError: an entry is not found, or not once.
        """
        plan = self.plan(spec)
        if self.args.layout != layouts.PLAIN or not (plan.removed or plan.rewritten):
            return []
        return spec_edit.changes(
            node_config.others(self.args.config, self.args.write), plan.removed, plan.rewritten
        )

    def render(self) -> tuple[device_spec.DeviceSpec, settings.Settings]:
        """What the node offers, and the texts of all files."""
        args, node, wishes = self.args, self.node, self.wishes
        offered = self.offer()
        spec, table = offered.spec, offered.roles
        result = settings.render(
            node,
            spec,
            settings.Options(
                hosts=(wishes.limits.hosts if wishes.limits else None) or 1,
                housekeeping_cores=wishes.cpus.housekeeping_cores if wishes.cpus else None,
                filters=configure_options.filters(args.enabled_filters),
                product_names=wishes.alias_names == "product",
                device_role=[json.dumps(dict(each)) for each in wishes.roles or ()],
                keep=frozenset(args.keep),
                replace=frozenset(args.replace),
                declaration=offered.declaration,
            ),
            others=[device_spec.build(_read(path), table, offered.named) for path in args.also],
            before=self.before(),
        )
        if settings.COMPUTE in (args.part or settings.PARTS):
            more = configure_entries.losses(self.plan(spec), spec, node)
            mine = [*result.losses[settings.COMPUTE], *more]
            result = attrs.evolve(result, losses={**result.losses, settings.COMPUTE: mine})
        stays = [
            f"The role {old} stays: a node that is configured now has {new} for these devices."
            for new, old in sorted(table.kept.items())
        ]
        ready = readiness.look(node, spec, table, wishes) if self.root is not None else []
        if self.root is not None:
            own = bool(self.told.other_roles)
            ready += overlooked.look(node, table, readiness.offered(node, spec), own)
        said = [f"{each.seen} {each.cure}" for each in ready]
        said += self._stock(spec)
        remarks = (*result.remarks, *stays, *offered.withheld.notes, *said, *self.taken.notes)
        return spec, attrs.evolve(result, remarks=remarks)

    def _stock(self, spec: device_spec.DeviceSpec) -> list[str]:
        """What entries of stock Nova mean for this node and for others."""
        before, table = self.before(), self.table()
        offered = {offer.tags.role for offer in spec.offers}
        chosen = {role for role, wish in node_wishes.names(self.wishes) if wish.identity}
        lines = [
            f"The role {role} goes by vendor and product here, because an entry of yours offers "
            f"one of its devices: give the nodes of all kinds --role-identity {role}=ids, or the "
            "alias means other devices there."
            for role in configured.by_ids(before, self.node, table)
            if role in offered and role not in chosen
        ]
        return [
            *lines,
            *configure_entries.say_hidden(self.plan(spec).others, spec.lines(), self.node),
        ]

    def files(
        self, parts: Sequence[str], spec: device_spec.DeviceSpec, result: settings.Settings
    ) -> dict[str, str]:
        """Name -> text of each file, in the layout that is asked for."""
        if self.args.layout == layouts.PLAIN:
            return {settings.file_name(part): result.files[part] for part in parts}
        plan = self.plan(spec)
        others = {
            **self.told.others,
            "pci": {**self.told.others["pci"], "device_spec": plan.others},
        }
        return layout_files.files(self.args, self.node, parts, result, others)

    def parts(self, spec: device_spec.DeviceSpec) -> list[str]:
        """What is printed or written: of a node without devices only what it has, or is named."""
        wanted = [part for part in settings.PARTS if not self.args.part or part in self.args.part]
        if spec.offers:
            return wanted
        there = self.told.configured.files
        needless = {settings.COMPUTE}
        if not self.args.also:
            needless.add(settings.COMMON)
        if not self.args.part:
            needless |= {*settings.PARTS}
        return [part for part in wanted if part in there or part not in needless]

    def tell(self, spec: device_spec.DeviceSpec, result: settings.Settings | None) -> None:
        """Say on standard error what the files do not show."""
        wanted = self.args.part or settings.PARTS
        if result is not None and settings.CONTROLLER in wanted:
            for line in result.of_controller:
                print(line, file=sys.stderr)
        if not set(_OF_THE_NODE) & set(wanted):
            return
        lines = [f"The inventory: {problem}" for problem in self.node.problems]
        lines += [
            f"Not offered: {item.address} ({item.role}): {item.reason}" for item in spec.omitted
        ]
        for found in (self.left_out, self.in_use, self.whole):
            lines += found.notes
        replaced = self.identified.replaced
        lines += node_wishes.unnamed(self.wishes, self.node, self.stand_ins, replaced)
        if result is not None:
            lines += result.remarks
        if not spec.offers and settings.COMPUTE not in self.told.configured.files:
            lines.append(
                "No device of this node is for servers: nothing is written for its nova-compute. "
                "The files of a controller are written by --part controller, those of Placement "
                "by --part placement."
            )
        for line in dict.fromkeys(lines):
            print(line, file=sys.stderr)


def _check_words(args: argparse.Namespace) -> None:
    if args.dry_run and args.write is None:
        raise CommandError("--dry-run needs --write: without it nothing is written anyway")
    if args.undo and args.write is None:
        raise CommandError("--undo needs --write: it gives back what was written there")


def _check_node(node: Node) -> None:
    """Never replace good settings by those of an empty directory, or of a container."""
    if node.functions:
        return
    what = "no PCI device" if node.numa_nodes else "no CPU and no PCI device"
    raise CommandError(
        f"{what} found in {node.source}, so nothing can be said of a node's devices: name the "
        "directory that holds sys and proc of the node, or what is to be written "
        "(--part controller, --part placement)"
    )


def _refusal(losses: Sequence[Loss]) -> CommandError:
    """What would be lost, one line each, and how it is kept or given up."""
    return CommandError("\n".join(loss.refusal for loss in losses))


def _objects(texts: Sequence[str]) -> list[object]:
    return [spec_entries.read(text) for text in texts]


def _show(files: Mapping[str, str]) -> None:
    for number, (name, text) in enumerate(files.items()):
        print(f"{'' if number == 0 else chr(10)}### {name}\n{text}", end="")


def _read(path: Path) -> Node:
    return sysfs.read(path) if path.is_dir() else lstopo.read(path)
