# SPDX-License-Identifier: Apache-2.0
"""The rules of nova-compute for ``[pci]device_spec`` once it reports in Placement. Pure.

``configure`` switches that report on, also on machines without Nova. So this module repeats a
few rules of nova/compute/pci_placement_translator.py (32 to 34), and a test compares them with
Nova's own. ``doctor`` uses Nova itself (:mod:`nova_hpc_tools.readers.pci_settings`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology.model import Node, PciFunction, address_key
from nova_hpc_tools.site import identity, spec_entries

_VIRTUAL: Final = ("type-VF", "vdpa")
_FALSE: Final = frozenset({"", "0", "f", "false", "off", "n", "no", "none"})


@attrs.frozen
class PciSettings:
    """The settings for PCI devices of a node's nova-compute, from all files together."""

    #: Values of the options from oslo.config.
    device_spec: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    #: ``[pci]report_in_placement`` and ``[filter_scheduler]pci_in_placement``.
    report: bool = False
    in_placement: bool = False


@attrs.frozen
class NovaRefusal:
    """A setting with which nova-compute does not start, or which it cannot use."""

    #: ``device_spec`` or ``alias``.
    option: str
    #: One sentence without its full stop.
    text: str
    #: The affected entries, unchanged.
    entries: tuple[str, ...] = ()
    #: The interface, address or provider that identifies it among others.
    what: str = ""


def placement_refusals_of(lines: Iterable[str], node: Node) -> list[NovaRefusal]:
    """Return the entries that Nova refuses if it reports to Placement, with the reasons.

    :param lines: one entry each, see :func:`nova_hpc_tools.site.spec_entries.split_entries`.
    """
    texts = list(lines)
    return [*_refuse_interface_names(texts), *_refuse_mixed_providers(texts, node)]


def driver_refusals(lines: Iterable[str], node: Node) -> list[NovaRefusal]:
    """Return the entries with which this project's own driver does not start, with the reasons.

    They give virtual functions of one adapter different tags, or tags only to some of them
    (virt_driver_patches/driver/contract.py). Nova reports these functions as one provider.
    """
    texts = list(lines)
    entries = [
        spec_entries.read_spec_entry(spec_entries.translate_interfaces([line], node)[0])
        for line in texts
    ]
    families: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
    for function in node.functions:
        entry = spec_entries.first_matching_entry(entries, function)
        if entry is None or function.physical_function is None or spec_entries.NETWORK in entry:
            continue
        own_tags = {key: value for key, value in entry.items() if key.startswith("hpc_")}
        line = next(
            text for text, candidate in zip(texts, entries, strict=True) if candidate is entry
        )
        families.setdefault(function.physical_function, {})[function.address] = (line, own_tags)
    refused = []
    for provider, children in families.items():
        first = next(iter(children.values()))[1]
        if any(own_tags != first for _, own_tags in children.values()):
            named = ", ".join(
                address for address, (_, own_tags) in children.items() if not own_tags
            )
            text = (
                f"virtual functions of {provider} have different hpc_* tags"
                f"{f' ({named} none)' if named else ''}, with which nova-compute does not start"
            )
            used = tuple(
                dict.fromkeys(line for line, own_tags in children.values() if not own_tags)
            )
            refused.append(NovaRefusal("device_spec", text, used, provider))
    return refused


def _refuse_interface_names(lines: Iterable[str]) -> Iterator[NovaRefusal]:
    for line in lines:
        name = spec_entries.read_spec_entry(line).get(spec_entries.DEVNAME)
        if name:
            text = (
                f"the entry {line} names its device by the interface {name}, and nova-compute does "
                "not start with such an entry where [pci]report_in_placement is true"
            )
            yield NovaRefusal("device_spec", text, (line,), str(name))


@attrs.frozen
class _Child:
    """A function that Nova reports to Placement, and the first entry that matches it."""

    function: PciFunction
    line: str
    entry: Mapping[str, Any]

    @property
    def resource_class(self) -> str:
        given = self.entry.get("resource_class")
        ids = self.function.vendor_id or "", self.function.product_id or ""
        return identity.class_as_nova_has_it(given) if given else identity.product_class(*ids)

    @property
    def traits(self) -> frozenset[str]:
        more = {"HW_PCI_LIVE_MIGRATABLE"} if is_true(self.entry.get("live_migratable")) else set()
        return identity.traits_as_nova_has_them(self.entry.get("traits")) | more


def is_true(value: object) -> bool:
    """Read a value as oslo.utils's bool_from_string does, for the words that Nova accepts."""
    return value is not None and str(value).strip().lower() not in _FALSE


def _refuse_mixed_providers(lines: list[str], node: Node) -> Iterator[NovaRefusal]:
    entries = [
        spec_entries.read_spec_entry(spec_entries.translate_interfaces([line], node)[0])
        for line in lines
    ]
    reported: dict[str, list[_Child]] = {}
    for function in node.functions:
        number = next(
            (n for n, entry in enumerate(entries) if spec_entries.entry_matches(entry, function)),
            None,
        )
        if number is None or entries[number].get(spec_entries.NETWORK):
            continue  # Nova keeps devices with a physical network out of Placement
        provider = function.physical_function or function.address
        child = _Child(function, lines[number], entries[number])
        reported.setdefault(provider, []).append(child)
    for provider in sorted(reported, key=address_key):
        children = reported[provider]
        text = _why_mixed(provider, children)
        if text is not None:
            used = tuple(dict.fromkeys(child.line for child in children))
            yield NovaRefusal(
                "device_spec", f"{text}, with which nova-compute does not start", used, provider
            )


def _why_mixed(provider: str, children: list[_Child]) -> str | None:
    virtual = [child for child in children if child.function.dev_type in _VIRTUAL]
    named = ", ".join(child.function.address for child in virtual)
    if virtual and len(virtual) < len(children):
        return f"{provider} and its virtual functions ({named}) would both be reported"
    if len({child.resource_class for child in virtual}) > 1:
        classes = sorted({child.resource_class for child in virtual})
        return f"virtual functions of {provider} ({named}) have the classes {' and '.join(classes)}"
    if len({child.traits for child in virtual}) > 1:
        return f"virtual functions of {provider} ({named}) have different traits"
    if any("one_time_use" in child.entry for child in virtual):
        return f"virtual functions of {provider} ({named}) have one_time_use"
    return None
