# SPDX-License-Identifier: Apache-2.0
"""The losses when others remove an entry of ``[pci]device_spec``. Pure.

The functions here compare, key by key, the entry that Nova takes for each function before and
after the removal. ``configure`` and ``doctor`` print the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.site import identity, spec_entries
from nova_hpc_tools.site.nova_rules import is_true

#: Keys that Nova reads as true or false.
_FLAGS: Final = frozenset({"managed", "live_migratable", "one_time_use", "remote_managed"})


@attrs.frozen
class KeyLoss:
    """A setting in device_spec that a function has now and would lose."""

    address: str
    #: A sentence without its full stop.
    text: str


def losses_of_functions(
    before: Iterable[str], after: Iterable[str], node: Node
) -> Iterator[KeyLoss]:
    """Yield the settings that functions lose when foreign device_spec entries are replaced.

    :param before: one entry each, interfaces translated.
    :param after: the same after the removal.
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
        # Nova's defaults: managed is true, and the other flags are false.
        return key in _FLAGS and is_true(value) is (key == "managed")
    if key in _FLAGS:
        return is_true(entry[key]) is is_true(value)
    return as_tag(entry[key]) == as_tag(value)


def format_value(value: object) -> str:
    """Format a value of a device_spec entry as text for people."""
    return value if isinstance(value, str) else json.dumps(value)


def as_tag(value: object) -> str | None:
    """Convert a value of a foreign entry to text or None, because Nova's tags are texts or null."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


@attrs.frozen
class Hiding:
    """A foreign device_spec entry that comes first and hides an entry of nova-hpc."""

    line: str
    #: The functions that both entries name.
    addresses: tuple[str, ...]
    #: The losses after its removal.
    losses: tuple[KeyLoss, ...]


def find_hiding_entries(
    others: Sequence[str], ours: Iterable[str], instead: Iterable[str], node: Node
) -> Iterator[Hiding]:
    """Find foreign device_spec entries that come before nova-hpc's own.

    :param others: one entry each, unchanged.
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


# --- keys that are copied ---------------------------------------------------------


def kept_keys(
    lines: Iterable[str], node: Node, remembered: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, str | None]]:
    """Return address -> settings from the foreign entry that counts now, which the new entry keeps.

    :param lines: the configured entries, one each, interfaces translated.
    :param remembered: the keys of removed entries, from the declaration.
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
