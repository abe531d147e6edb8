# SPDX-License-Identifier: Apache-2.0
"""What is wrong with entries and aliases of others, and of ours beside them. Pure.

Advice is tried before it is given: an entry of others is taken out only where ours says all
that it says, by the same function by which ``configure`` does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.topology.model import Function, Node
from nova_hpc_tools.adopt import identity, replacement, spec_entries
from nova_hpc_tools.adopt.findings import Finding, some
from nova_hpc_tools.adopt.nova_rules import Refusal

_WRITE: Final = "nova-hpc configure --write /etc/nova/nova.conf.d --part compute --part common"
_RESTART: Final = "and restart nova-compute."
#: Keys and ids of aliases of this project.
_ALIAS: Final = frozenset(
    {"name", "vendor_id", "product_id", "resource_class", "traits", "device_type"}
)
_ID: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)


@attrs.frozen
class Entries:
    """What nova-compute is told of devices, by whom, and what Nova says to it."""

    node: Node
    #: Entries of others, one each, as they are written; those of ours; and what
    #: ``nova-hpc configure`` would write now.
    others: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    #: Values of ``[pci]alias``.
    aliases: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    #: Why Nova was not asked; None: it was, or there is nothing to ask.
    unasked: str | None = None


def look(found: Entries) -> Iterator[Finding]:
    """What is wrong."""
    for each in found.refusals:
        yield _refused(each, found)
    if found.unasked is not None:
        yield Finding(
            "not-looked",
            "Nova's own parser has not read entries and aliases that this command did not write: "
            f"{found.unasked}.",
            "Run nova-hpc doctor with the Python of nova-compute, with what its configuration is.",
        )
    yield from _hidden(found)
    yield from _types(found)


def _refused(refusal: Refusal, found: Entries) -> Finding:
    if refusal.option == "alias":
        return Finding(
            "alias-broken",
            f"Nova refuses [pci]alias: {refusal.text}.",
            "Correct it in the file that has it, and restart nova-compute and the controllers.",
        )
    theirs = [
        line
        for value in refusal.entries
        for line in spec_entries.each_of(value)
        if line in found.others
    ]
    return Finding(
        "nova-refuses",
        f"Nova refuses [pci]device_spec: {refusal.text}.",
        f"{_cure(theirs, found.node)}; then restart nova-compute.",
    )


def _cure(theirs: Sequence[str], node: Node) -> str:
    """What makes it right, a sentence without its full stop."""
    (line, *more) = [*theirs, None]
    if line is None or more != [None]:
        return "Take one of the entries that name the device out of the file that has it"
    entry = spec_entries.read(line)
    known = spec_entries.by_address(entry, node)
    if known is not entry:
        return f"{_WRITE} {replacement.option(line)}, which puts {known['address']} in its place"
    if entry.get(spec_entries.DEVNAME):
        return f"Write the address of {entry[spec_entries.DEVNAME]} in its place"
    return f"Correct {line} in the file that has it"


def _hidden(found: Entries) -> Iterator[Finding]:
    for each in replacement.hiding(found.others, found.ours, found.expected, found.node):
        if each.plan.losses:
            said = some([loss.text for loss in each.plan.losses])
            cure = (
                f"Leave it: ours cannot say what it says ({said}). Flavors with hpc: keys do not "
                "find these devices."
            )
        else:
            cure = f"{_WRITE} {replacement.option(each.line)}, {_RESTART}"
        yield Finding(
            "entry-hidden",
            f"{some(each.addresses)}: an entry of [pci]device_spec without tags comes before the "
            f"one with tags: {each.line}.",
            cure,
        )


# --- aliases ----------------------------------------------------------------------


def _types(found: Entries) -> Iterator[Finding]:
    """Aliases whose type no device has that they ask for."""
    lines = [*spec_entries.translated(found.others, found.node), *found.ours]
    entries = [spec_entries.read(line) for line in lines]
    for alias in map(spec_entries.read, found.aliases):
        if not alias.get("name"):
            continue
        alike = [
            function
            for function in found.node.functions
            if (entry := spec_entries.first(entries, function)) is not None
            and not entry.get(spec_entries.NETWORK)
            and _asks_for(alias, function, entry)
        ]
        wanted = alias.get("device_type")
        if not alike or any(_is_of_type(each, wanted) for each in alike):
            continue
        types = sorted({each.dev_type for each in alike})
        yield Finding(
            "alias-type",
            f"[pci]alias {alias['name']} asks for {wanted or 'no device_type'}, and "
            f"{some([each.address for each in alike])} are {' and '.join(types)} here.",
            f'Write "device_type": "{types[0]}" into the alias, in every file that has it, and '
            "restart Nova's services.",
        )


def is_plain(text: str) -> bool:
    """Whether an alias is as those of this project, which need no look of Nova's."""
    alias = spec_entries.read(text)
    ids = [str(alias[key]) for key in ("vendor_id", "product_id") if key in alias]
    return (
        bool(alias.get("name"))
        and set(alias) <= _ALIAS
        and all(isinstance(value, str) for value in alias.values())
        and all(map(_ID.fullmatch, ids))
        and alias.get("device_type") in (None, "type-PCI", "type-PF", "type-VF")
        and (len(ids) == 2 or bool(alias.get("resource_class")))
    )


def _is_of_type(function: Function, wanted: object) -> bool:
    """Without a type Nova gives no physical function (pci/stats.py, unrequested_pfs)."""
    if wanted is None:
        return function.dev_type not in ("type-PF", "vdpa")
    return function.dev_type == wanted


def _asks_for(alias: Mapping[str, Any], function: Function, entry: Mapping[str, Any]) -> bool:
    """Whether an alias means a device, whatever its type."""
    for key, value in (("vendor_id", function.vendor_id), ("product_id", function.product_id)):
        if key in alias and str(alias[key]).lower() != value:
            return False
    ids = function.vendor_id or "", function.product_id or ""
    now = identity.class_as_nova_has_it(entry.get("resource_class") or identity.product_class(*ids))
    if alias.get("resource_class"):
        if identity.class_as_nova_has_it(alias["resource_class"]) != now:
            return False
    elif not {"vendor_id", "product_id"} <= set(alias):
        return False
    traits = identity.traits_as_nova_has_them(alias.get("traits"))
    return traits <= identity.traits_as_nova_has_them(entry.get("traits"))


def ours_and_others(lines: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Entries of this project, and those of others."""
    texts = spec_entries.lines(lines)
    mine = tuple(each for each in texts if spec_entries.is_ours(spec_entries.read(each)))
    return mine, tuple(each for each in texts if each not in mine)
