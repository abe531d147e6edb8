# SPDX-License-Identifier: Apache-2.0
"""The file of the node's declaration, and the facts of the node that go with it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy import forbidden, forbidden_vpd, holders, identity
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology import roles as role_table
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.roles import Roles
from nova_hpc.wire import capture
from nova_hpc_common.wire.version import WireError
from nova_hpc_tools.site import declaration, include_files, nvlink_sets, spec_entries
from nova_hpc_tools.wire import node_declaration
from nova_hpc_tools.wire.node_declaration import NodeDeclaration, NodeWishes, RoleWish

#: The declaration of this machine.
HERE: Final = Path("/etc/nova-hpc/node.yaml")


class NodeFileError(Exception):
    """The declaration file of the node cannot be used. The text names the file and the reason."""


@attrs.frozen
class NodeFile:
    """The declaration file of a node, with its content. Without a path none is read or written."""

    path: Path | None
    text: str | None = None
    #: None if the file does not exist yet.
    declaration: NodeDeclaration | None = None

    def change(self, declaration: NodeDeclaration) -> include_files.FileChange | None:
        """Return the change of the file that writes *declaration*; None if the file has it already.

        Nothing is written.
        """
        if self.path is None or declaration == self.declaration:
            return None
        return include_files.FileChange(
            self.path, self.text, node_declaration.write_declaration(declaration)
        )


def read_node_file(
    named: Path | None, on_this_machine: bool, folder: Path | None, name: str = HERE.name
) -> NodeFile:
    """Find and read the declaration.

    :param named: the path of ``--declaration``.
    :param on_this_machine: the node is this machine.
    :param folder: the folder for include files.
    :param name: of the file in *folder*.
    :raises NodeFileError: the file exists and cannot be used, or *named* does not exist and there
        is no *folder*.
    :raises include_files.IncludeError: it cannot be read.
    """
    path = named
    if path is None and on_this_machine:
        path = HERE
    elif path is None and folder is not None:
        path = folder / name
    text = None if path is None else include_files.read_plain_file(path)
    if text is None:
        if named is not None and folder is None:
            raise NodeFileError(f"{named} is not there; nova-hpc configure --write makes it")
        return NodeFile(path)
    try:
        declared = node_declaration.read_declaration(text)
        _check_wishes(declared.wishes, "")
        for host, wishes in declared.nodes.items():
            _check_wishes(wishes, f"nodes: {host}: ")
    except WireError as error:
        raise NodeFileError(f"{path}: {error}") from error
    return NodeFile(path, text, declared)


def role_entries_of(wishes: NodeWishes) -> list[str]:
    """Return the declared roles as values of ``[hpc]device_role``."""
    return [json.dumps(dict(entry)) for entry in wishes.roles or ()]


def by_key(error: Exception) -> str:
    """Return the text of an error, with keys of the declaration in place of options."""
    text = str(error).replace("[hpc]nvlink_set", "nvlink_sets")
    return text.replace("[hpc]device_role", "roles")


def _check_wishes(wishes: NodeWishes, where: str) -> None:
    """Check that Nova accepts the names, and that roles and sets can be parsed.

    :param where: prefix of the error's text, the place in the file.
    :raises WireError: a value makes no sense; the text names its place.
    """
    try:
        role_table.parse_roles(role_entries_of(wishes))
        nvlink_sets.parse_nvlink_sets(wishes.nvlink_sets or ())
    except (role_table.RoleError, nvlink_sets.NvlinkError) as error:
        raise WireError(f"{where}{by_key(error)}") from error
    for role, wish in (wishes.role_options or {}).items():
        _check_role_wish(wish, f"{where}role_options: {role}: ")
    for network in wishes.rails.networks if wishes.rails else ():
        _check_name(declaration.check_network, network, f"{where}rails: physical_network")


def _check_role_wish(wish: RoleWish, where: str) -> None:
    for key, names, check in (
        ("resource_class", (wish.resource_class,), declaration.check_resource_class),
        ("physical_network", (wish.physical_network,), declaration.check_network),
        ("traits", wish.traits or (), declaration.check_trait),
    ):
        for name in names:
            if name is not None:
                _check_name(check, name, f"{where}{key}")


def _check_name(check: Callable[[str], str], name: str, where: str) -> None:
    try:
        check(name)
    except declaration.DeclarationError as error:
        raise WireError(f"{where}: {error}") from error


# --- facts of the node --------------------------------------------------------------------


@attrs.frozen
class IdentifiedHardware:
    """Address -> hardware identity (serial number) of devices, as far as it can be read."""

    #: Address -> the identity of a device, by its serial number; else its slot.
    hardware: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Kinds of facts that the files have in a replaced form; of
    #: :data:`nova_hpc.wire.capture.KINDS`.
    replaced: frozenset[str] = frozenset()


def identify_devices(root: Path | None, node: Node) -> IdentifiedHardware:
    """Read the identity of each device.

    Virtual functions have no serial number of their own. If an archive does not list the kinds
    that it has replaced, numbers in place of serial numbers are recognised by their form.

    :param root: the folder with the node's files; None for an XML, which has no serial numbers.
    """
    if root is None:
        return IdentifiedHardware(replaced=frozenset({capture.SERIALS}))
    tree = FileTree(root)
    replaced = capture.replaced_kinds_of(tree)
    seen = {}
    counted = False
    for function in node.functions:
        if function.is_bridge or function.physical_function is not None:
            continue
        look = baseline.take_snapshot(tree, function, None)
        counted |= look.stands_in
        seen[function.address] = (
            baseline.serial_of(function, look) or f"{identity.SLOT}{function.address}"
        )
    if replaced is None and counted:
        replaced = capture.KINDS - ({capture.HOST} if node.hostname != capture.NAME else set())
    return IdentifiedHardware(identity.unique_hardware_of(seen), replaced or frozenset())


@attrs.frozen
class UnofferedDevices:
    """Devices that are offered only by an explicit declaration: dangerous ones, and those in
    use.
    """

    #: Address -> why it must never be given.
    never: Mapping[str, str] = attrs.field(factory=dict)
    #: Address -> the user on the host that has it now.
    in_use: Mapping[str, str] = attrs.field(factory=dict)
    #: One sentence for each unknown fact.
    notes: tuple[str, ...] = ()

    @property
    def reasons(self) -> dict[str, str]:
        """Address -> reason, for all of these devices, with the key that offers the device
        anyway.
        """
        used_reasons = {
            address: f"{holder}; offer_in_use: ['{address}'] in the declaration offers it all the "
            "same"
            for address, holder in self.in_use.items()
        }
        return {**self.never, **used_reasons}


def find_withheld_devices(
    root: Path | None,
    node: Node,
    roles: Roles,
    device_spec: Iterable[str],
    in_use: Collection[str],
    whole: Collection[str],
    anyway: frozenset[str],
) -> UnofferedDevices:
    """Find devices that must never be given, and devices that the host itself uses.

    Devices that are offered already are not checked for users: their server uses them.

    :param root: the folder with the node's ``sys``, ``proc`` and ``dev``; None if unknown.
    :param device_spec: the entries that offer devices already.
    :param in_use: addresses that are offered although they are in use.
    :param whole: adapters that are given whole, or ``all``.
    :param anyway: ``[hpc]offer_anyway``.
    """
    able = [function for function in node.functions if roles.role_of(function, node) is not None]
    never_given, notes = _explain_forbidden_devices(root, node, able, anyway)
    if root is None:
        return UnofferedDevices(never_given, notes=notes)
    entries = [spec_entries.read_spec_entry(text) for text in device_spec]
    asked = [
        function.address
        for function in able
        if function.address not in never_given
        and function.address not in in_use
        and not (
            function.virtual_functions and not {function.address, node_declaration.EVERY} & {*whole}
        )
        and not any(spec_entries.entry_matches(entry, function) for entry in entries)
    ]
    used = {
        address: holder.text
        for address, holder in holders.find_kernel_holders(root, asked).items()
        if holder.certain
    }
    return UnofferedDevices(never_given, used, notes)


def _explain_forbidden_devices(
    root: Path | None, node: Node, able: Iterable[PciFunction], anyway: frozenset[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    @functools.cache
    def look(address: str) -> Symptom | None:
        if root is None:
            return None
        return forbidden.symptom_of_vpd(
            lambda vpd_address: forbidden_vpd.read_vpd_in_time(root, vpd_address), address
        )

    symptoms = forbidden.find_forbidden_devices(
        node, [function.address for function in able], look, anyway
    )
    sure = {
        address: f"{symptom.reason}; if that is wrong, name it in [hpc]offer_anyway"
        for address, symptom in symptoms.items()
        if symptom.sign is not HealthSign.UNSURE
    }
    notes = tuple(
        f"{address}: {symptom.reason}."
        for address, symptom in symptoms.items()
        if address not in sure
    )
    return sure, notes
