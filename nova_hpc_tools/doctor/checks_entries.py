# SPDX-License-Identifier: Apache-2.0
"""Faults of foreign entries and aliases, and of ours together with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.site import entry_losses, identity, spec_entries
from nova_hpc_tools.site.cures import (
    ENTRY_REMOVAL,
    NOVA,
    RESTART_COMPUTE,
    CommandRun,
    CuredCommand,
    DoctorCure,
    ServiceRestart,
    place_option,
)
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few
from nova_hpc_tools.site.nova_rules import NovaRefusal

_THEIRS: Final = place_option("pci", "device_spec", called="the file that has it")
#: Keys and ids of aliases of this project.
_ALIAS: Final = frozenset(
    {"name", "vendor_id", "product_id", "resource_class", "traits", "device_type"}
)
_ID: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)


@attrs.frozen
class Entries:
    """The device_spec entries and aliases of nova-compute, and Nova's refusals of them."""

    node: Node
    #: Entries of others, one each, unchanged; our entries; and the entries that
    #: ``nova-hpc configure`` would write now.
    others: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    #: Values of ``[pci]alias``.
    aliases: tuple[str, ...] = ()
    refusals: tuple[NovaRefusal, ...] = ()
    #: Why Nova's parser was not used; None if it was, or if there is no need.
    unasked: str | None = None


def check_entries(facts: Entries) -> Iterator[DoctorFinding]:
    """Yield the faults in device_spec entries and aliases of nova.conf."""
    for refusal in facts.refusals:
        yield _refusal_finding(refusal, facts)
    if facts.unasked is not None:
        yield DoctorFinding(
            "not-looked",
            "Nova's own parser has not read entries and aliases that this command did not write: "
            f"{facts.unasked}.",
            DoctorCure.of(
                "Run ", CommandRun(CuredCommand.DOCTOR_BESIDE_NOVA), ", with its configuration."
            ),
        )
    yield from _check_hidden_entries(facts)
    yield from _check_unmatched_entries(facts)
    yield from _check_alias_types(facts)


def _check_unmatched_entries(facts: Entries) -> Iterator[DoctorFinding]:
    """Find foreign entries that name no device here; ``offered-gone`` reports our entries."""
    refused = {line for refusal in facts.refusals for line in refusal.entries}
    for line in dict.fromkeys(facts.others):
        entry = spec_entries.read_spec_entry(line)
        if not entry or line in refused or "devname" in entry:
            continue  # other findings report entries with which Nova does not start
        if not any(spec_entries.entry_matches(entry, each) for each in facts.node.functions):
            yield DoctorFinding(
                "entry-unmatched",
                f"The entry {line} of [pci]device_spec matches no device of this node.",
                DoctorCure.of(
                    "Correct it, or take it out of ", _THEIRS, "; then ", RESTART_COMPUTE, "."
                ),
            )


def _refusal_finding(refusal: NovaRefusal, facts: Entries) -> DoctorFinding:
    if refusal.option == "alias":
        return DoctorFinding(
            "alias-broken",
            f"Nova refuses [pci]alias: {refusal.text}.",
            DoctorCure.of(
                "Correct ",
                place_option("pci", "alias", None, *NOVA, called="it in the file that has it"),
                ", and ",
                ServiceRestart(NOVA, called="nova-compute and the controllers"),
                ".",
            ),
        )
    theirs = [
        line
        for value in refusal.entries
        for line in spec_entries.entries_of_value(value)
        if line in facts.others
    ]
    return DoctorFinding(
        "nova-refuses",
        f"Nova refuses [pci]device_spec: {refusal.text}.",
        DoctorCure.of(_cure_of_refusal(theirs, facts.node), "; then ", RESTART_COMPUTE, "."),
    )


def _cure_of_refusal(theirs: Sequence[str], node: Node) -> DoctorCure:
    """Return the cure of a refusal by Nova's parser, a sentence without its full stop.

    :param theirs: foreign entries that name the device.
    """
    (line, *more) = [*theirs, None]
    if line is None or more != [None]:
        return DoctorCure.of("Take one of the entries that name the device out of ", _THEIRS)
    entry = spec_entries.read_spec_entry(line)
    addressed = spec_entries.entry_by_address(entry, node)
    if addressed is not entry:
        return DoctorCure.of(
            f"Write the address {addressed['address']} in the place of the interface, in ", _THEIRS
        )
    if entry.get(spec_entries.DEVNAME):
        return DoctorCure.of(f"Write the address of {entry[spec_entries.DEVNAME]} in its place")
    return DoctorCure.of(f"Correct {line} in ", _THEIRS)


