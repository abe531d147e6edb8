# SPDX-License-Identifier: Apache-2.0
"""The file of the node's declaration, and what the node itself says to it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy import forbidden as never
from nova_hpc.tenancy import forbidden_vpd as never_read
from nova_hpc.tenancy import holders, identity
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.topology.files import Tree
from nova_hpc.topology.model import Function, Node
from nova_hpc.topology.roles import Roles
from nova_hpc.wire import capture, node_declaration
from nova_hpc.wire.node_declaration import NodeDeclaration
from nova_hpc.wire.version import WireError
from nova_hpc_tools.adopt import include_files, spec_entries

#: Of this machine.
HERE: Final = Path("/etc/nova-hpc/node.yaml")


class NodeFileError(Exception):
    """The declaration cannot be used; the text names the file and why."""


@attrs.frozen
class NodeFile:
    """The file as it is; without a path there is none, and none is written."""

    path: Path | None
    text: str | None = None
    #: None: nothing was declared yet.
    declaration: NodeDeclaration | None = None

    def change(self, now: NodeDeclaration) -> include_files.Change | None:
        """What has to be written; None: the file says it already."""
        if self.path is None or now == self.declaration:
            return None
        return include_files.Change(self.path, self.text, node_declaration.dumps(now))


def read(named: Path | None, here: bool, folder: Path | None, name: str = HERE.name) -> NodeFile:
    """Find and read the declaration.

    :param named: by ``--declaration``.
    :param here: the node is this machine.
    :param folder: where include files are written.
    :param name: of the file there.
    :raises NodeFileError: it is there and cannot be used.
    :raises include_files.IncludeError: it cannot be read.
    """
    path = named
    if path is None and here:
        path = HERE
    elif path is None and folder is not None:
        path = folder / name
    text = None if path is None else include_files.read(path)
    if text is None:
        if named is not None and folder is None:
            raise NodeFileError(f"{named} is not there; nova-hpc configure --write makes it")
        return NodeFile(path)
    try:
        return NodeFile(path, text, node_declaration.loads(text))
    except WireError as error:
        raise NodeFileError(f"{path}: {error}") from error


# --- what the node says -------------------------------------------------------------------


@attrs.frozen
class Identified:
    """Which hardware is where, as far as the node's files say it."""

    #: Address -> what a device says that it is, by its serial number; else its slot.
    hardware: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: What the files do not have as the node has it; of :data:`nova_hpc.wire.capture.KINDS`.
    replaced: frozenset[str] = frozenset()


def identify(root: Path | None, node: Node) -> Identified:
    """Ask each device which hardware it is.

    Virtual functions have no serial number of their own. In an archive of an earlier release
    numbers stand for serial numbers, and it does not say so; they are told by their form.

    :param root: where the node's files are; None: it came from an XML, which tells none.
    """
    if root is None:
        return Identified(replaced=frozenset({capture.SERIALS}))
    tree = Tree(root)
    replaced = capture.replaced(tree)
    seen = {}
    counted = False
    for each in node.functions:
        if each.is_bridge or each.physical_function is not None:
            continue
        look = baseline.take(tree, each, None)
        counted |= look.stands_in
        seen[each.address] = baseline.serial_of(each, look) or f"{identity.SLOT}{each.address}"
    if replaced is None and counted:
        replaced = capture.KINDS - ({capture.HOST} if node.hostname != capture.NAME else set())
    return Identified(identity.unique(seen), replaced or frozenset())


@attrs.frozen
class Withheld:
    """What is not offered without an explicit word."""

    #: Address -> why it must never be given.
    never: Mapping[str, str] = attrs.field(factory=dict)
    #: Address -> who of the host uses it now.
    in_use: Mapping[str, str] = attrs.field(factory=dict)
    #: One sentence each: what nobody knows.
    notes: tuple[str, ...] = ()

    @property
    def reasons(self) -> dict[str, str]:
        """Address -> why, of both kinds, and which option offers it all the same."""
        found = {
            each: f"{why}; --offer-in-use {each} offers it all the same"
            for each, why in self.in_use.items()
        }
        return {**self.never, **found}


def withheld(
    root: Path | None,
    node: Node,
    roles: Roles,
    device_spec: Iterable[str],
    in_use: Collection[str],
    whole: Collection[str],
    anyway: frozenset[str],
) -> Withheld:
    """Devices that must never be given, and those that the host uses.

    What is offered already is not asked who uses it: its server does.

    :param root: where the node's ``sys``, ``proc`` and ``dev`` are; None: nobody knows.
    :param device_spec: what is offered already.
    :param in_use: addresses that are offered although they are in use.
    :param whole: adapters that are given whole, or ``all``.
    :param anyway: ``[hpc]offer_anyway``.
    """
    able = [each for each in node.functions if roles.role_of(each, node) is not None]
    never_given, notes = _never(root, node, able, anyway)
    if root is None:
        return Withheld(never_given, notes=notes)
    entries = [spec_entries.read(text) for text in device_spec]
    asked = [
        each.address
        for each in able
        if each.address not in never_given
        and each.address not in in_use
        and not (each.virtual_functions and not {each.address, node_declaration.EVERY} & {*whole})
        and not any(spec_entries.matches(entry, each) for entry in entries)
    ]
    used = {
        address: holder.text
        for address, holder in holders.holders(root, asked).items()
        if holder.certain
    }
    return Withheld(never_given, used, notes)


def _never(
    root: Path | None, node: Node, able: Iterable[Function], anyway: frozenset[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    @functools.cache
    def look(address: str) -> Symptom | None:
        if root is None:
            return None
        return never.by_vpd(lambda each: never_read.read(root, each), address)

    found = never.reasons(node, [each.address for each in able], look, anyway)
    sure = {
        address: f"{one.reason}; if that is wrong, name it in [hpc]offer_anyway"
        for address, one in found.items()
        if one.sign is not Sign.UNSURE
    }
    notes = tuple(
        f"{address}: {one.reason}." for address, one in found.items() if address not in sure
    )
    return sure, notes
