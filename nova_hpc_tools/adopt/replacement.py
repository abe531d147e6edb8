# SPDX-License-Identifier: Apache-2.0
"""The losses when an entry of ``[pci]device_spec`` of somebody else's is taken out. Pure.

The entry that counts for each function before is compared with the one that counts after,
key by key: ``configure`` refuses by it, and ``doctor`` advises by it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.adopt import identity, spec_entries
from nova_hpc_tools.adopt.nova_rules import is_true

#: Keys that Nova reads as true or false.
_FLAGS: Final = frozenset({"managed", "live_migratable", "one_time_use", "remote_managed"})


@attrs.frozen
class KeyLoss:
    """A property that a function has now and would not have any more."""

    address: str
    #: A sentence without its full stop.
    text: str


def is_same_entry(line: str, entry: Mapping[str, Any]) -> bool:
    """Whether *line* is this entry, however it is written."""
    parsed = spec_entries.read_spec_entry(line)
    # JSON tells true from 1, Python does not.
    if parsed is spec_entries.NOTHING:
        return False
    return json.dumps(dict(parsed), sort_keys=True) == json.dumps(dict(entry), sort_keys=True)


def losses_of_functions(
    before: Iterable[str], after: Iterable[str], node: Node
) -> Iterator[KeyLoss]:
    """The losses of functions for which an entry that is not ours has counted.

    :param before: one entry each, interfaces translated.
    """
    first = [spec_entries.read_spec_entry(line) for line in before]
    second = [spec_entries.read_spec_entry(line) for line in after]
    for function in node.functions:
        old = spec_entries.first_matching_entry(first, function)
        if old is None or spec_entries.is_own_entry(old):
            continue
        new = spec_entries.first_matching_entry(second, function)
        if new is old or new == old:
            continue
        if new is None:
            pairs = ", ".join(
                f"{key} {format_value(value)}"
                for key, value in spec_entries.carried_keys_of(old).items()
            )
            text = f"{function.address} is offered{f' ({pairs})' if pairs else ''} and would not be"
            yield KeyLoss(function.address, text)
            continue
        for key, value in spec_entries.carried_keys_of(old).items():
            if not _keeps_value(new, key, value, function):
                would = f"would be {format_value(new[key])}" if key in new else "would be lost"
                text = f"{function.address}: {key} is {format_value(value)} and {would}"
                yield KeyLoss(function.address, text)


def _keeps_value(entry: Mapping[str, Any], key: str, value: object, function: PciFunction) -> bool:
    if key == "traits":
        return identity.traits_as_nova_has_them(value) <= identity.traits_as_nova_has_them(
            entry.get(key)
        )
    if key == "resource_class":
        ids = function.vendor_id or "", function.product_id or ""
        resource_class = entry.get(key) or identity.product_class(*ids)
        return not value or identity.class_as_nova_has_it(
            resource_class
        ) == identity.class_as_nova_has_it(value)
    if key not in entry:
        # Nova's own: managed unless it says no, and all others not.
        return key in _FLAGS and is_true(value) is (key == "managed")
    if key in _FLAGS:
        return is_true(entry[key]) is is_true(value)
    return as_tag(entry[key]) == as_tag(value)


def format_value(value: object) -> str:
    """A value of an entry, for people."""
    return value if isinstance(value, str) else json.dumps(value)


def as_tag(value: object) -> str | None:
    """A value as it is written into an entry of ours: Nova's tags are texts, or null."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


@attrs.frozen
class ReplacementPlan:
    """The plan for the entries of others."""

    #: What they say afterwards, one entry each.
    others: tuple[str, ...]
    #: Of what they say now: what goes, and what gets an address for its interface.
    removed: tuple[str, ...] = ()
    rewritten: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    losses: tuple[KeyLoss, ...] = ()


def plan_replacement(
    others: Iterable[str],
    ours: Iterable[str],
    node: Node,
    taken: Collection[str] = (),
    translate: bool = False,
) -> ReplacementPlan:
    """Take entries of others out, as far as ours say all of it.

    One that names an interface and says more than ours gets the interface's address instead.

    :param others: one entry each, as they are written.
    :param ours: what is written behind them.
    :param taken: of *others* those that are named.
    :param translate: give every interface of this node its address.
    """
    before, own_lines = tuple(others), tuple(ours)
    rewritten = {
        line: addressed
        for line in before
        if (addressed := _entry_with_address(line, node)) is not None
    }
    removed = []
    for line in taken:
        rest = [candidate for candidate in before if candidate != line]
        if line not in rewritten or not list(_losses_between(before, [*rest, *own_lines], node)):
            removed.append(line)
    changed = {
        line: text
        for line, text in rewritten.items()
        if line not in removed and (translate or line in taken)
    }
    after = tuple(changed.get(line, line) for line in before if line not in removed)
    return ReplacementPlan(
        others=after,
        removed=tuple(removed),
        rewritten=changed,
        losses=tuple(_losses_between(before, [*after, *own_lines], node)) if removed else (),
    )


@attrs.frozen
class Hiding:
    """An entry of others that counts where one of ours names the device, too."""

    line: str
    #: Of the functions.
    addresses: tuple[str, ...]
    #: What becomes of it when it is taken out.
    plan: ReplacementPlan


def find_hiding_entries(
    others: Sequence[str], ours: Iterable[str], instead: Iterable[str], node: Node
) -> Iterator[Hiding]:
    """Entries of others that come before ours.

    :param others: one entry each, as they are written.
    :param ours: what is written now.
    :param instead: what is written when one of them is taken out.
    """
    by_text = {spec_entries.translate_interfaces([line], node)[0]: line for line in others}
    own_lines = list(instead)
    for text, addresses in spec_entries.hidden_addresses_of([*by_text, *ours], node).items():
        line = by_text[text]
        yield Hiding(line, tuple(addresses), plan_replacement(others, own_lines, node, [line]))


def format_replace_option(line: str) -> str:
    """``--replace`` of one entry, as it is typed."""
    return f"--replace {shlex.quote(line)}"


def _losses_between(before: Iterable[str], after: Iterable[str], node: Node) -> Iterator[KeyLoss]:
    texts = (
        spec_entries.translate_interfaces(before, node),
        spec_entries.translate_interfaces(after, node),
    )
    return losses_of_functions(*texts, node)


def _entry_with_address(line: str, node: Node) -> str | None:
    """The same entry with the address of its interface; None: it has none, or not here."""
    entry = spec_entries.read_spec_entry(line)
    addressed = spec_entries.entry_by_address(entry, node)
    return None if addressed is entry else json.dumps(dict(addressed))


# --- what is carried over ---------------------------------------------------------


def kept_keys(
    lines: Iterable[str], node: Node, remembered: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, str | None]]:
    """Address -> what its entry goes on saying, as an entry that is not ours says it now.

    :param lines: what is configured, one entry each, interfaces translated.
    :param remembered: the same of entries that are gone by now, as it was declared.
    """
    entries = [spec_entries.read_spec_entry(line) for line in lines]
    kept = {}
    for function in node.functions:
        entry = spec_entries.first_matching_entry(entries, function)
        pairs: Mapping[str, Any]
        if entry is None or spec_entries.is_own_entry(entry):
            pairs = remembered.get(function.address, {})
        else:
            pairs = spec_entries.carried_keys_of(entry)
        if pairs:
            kept[function.address] = {key: as_tag(value) for key, value in pairs.items()}
    return kept
