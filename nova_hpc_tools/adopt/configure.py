# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc configure``: the settings of a node and of its cloud."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.topology import roles, sysfs
from nova_hpc.topology.model import InventoryError, Node
from nova_hpc.wire import capture
from nova_hpc_tools.adopt import (
    configure_options,
    declaration_file,
    foreign_entries,
    foreign_lines,
    host_files,
    include_writer,
    layout_files,
    node_wishes,
    rails,
    readable_node,
)
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand
from nova_hpc_tools.site import (
    aliases,
    configured,
    device_spec,
    entry_losses,
    include_files,
    kernel_options,
    layout_cures,
    layout_names,
    lstopo,
    nvlink_sets,
    service_settings,
    settings,
    spec_entries,
)
from nova_hpc_tools.site.declaration import EVERY, Declaration, DeclarationError
from nova_hpc_tools.site.declared_vfs import list_declared_vfs
from nova_hpc_tools.site.identity import Form
from nova_hpc_tools.site.node_findings import find_node_faults
from nova_hpc_tools.wire.node_declaration import NodeDeclaration, NodeWishes

#: The files that depend on the inventory.
_OF_THE_NODE: Final = (settings.COMMON, settings.COMPUTE)


class Configure(ListCommand):
    """Write the settings of Nova and Placement that this node needs.

    Reads the inventory of this machine (or of a capture) and the node's
    declaration, in which all decisions are, and prints include files for Nova
    and Placement; with --write, shows how they differ from those in a directory
    and writes them there, and a declaration to edit where there is none.
    Running it again changes nothing. Filters, weighers and aliases that are
    configured are added to, limits are never lowered, CPU sets stay; whatever
    would be lost is named, and nothing is written. No file of others is changed:
    a line of theirs that is in the way is named, with its file.
    """

    acts_with = ("write", "undo")
    errors = (
        InventoryError,
        include_files.IncludeError,
        service_settings.ConfigError,
        declaration_file.NodeFileError,
        roles.RoleError,
        nvlink_sets.NvlinkError,
        DeclarationError,
        aliases.ClashError,
        settings.CpuSetError,
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        configure_options.add_configure_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Print the settings of the node, or write them to files, as the arguments request."""
        args = parsed_args
        _check_words(args)
        writer = include_writer.IncludeWriter(args.write, args.dry_run, self.say)
        if args.undo:
            return CommandAnswer(("File", "State"), writer.undo(args.config, _own_file_names(args)))
        if args.write is not None:
            include_writer.check_folder(args.write)
        work = NodeSetup.read(args)
        spec, result = work.render()
        parts = work.parts(spec)
        if set(_OF_THE_NODE) & set(parts):
            readable_node.check_offer(work.node, spec)
        files = {
            name: include_files.mark_as_owned(text)
            for name, text in work.files(parts, result).items()
        }
        work.tell(spec, result if parts else None)
        refusals = [
            loss.refusal
            for part in parts
            for loss in result.losses[part]
            if not loss.meant(args.replace)
        ]
        refusals += writer.find_hidden_options(args.config, files)
        refusals += layout_files.find_winning_variables(args, work.node, parts)
        if refusals and not args.dry_run:
            raise CommandError("\n".join(refusals))
        if args.write is None:
            return CommandAnswer(
                ("File", "Content"), list(files.items()), show=lambda: _print_include_files(files)
            )
        has_declaration = parts or work.declared != NodeDeclaration()
        change = work.file.change(work.declared) if has_declaration else None
        rows = writer.write(args.config, files, change)
        if refusals:
            raise CommandError("\n".join(refusals))
        return CommandAnswer(("File", "State"), rows)


@attrs.frozen
class NodeOffer:
    """The devices that a node will offer, and the declared wishes that led to them."""

    spec: device_spec.DeviceSpec
    roles: roles.Roles
    declaration: Declaration
    #: The same for nodes of other kinds.
    named: Declaration
    withheld: declaration_file.UnofferedDevices


@attrs.frozen
class NodeSetup:
    """All inputs of ``configure`` for one node: the node, its settings and its declaration.

    ``doctor`` uses it, too.
    """

    args: argparse.Namespace
    node: Node
    #: The folder with the node's files; None if the node came from an XML.
    root: Path | None
    told: service_settings.ServiceSettings
    file: declaration_file.NodeFile
    declared: NodeDeclaration
    wishes: NodeWishes
    #: The addresses of the devices in the declaration's lists.
    left_out: node_wishes.LocatedDevices
    in_use: node_wishes.LocatedDevices
    whole: node_wishes.LocatedDevices
    identified: declaration_file.IdentifiedHardware
    #: Addresses in the file with a number in place of a serial number.
    stand_ins: tuple[str, ...] = ()

    @classmethod
    def read(cls, args: argparse.Namespace) -> NodeSetup:
        """Read all of it, from the sources in the options; raises :attr:`Configure.errors`."""
        parts = args.part or settings.PARTS
        root = args.root if args.xml is None else None
        on_this_machine = root is not None and root.resolve() == Path("/")
        node = _read_node(args)
        identified = declaration_file.identify_devices(root, node)
        if capture.HOST in identified.replaced:
            node = attrs.evolve(node, hostname=None)
        told = service_settings.read_service_settings(
            args.config,
            args.write,
            settings.PLACEMENT in parts,
            layout_files.read_merged_parts(args, node),
        )
        file = declaration_file.read_node_file(
            args.declaration,
            on_this_machine,
            args.write,
            layout_files.declaration_name_of(args, node),
        )
        told = attrs.evolve(
            told,
            configured=attrs.evolve(
                foreign_entries.translate_configured_interfaces(told.configured, node),
                declared=file.declaration is not None and settings.COMPUTE in told.configured.files,
            ),
        )
        if set(_OF_THE_NODE) & set(parts) and not {"device_spec"} & {*args.replace}:
            readable_node.check_has_devices(node)
        node = readable_node.with_written_sockets(node, told.configured.device_spec)
        hardware = dict(identified.hardware)
        declared, stand_ins = node_wishes.without_stand_ins(
            file.declaration or NodeDeclaration(), str(file.path)
        )
        node_wishes.check_replaced(declared, identified.replaced, str(file.path))
        if args.add_device_role:
            more = configure_options.add_roles_to_current(args, declared, node, told)
            declared = node_wishes.add_to_declaration(
                declared, node.hostname, NodeWishes(roles=more)
            )
        wishes = node_wishes.wishes_for_node(declared, node.hostname, str(file.path))
        return cls(
            args=args,
            node=node,
            root=root,
            told=told,
            file=file,
            declared=declared,
            wishes=wishes,
            left_out=node_wishes.locate_declared_devices(wishes.left_out, hardware, node),
            in_use=node_wishes.locate_declared_devices(wishes.offer_in_use, hardware, node),
            whole=node_wishes.locate_declared_devices(wishes.whole_pf, hardware, node),
            identified=identified,
            stand_ins=tuple(stand_ins),
        )

    def table(self) -> roles.Roles:
        """Build the table of roles for this node; refuse a declaration that files contradict."""
        entries = declaration_file.role_entries_of(self.wishes)
        others = [spec_entries.read_spec_entry(text) for text in self.told.other_roles]
        if entries and others and list(map(json.loads, entries)) != others:
            raise CommandError(
                f"two declarations disagree: roles of {self.file.path} and "
                "[hpc]device_role of a configuration file of yours, of which Nova takes both: "
                "remove one of them"
            )
        return service_settings.role_table_of(
            entries or self.told.device_role, self.node, self.told.configured.device_spec
        )

    def offer(self) -> NodeOffer:
        """Decide which devices this node will offer, and with which roles."""
        node, wishes, before = self.node, self.wishes, self.told.configured
        table = self.table()
        nvlink_sets.check_nvlink_gpus(self.told.nvlink_gpus, node)
        sets = nvlink_sets.parse_nvlink_sets(wishes.nvlink_sets or self.told.nvlink_set)
        whole = frozenset(
            address
            for address in self.whole.addresses
            if address == EVERY or node.function(address)
        )
        kept_back = declaration_file.find_withheld_devices(
            self.root,
            node,
            table,
            before.device_spec,
            self.in_use.addresses,
            whole,
            self.told.anyway,
        )
        wish_declaration = node_wishes.to_declaration(
            wishes,
            left_out=self.left_out.addresses,
            whole=whole,
            sets=sets,
            withheld={
                **foreign_entries.functions_on_vendor_driver(before.device_spec, node),
                **kept_back.reasons,
            },
            told=self.told,
        )
        identity = configured.identity_forms_of(before, node, table, wish_declaration.identity)
        # A resource class that the operator named is an identity.
        identity |= {
            role: wish_declaration.identity.get(role, Form.IDS)
            for role in wish_declaration.resource_classes
            if role in identity
        }
        declaration = attrs.evolve(
            wish_declaration,
            identity={**identity, **wish_declaration.identity},
            networks=rails.networks_of_functions(
                wishes.rails, before, node, table, wish_declaration.networks, wishes.kept or {}
            ),
            kept=self.kept(table),
            vfs=list_declared_vfs(wishes, table, node),
        )
        try:
            node_wishes.check_named_roles(wishes, table)
            declaration.check(node, table)
        except DeclarationError as error:
            raise DeclarationError(f"{self.file.path}: {error}") from error
        except nvlink_sets.NvlinkError as error:
            if wishes.nvlink_sets is None:
                raise  # of [hpc]nvlink_set in a configuration file
            raise DeclarationError(f"{self.file.path}: {declaration_file.by_key(error)}") from error
        # Nodes of other kinds only add aliases: wishes about single devices do not apply to them.
        named = Declaration(
            resource_classes=wish_declaration.resource_classes,
            identity=declaration.identity,
            networks=wish_declaration.networks,
            traits=wish_declaration.traits,
            switches=wish_declaration.switches,
            erasers=self.told.erasers,
        )
        spec = device_spec.build_device_spec(node, table, declaration)
        if spec.mixed:
            raise CommandError(
                "Nova takes all virtual functions of an adapter for one kind of device, but there "
                f"is {'; '.join(spec.mixed)}: change roles in the declaration so that each has one"
            )
        return NodeOffer(spec, table, declaration, named, kept_back)

    def kept(self, table: roles.Roles) -> dict[str, dict[str, str | None]]:
        """Map address to the settings in foreign entries that the device's new entry must keep."""
        # A class that was named for the role wins; its change is a separate loss.
        named = {
            role
            for role, wish in node_wishes.role_wishes_of(self.wishes)
            if wish.resource_class is not None or wish.identity == Form.CLASS.value
        }
        kept_keys = entry_losses.kept_keys(
            self.told.configured.device_spec, self.node, self.wishes.kept or {}
        )
        for address, keys in kept_keys.items():
            function = self.node.function(address)
            if function is not None and table.role_of(function, self.node) in named:
                keys.pop("resource_class", None)
        return kept_keys

    def judge(self, spec: device_spec.DeviceSpec) -> foreign_entries.EntryJudge:
        """Build, but do not run, the check of foreign device_spec entries against the new ones."""
        args = self.args
        return foreign_entries.EntryJudge(
            self.node,
            self.told.configured.other_device_spec,
            spec,
            foreign_lines.ForeignFiles(
                args.layout,
                self.node.hostname,
                tuple(service_settings.foreign_config_files(args.config, args.write)),
                layout_files.find_source_files(args, self.node),
            ),
            str(self.file.path or "the declaration"),
        )

    def to_declare(self, judge: foreign_entries.EntryJudge, table: roles.Roles) -> dict[str, Any]:
        """Return keys of the declaration that replace foreign entries which hide the new ones."""
        hiding = judge.hiding()
        chosen = {
            role: Form(wish.identity)
            for role, wish in node_wishes.role_wishes_of(self.wishes)
            if wish.identity
        }
        forms = foreign_entries.identities_to_declare(
            hiding, self.told.configured, self.node, table, chosen
        )
        kept, declared = self.kept(table), self.wishes.kept or {}
        keys = {
            address: kept[address]
            for entry in hiding
            for address in entry.addresses
            if address in kept and kept[address] != declared.get(address)
        }
        options = {role: {"identity": form.value} for role, form in forms.items()}
        return {key: value for key, value in (("role_options", options), ("kept", keys)) if value}

    def render(self) -> tuple[device_spec.DeviceSpec, settings.NovaSettings]:
        """Render the devices that the node will offer, and the texts of all files."""
        args, node, wishes = self.args, self.node, self.wishes
        offered = self.offer()
        spec, table = offered.spec, offered.roles
        result = settings.render_settings(
            node,
            spec,
            settings.SettingsOptions(
                hosts=(wishes.limits.hosts if wishes.limits else None) or 1,
                housekeeping_cores=wishes.cpus.housekeeping_cores if wishes.cpus else None,
                filters=configure_options.split_filter_names(args.enabled_filters),
                product_names=wishes.alias_names == "product",
                device_role=declaration_file.role_entries_of(wishes),
                keep=frozenset(args.keep),
                replace=frozenset(args.replace),
                declaration=offered.declaration,
            ),
            others=[
                device_spec.build_device_spec(_read_captured_node(path), table, offered.named)
                for path in args.also
            ],
            before=self.told.configured,
        )
        judge = self.judge(spec)
        if settings.COMPUTE in (args.part or settings.PARTS):
            more = judge.losses(self.to_declare(judge, table))
            compute_losses = [*result.losses[settings.COMPUTE], *more]
            result = attrs.evolve(
                result, losses={**result.losses, settings.COMPUTE: compute_losses}
            )
        losses = {
            part: [judge.files.name_line_of(loss) for loss in losses]
            for part, losses in result.losses.items()
        }
        result = attrs.evolve(result, losses=losses)
        stays = [
            f"The role {old} stays: a node that is configured now has {new} for these devices."
            for new, old in sorted(table.kept.items())
        ]
        ready = []
        if self.root is not None:
            kernel = kernel_options.read_kernel_options(self.root, host_files.ALL)
            ready = find_node_faults(self.root, node, spec, table, wishes, self.told, kernel)
        place = (self.args.layout, node.hostname)
        notes = [f"{one.seen} {layout_cures.render_cure(one.cure, *place)}" for one in ready]
        notes += self._stock(spec)
        notes += rails.describe_rails(wishes.rails, self.told.configured, node, table)
        remarks = (*result.remarks, *stays, *offered.withheld.notes, *notes)
        return spec, attrs.evolve(result, remarks=remarks)

    def _stock(self, spec: device_spec.DeviceSpec) -> list[str]:
        """Return notes on roles that stock Nova identifies by vendor and product alone."""
        before, table = self.told.configured, self.table()
        offered = {offer.tags.role for offer in spec.offers}
        chosen = {role for role, wish in node_wishes.role_wishes_of(self.wishes) if wish.identity}
        return [
            f"The role {role} goes by vendor and product here, because an entry of yours offers "
            "one of its devices: declare it for the nodes of all kinds (role_options: "
            f"{{{role}: {{identity: ids}}}}), or the alias means other devices there."
            for role in configured.roles_told_by_ids(before, self.node, table)
            if role in offered and role not in chosen
        ]

    def files(self, parts: Sequence[str], result: settings.NovaSettings) -> dict[str, str]:
        """Return file name -> text of each file to write, in the chosen layout."""
        if self.args.layout == layout_names.PLAIN:
            return {settings.file_name(part): result.files[part] for part in parts}
        others = self.told.others
        return layout_files.render_layout_files(self.args, self.node, parts, result, others)

    def parts(self, spec: device_spec.DeviceSpec) -> list[str]:
        """List the parts of the configuration to write; without devices few of them."""
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

    def tell(self, spec: device_spec.DeviceSpec, result: settings.NovaSettings | None) -> None:
        """Print to standard error the facts that the files do not show."""
        wanted = self.args.part or settings.PARTS
        if result is not None and settings.CONTROLLER in wanted:
            for line in result.of_controller:
                print(line, file=sys.stderr)
        if not set(_OF_THE_NODE) & set(wanted):
            return
        lines = [f"The inventory: {problem}" for problem in self.node.problems]
        lines += device_spec.format_omitted_lines(spec.omitted)
        for device_list in (self.left_out, self.in_use, self.whole):
            lines += device_list.notes
        identified = self.identified
        lines += node_wishes.devices_named_by_place(
            self.wishes, self.node, self.stand_ins, identified.replaced, identified.hardware
        )
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


def _read_node(args: argparse.Namespace) -> Node:
    return (
        sysfs.read_sysfs_node(args.root) if args.xml is None else lstopo.read_lstopo_file(args.xml)
    )


def _own_file_names(args: argparse.Namespace) -> list[str]:
    """List the files that the same command would write without ``--undo``."""
    parts = args.part or settings.PARTS
    if args.layout == layout_names.PLAIN:
        return [settings.file_name(part) for part in parts]
    return layout_files.names_of_layout_files(args, _read_node(args), parts)


def _check_words(args: argparse.Namespace) -> None:
    configure_options.check_removed_options(args)
    if args.dry_run and args.write is None:
        raise CommandError("--dry-run needs --write: without it nothing is written anyway")
    if args.undo and args.write is None:
        raise CommandError("--undo needs --write: it removes the files that were written there")


def _print_include_files(files: Mapping[str, str]) -> None:
    for number, (name, text) in enumerate(files.items()):
        print(f"{'' if number == 0 else chr(10)}### {name}\n{text}", end="")


def _read_captured_node(path: Path) -> Node:
    return sysfs.read_sysfs_node(path) if path.is_dir() else lstopo.read_lstopo_file(path)
