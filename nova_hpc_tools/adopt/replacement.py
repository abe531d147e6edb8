# SPDX-License-Identifier: Apache-2.0
"""What is lost when an entry of ``[pci]device_spec`` of somebody else's is taken out. Pure.

The entry that counts for each function before is compared with the one that counts after,
key by key: ``configure`` refuses by it, and ``doctor`` advises by it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.topology.model import Function, Node
from nova_hpc_tools.adopt import identity, spec_entries
from nova_hpc_tools.adopt.nova_rules import is_true

#: Keys that Nova reads as true or false.
_FLAGS: Final = frozenset({"managed", "live_migratable", "one_time_use", "remote_managed"})


@attrs.frozen
class KeyLoss:
    """What a function has now and would not have any more."""

    address: str
    #: A sentence without its full stop.
    text: str


def same(line: str, entry: Mapping[str, Any]) -> bool:
    """Whether *line* is this entry, however it is written."""
    found = spec_entries.read(line)
    # JSON tells true from 1, Python does not.
    if found is spec_entries.NOTHING:
        return False
    return json.dumps(dict(found), sort_keys=True) == json.dumps(dict(entry), sort_keys=True)


def losses(before: Iterable[str], after: Iterable[str], node: Node) -> Iterator[KeyLoss]:
    """What functions lose for which an entry that is not ours counts before.

    :param before: one entry each, interfaces translated.
    """
    first = [spec_entries.read(line) for line in before]
    second = [spec_entries.read(line) for line in after]
    for function in node.functions:
        old = spec_entries.first(first, function)
        if old is None or spec_entries.is_ours(old):
            continue
        new = spec_entries.first(second, function)
        if new is old or new == old:
            continue
        if new is None:
            said = ", ".join(
                f"{key} {shown(value)}" for key, value in spec_entries.kept(old).items()
            )
            text = f"{function.address} is offered{f' ({said})' if said else ''} and would not be"
            yield KeyLoss(function.address, text)
            continue
        for key, value in spec_entries.kept(old).items():
            if not _has(new, key, value, function):
                would = f"would be {shown(new[key])}" if key in new else "would be lost"
                text = f"{function.address}: {key} is {shown(value)} and {would}"
                yield KeyLoss(function.address, text)


def _has(entry: Mapping[str, Any], key: str, value: object, function: Function) -> bool:
    if key == "traits":
        return identity.traits_as_nova_has_them(value) <= identity.traits_as_nova_has_them(
            entry.get(key)
        )
    if key == "resource_class":
        ids = function.vendor_id or "", function.product_id or ""
        now = entry.get(key) or identity.product_class(*ids)
        return not value or identity.class_as_nova_has_it(now) == identity.class_as_nova_has_it(
            value
        )
    if key not in entry:
        # Nova's own: managed unless it says no, and all others not.
        return key in _FLAGS and is_true(value) is (key == "managed")
    if key in _FLAGS:
        return is_true(entry[key]) is is_true(value)
    return as_tag(entry[key]) == as_tag(value)


def shown(value: object) -> str:
    """A value of an entry, for people."""
    return value if isinstance(value, str) else json.dumps(value)


def as_tag(value: object) -> str | None:
    """A value as it is written into an entry of ours: Nova's tags are texts, or null."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


@attrs.frozen
class Plan:
    """What becomes of the entries of others."""

    #: What they say afterwards, one entry each.
    others: tuple[str, ...]
    #: Of what they say now: what goes, and what gets an address for its interface.
    removed: tuple[str, ...] = ()
    rewritten: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    losses: tuple[KeyLoss, ...] = ()


def plan(
    others: Iterable[str],
    ours: Iterable[str],
    node: Node,
    taken: Collection[str] = (),
    translate: bool = False,
) -> Plan:
    """Take entries of others out, as far as ours say all of it.

    One that names an interface and says more than ours gets the interface's address instead.

    :param others: one entry each, as they are written.
    :param ours: what is written behind them.
    :param taken: of *others* those that are named.
    :param translate: give every interface of this node its address.
    """
    before, mine = tuple(others), tuple(ours)
    rewritten = {
        line: addressed for line in before if (addressed := _addressed(line, node)) is not None
    }
    removed = []
    for line in taken:
        rest = [each for each in before if each != line]
        if line not in rewritten or not list(_between(before, [*rest, *mine], node)):
            removed.append(line)
    changed = {
        line: text
        for line, text in rewritten.items()
        if line not in removed and (translate or line in taken)
    }
    after = tuple(changed.get(line, line) for line in before if line not in removed)
    return Plan(
        others=after,
        removed=tuple(removed),
        rewritten=changed,
        losses=tuple(_between(before, [*after, *mine], node)) if removed else (),
    )


@attrs.frozen
class Hiding:
    """An entry of others that counts where one of ours names the device, too."""

    line: str
    #: Of the functions.
    addresses: tuple[str, ...]
    #: What becomes of it when it is taken out.
    plan: Plan


def hiding(
    others: Sequence[str], ours: Iterable[str], instead: Iterable[str], node: Node
) -> Iterator[Hiding]:
    """Entries of others that come before ours.

    :param others: one entry each, as they are written.
    :param ours: what is written now.
    :param instead: what is written when one of them is taken out.
    """
    by_text = {spec_entries.translated([line], node)[0]: line for line in others}
    mine = list(instead)
    for text, addresses in spec_entries.hidden([*by_text, *ours], node).items():
        line = by_text[text]
        yield Hiding(line, tuple(addresses), plan(others, mine, node, [line]))


def option(line: str) -> str:
    """``--replace`` of one entry, as it is typed."""
    return f"--replace {shlex.quote(line)}"


def _between(before: Iterable[str], after: Iterable[str], node: Node) -> Iterator[KeyLoss]:
    texts = spec_entries.translated(before, node), spec_entries.translated(after, node)
    return losses(*texts, node)


def _addressed(line: str, node: Node) -> str | None:
    """The same entry with the address of its interface; None: it has none, or not here."""
    entry = spec_entries.read(line)
    known = spec_entries.by_address(entry, node)
    return None if known is entry else json.dumps(dict(known))


# --- what is carried over ---------------------------------------------------------


def kept_keys(
    lines: Iterable[str], node: Node, remembered: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, str | None]]:
    """Address -> what its entry goes on saying, as an entry that is not ours says it now.

    :param lines: what is configured, one entry each, interfaces translated.
    :param remembered: the same of entries that are gone by now, as it was declared.
    """
    entries = [spec_entries.read(line) for line in lines]
    found = {}
    for function in node.functions:
        entry = spec_entries.first(entries, function)
        said: Mapping[str, Any]
        if entry is None or spec_entries.is_ours(entry):
            said = remembered.get(function.address, {})
        else:
            said = spec_entries.kept(entry)
        if said:
            found[function.address] = {key: as_tag(value) for key, value in said.items()}
    return found
