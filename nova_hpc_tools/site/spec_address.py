# SPDX-License-Identifier: Apache-2.0
"""The forms of addresses in an entry of ``[pci]device_spec``.

Rules of Nova's matcher (``nova/pci/devspec.py``), and their consequences:

* An address of a physical function matches its virtual functions, too, and
  offered together they break Nova's report to Placement. So every entry has
  vendor and product id, and physical functions are written as regular
  expressions, which never match by parent.
* Virtual functions are named by the address of their physical function, so
  that an entry also matches functions that are switched on later. That needs a
  product id of their own; otherwise each is named by regular expressions.
* PCI domains above ffff are refused at start-up in an address, and devices
  there never match a regular expression: Nova cannot give them at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from nova_hpc.topology.model import Node, PciFunction, address_key

_LAST_DOMAIN: Final = 0xFFFF


def is_expressible_address(function: PciFunction) -> bool:
    """Whether Nova has an address for *function* and its physical function."""
    both = filter(None, (function.address, function.physical_function))
    return all(address_key(address)[0] <= _LAST_DOMAIN for address in both)


def address_forms_of(
    node: Node, functions: Sequence[PciFunction]
) -> Iterator[str | dict[str, str]]:
    """Yield values of ``address`` that match *functions* and no others.

    :param functions: a single device, or virtual functions with the same ids
        of one physical function. The entry must also have these ids.
    """
    first = functions[0]
    parent = first.physical_function
    if first.dev_type == "type-PCI":
        yield first.address
    elif parent is not None and _differ_by_ids(node.function(parent), functions):
        yield parent
    else:
        yield from _address_patterns(function.address for function in functions)


def _differ_by_ids(parent: PciFunction | None, functions: Sequence[PciFunction]) -> bool:
    """Whether ids and the parent's address select exactly *functions*.

    They do not if another of its virtual functions must not match.
    """
    if parent is None or parent.vendor_id is None or parent.product_id is None:
        return False
    if (parent.vendor_id, parent.product_id) == (functions[0].vendor_id, functions[0].product_id):
        return False
    return set(parent.virtual_functions) <= {function.address for function in functions}


def _address_patterns(addresses: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the fewest products of domain, bus, slots and functions that cover exactly *addresses*.

    Nova treats an expression without any special character as an address, and an address of a
    physical function stands for all of its virtual functions: hence the brackets. Fields have a
    fixed width, so no anchors are needed.

    Functions 2 and 3 of slots 00 and 01 on bus 3b become one product: domain ``0000``, bus ``3b``,
    slot ``00|01``, function ``[23]``.
    """
    slots: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for address in sorted(addresses, key=address_key):
        domain, bus, rest = address.split(":")
        slot, function = rest.split(".")
        slots[domain, bus, slot].append(function)
    buses: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (domain, bus, slot), functions in slots.items():
        buses[domain, bus, "".join(functions)].append(slot)
    for (domain, bus, digits), names in buses.items():
        yield {"domain": domain, "bus": bus, "slot": "|".join(names), "function": f"[{digits}]"}