def _check_hidden_entries(facts: Entries) -> Iterator[DoctorFinding]:
    for hidden in entry_losses.find_hiding_entries(
        facts.others, facts.ours, facts.expected, facts.node
    ):
        yield DoctorFinding(
            "entry-hidden",
            f"{join_first_few(hidden.addresses)}: an entry of [pci]device_spec without "
            f"tags comes before the "
            f"one with tags: {hidden.line}.",
            ENTRY_REMOVAL,
        )


# --- aliases ----------------------------------------------------------------------


def _check_alias_types(facts: Entries) -> Iterator[DoctorFinding]:
    """Find aliases that match devices in all but the type."""
    lines = [*spec_entries.translate_interfaces(facts.others, facts.node), *facts.ours]
    entries = [spec_entries.read_spec_entry(line) for line in lines]
    for alias in map(spec_entries.read_spec_entry, facts.aliases):
        if not alias.get("name"):
            continue
        alike = [
            function
            for function in facts.node.functions
            if (entry := spec_entries.first_matching_entry(entries, function)) is not None
            and not entry.get(spec_entries.NETWORK)
            and _means_device(alias, function, entry)
        ]
        wanted = alias.get("device_type")
        if not alike or any(_is_of_type(function, wanted) for function in alike):
            continue
        types = sorted({function.dev_type for function in alike})
        yield DoctorFinding(
            "alias-type",
            f"[pci]alias {alias['name']} requests {wanted or 'no device_type'}, and "
            f"{join_first_few([function.address for function in alike])} are "
            f"{' and '.join(types)} here.",
            DoctorCure.of(
                f'Write "device_type": "{types[0]}" into ',
                place_option(
                    "pci", "alias", None, *NOVA, called="the alias, in every file that has it"
                ),
                ", and ",
                ServiceRestart(NOVA, called="Nova's services"),
                ".",
            ),
        )


def is_plain(text: str) -> bool:
    """Whether an alias has the form of this project, which Nova's parser need not check."""
    alias = spec_entries.read_spec_entry(text)
    ids = [str(alias[key]) for key in ("vendor_id", "product_id") if key in alias]
    return (
        bool(alias.get("name"))
        and set(alias) <= _ALIAS
        and all(isinstance(value, str) for value in alias.values())
        and all(map(_ID.fullmatch, ids))
        and alias.get("device_type") in (None, "type-PCI", "type-PF", "type-VF")
        and (len(ids) == 2 or bool(alias.get("resource_class")))
    )


def _is_of_type(function: PciFunction, wanted: object) -> bool:
    """Whether a function has the type; without a type Nova gives no physical function.

    See pci/stats.py, unrequested_pfs.
    """
    if wanted is None:
        return function.dev_type not in ("type-PF", "vdpa")
    return function.dev_type == wanted


def _means_device(
    alias: Mapping[str, Any], function: PciFunction, entry: Mapping[str, Any]
) -> bool:
    """Whether an alias matches a device, whatever its type."""
    for key, value in (("vendor_id", function.vendor_id), ("product_id", function.product_id)):
        if key in alias and str(alias[key]).lower() != value:
            return False
    ids = function.vendor_id or "", function.product_id or ""
    resource_class = identity.class_as_nova_has_it(
        entry.get("resource_class") or identity.product_class(*ids)
    )
    if alias.get("resource_class"):
        if identity.class_as_nova_has_it(alias["resource_class"]) != resource_class:
            return False
    elif not {"vendor_id", "product_id"} <= set(alias):
        return False
    traits = identity.traits_as_nova_has_them(alias.get("traits"))
    return traits <= identity.traits_as_nova_has_them(entry.get("traits"))


def ours_and_others(lines: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Divide device_spec entries into nova-hpc's own and foreign ones, in this order."""
    texts = spec_entries.split_entries(lines)
    own_lines = tuple(
        line for line in texts if spec_entries.is_own_entry(spec_entries.read_spec_entry(line))
    )
    return own_lines, tuple(line for line in texts if line not in own_lines)
