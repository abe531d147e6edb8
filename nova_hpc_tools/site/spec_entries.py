# SPDX-License-Identifier: Apache-2.0
"""Entries of ``[pci]device_spec``, of any author, and the functions that each names. Pure.

The rules are Nova's (nova/pci/devspec.py and whitelist.py, 32 to 34): a value of the option
is one JSON object or a list of them; the first entry that names a function counts.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.wire import tags

#: Key that names the device by an interface of the host. Nova reports no such entry in Placement
#: (pci_placement_translator.py, ensure_no_dev_spec_with_devname).
DEVNAME: Final = "devname"

#: Keys by which an entry names its devices; all others are tags of Nova's pools.
PLACES: Final = frozenset({"vendor_id", "product_id", "address", DEVNAME})

#: Nova gives devices with this key only to Neutron's ports (nova/pci/request.py, PCI_NET_TAG).
NETWORK: Final = "physical_network"

#: The full address of one function.
_WHOLE: Final = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]", re.ASCII)
_PLAIN: Final = re.compile(r"[0-9a-fA-F]+")

#: Digits of domain, bus, slot and function.
_WIDTHS: Final = (4, 2, 2, 1)


#: Stands for a text that is not a JSON object; an empty object would name every device.
NOTHING: Final[Mapping[str, Any]] = types.MappingProxyType({})


def read_spec_entry(text: str) -> Mapping[str, Any]:
    """Parse the JSON object in *text*; NOTHING if it is not one, with which Nova would not
    start.
    """
    parsed = _parse_json_or_none(text)
    return parsed if isinstance(parsed, dict) else NOTHING


def _parse_json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def split_entries(values: Iterable[str]) -> tuple[str, ...]:
    """Split these values into device_spec entries; return each as a text of its own, each once."""
    return tuple(dict.fromkeys(entry for value in values for entry in entries_of_value(value)))


def entries_of_value(value: str) -> list[str]:
    """Return the entries in one value of ``[pci]device_spec``: a JSON list or a single object."""
    several = _parse_json_or_none(value)
    if isinstance(several, list) and all(isinstance(entry, dict) for entry in several):
        return [json.dumps(entry) for entry in several]
    return [value]


def is_own_entry(entry: Mapping[str, Any]) -> bool:
    """Return whether ``nova-hpc configure`` wrote the entry: it has the tag of a role."""
    return tags.ROLE in entry


def carried_keys_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of an entry, without the keys that name its devices and nova-hpc's tags."""
    return {
        key: value
        for key, value in entry.items()
        if key not in PLACES and not key.startswith("hpc_")
    }


# --- interfaces -----------------------------------------------------------------


def entry_by_address(entry: Mapping[str, Any], node: Node) -> Mapping[str, Any]:
    """Replace the interface in an entry by its PCI address, if this node has the interface.

    For Nova the address names the same devices: in both forms a physical function stands for its
    virtual ones.
    """
    name = entry.get(DEVNAME)
    if not name or not isinstance(name, str) or "address" in entry:
        return entry
    for function in node.functions:
        if f"net {name}" in function.os_devices:
            return {
                key if key != DEVNAME else "address": function.address if key == DEVNAME else value
                for key, value in entry.items()
            }
    return entry


def translate_interfaces(texts: Iterable[str], node: Node) -> tuple[str, ...]:
    """Return entries as texts, with PCI addresses in place of interface names, each once."""
    translated_texts = []
    for text in texts:
        entry = read_spec_entry(text)
        addressed = entry_by_address(entry, node)
        translated_texts.append(text if addressed is entry else json.dumps(dict(addressed)))
    return tuple(dict.fromkeys(translated_texts))


# --- which functions ------------------------------------------------------------


def entry_matches(entry: Mapping[str, Any], function: PciFunction) -> bool:
    """Whether an entry of device_spec names *function* (nova/pci/devspec.py).

    An entry with an interface (``devname``) matches no function: see
    :func:`translate_interfaces`.
    """
    address = entry.get("address")
    # A quick answer: most entries have the full address of one function, mostly another one.
    whole = isinstance(address, str) and _WHOLE.fullmatch(address) is not None
    if whole and str(address).lower() not in (function.address, function.physical_function):
        return False
    for key, value in (("vendor_id", function.vendor_id), ("product_id", function.product_id)):
        if str(entry.get(key, "*")).strip().lower().removeprefix("0x") not in ("*", value):
            return False
    if entry is NOTHING or entry.get(DEVNAME):
        return False
    wanted = _address_fields(entry.get("address") or "*:*:*.*")
    if wanted is None:
        return False
    addresses = [function.address]
    if function.physical_function is not None and all(map(_PLAIN.fullmatch, wanted)):
        # Only an address without expressions matches the virtual functions below it, too.
        addresses.append(function.physical_function)
    return any(_fits_address(wanted, address) for address in addresses)


def _address_fields(address: Any) -> list[str] | None:
    """Return domain, bus, slot and function of an entry as expressions; None if Nova refuses it."""
    if isinstance(address, dict):
        names = ("domain", "bus", "slot", "function")
        return [str(address.get(name, ".*")) for name in names]
    place, _, number = str(address).lower().partition(".")
    given = [part.strip() for part in place.split(":")]
    given = [*[""] * (3 - len(given)), *given, number.strip()]
    if len(given) != len(_WIDTHS):
        return None
    return [
        ".*" if part in ("", "*") else part.zfill(width)
        for part, width in zip(given, _WIDTHS, strict=True)
    ]


def _fits_address(wanted: Sequence[str], address: str) -> bool:
    place, _, number = address.partition(".")
    try:
        return all(
            re.match(want, field)
            for want, field in zip(wanted, [*place.split(":"), number], strict=True)
        )
    except re.error:
        return False


def first_matching_entry(
    entries: Iterable[Mapping[str, Any]], function: PciFunction
) -> Mapping[str, Any] | None:
    """Find the entry for *function* (whitelist.py, Whitelist.get_devspec); else None."""
    return next((entry for entry in entries if entry_matches(entry, function)), None)


def entries_of_functions(
    device_spec: Iterable[str], functions: Iterable[PciFunction]
) -> Iterator[Mapping[str, Any]]:
    """Yield the first matching entry for each of *functions* that has one."""
    entries = [read_spec_entry(text) for text in device_spec]
    for function in functions:
        entry = first_matching_entry(entries, function)
        if entry is not None:
            yield entry


def hidden_addresses_of(device_spec: Iterable[str], node: Node) -> dict[str, list[str]]:
    """Return foreign entry -> addresses that a later entry of nova-hpc names, too."""
    texts = list(device_spec)
    entries = [read_spec_entry(text) for text in texts]
    addresses: dict[str, list[str]] = {}
    for function in node.functions:
        named = [number for number, entry in enumerate(entries) if entry_matches(entry, function)]
        if any(is_own_entry(entries[number]) for number in named[1:]) and not is_own_entry(
            entries[named[0]]
        ):
            addresses.setdefault(texts[named[0]], []).append(function.address)
    return addresses


def addresses_of_entry(entry: Mapping[str, Any]) -> list[str]:
    """Return the PCI addresses that an entry of nova-hpc names.

    See :mod:`nova_hpc_tools.site.spec_address`.
    """
    address = entry.get("address")
    if isinstance(address, str):
        return [address.lower()]
    if not isinstance(address, dict):
        return []
    parts = {name: str(address.get(name, "")) for name in ("domain", "bus", "slot", "function")}
    return [
        f"{parts['domain']}:{parts['bus']}:{slot}.{digit}".lower()
        for slot in parts["slot"].split("|")
        for digit in parts["function"].strip("[]")
    ]
