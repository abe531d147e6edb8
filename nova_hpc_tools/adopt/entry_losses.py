# SPDX-License-Identifier: Apache-2.0
"""The losses when others remove an entry of ``[pci]device_spec``. Pure.

The functions here compare the entry that counts for each function before with the one that counts
after, key by key. ``configure`` and ``doctor`` name the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
class Hiding:
    """An entry of others that counts although one of ours names the device, too."""

    line: str
    #: Of the functions.
    addresses: tuple[str, ...]
    #: The losses when it is removed.
    losses: tuple[KeyLoss, ...]


def find_hiding_entries(
    others: Sequence[str], ours: Iterable[str], instead: Iterable[str], node: Node
) -> Iterator[Hiding]:
    """Find entries of others that come before ours.

    :param others: one entry each, as they are written.
    :param ours: the present entries of this project.
    :param instead: the entries that this project writes when one of *others* is removed.
    """
    by_text = {spec_entries.translate_interfaces([line], node)[0]: line for line in others}
    own_lines = list(instead)
    for text, addresses in spec_entries.hidden_addresses_of([*by_text, *ours], node).items():
        line = by_text[text]
        rest = [*(other for other in others if other != line), *own_lines]
        losses = _losses_between([*others, *own_lines], rest, node)
        yield Hiding(line, tuple(addresses), tuple(losses))


def _losses_between(before: Iterable[str], after: Iterable[str], node: Node) -> Iterator[KeyLoss]:
    texts = (
        spec_entries.translate_interfaces(before, node),
        spec_entries.translate_interfaces(after, node),
    )
    return losses_of_functions(*texts, node)


# --- what is carried over ---------------------------------------------------------


def kept_keys(
    lines: Iterable[str], node: Node, remembered: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, str | None]]:
    """Address -> what its entry goes on saying, as an entry that is not ours says it now.

    :param lines: what is configured, one entry each, interfaces translated.
    :param remembered: the same of removed entries, from the declaration.
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
