"""From the inventory of a node to its entries of ``[pci]device_spec``.

One entry offers one physical device, or the virtual functions of one physical
function. What Nova's matcher (``nova/pci/devspec.py``) does, and what follows:

* An entry with the address of a physical function matches its virtual
  functions, too. Offered together they break Nova's report to Placement. So
  every entry has vendor and product id, and physical functions are written as
  regular expressions, which never match by parent.
* Virtual functions are named by the address of their physical function, so
  that those which are switched on later belong to it. That needs a product id
  of their own; otherwise they are named one by one, by regular expressions.
* PCI domains above ffff are refused at start-up in an address, and devices
  there never match a regular expression: Nova cannot give them at all.

Whether a device may be given right now is none of this module's business:
the tracker judges that afresh at every update and withholds what may not.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology.level import Location
from nova_hpc.topology.model import Function, Node, address_key
from nova_hpc.topology.tags import Tags
from nova_hpc.tracker.roles import Roles

#: Value of :attr:`Terms.whole` that means every adapter.
EVERY: Final = "all"

#: Resource classes that Nova takes as they are, without ``CUSTOM_``.
STANDARD_CLASSES: Final = frozenset({"PGPU", "FPGA", "PCI_DEVICE", "SRIOV_NET_VF"})

_CUSTOM: Final = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}", re.ASCII)
_LONGEST_TAG: Final = 255
_LAST_DOMAIN: Final = 0xFFFF


class TermsError(ValueError):
    """The operator's terms make no sense; the text says which and the cure."""


def check_resource_class(name: str) -> str:
    """Return *name* if Nova and Placement take it exactly as it is written.

    :raises TermsError: Nova would change it, and the tag would not match.
    """
    if name in STANDARD_CLASSES or _CUSTOM.fullmatch(name):
        return name
    raise TermsError(
        f"{name!r} is no resource class: write CUSTOM_ and capital letters, digits and _, "
        f"or one of {', '.join(sorted(STANDARD_CLASSES))}"
    )


def check_trait(name: str) -> str:
    """Return *name* if Nova and Placement take it exactly as it is written.

    :raises TermsError: it is no custom trait.
    """
    if _CUSTOM.fullmatch(name):
        return name
    raise TermsError(f"{name!r} is no trait: write CUSTOM_ and capital letters, digits and _")


@attrs.frozen
class Terms:
    """What the operator wants that the inventory cannot know."""

    #: Addresses of physical functions that are given whole although virtual
    #: functions are switched on, which are then not offered; or EVERY.
    whole: frozenset[str] = frozenset()
    #: Role -> resource class; Nova's own, made of the ids, where there is none.
    resource_classes: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Role -> traits of the device's resource provider.
    traits: Mapping[str, frozenset[str]] = attrs.field(factory=dict, hash=False)

    def gives_whole(self, address: str) -> bool:
        """Whether the physical function at *address* is given as a whole."""
        return EVERY in self.whole or address in self.whole

    def check(self, node: Node, roles: Roles) -> None:
        """See whether every term has something to act on.

        :raises TermsError: a role that no entry of ``[hpc]device_role``
            names, or an address that is no physical function with a role.
        """
        for role in sorted({*self.resource_classes, *self.traits}):
            if role not in roles.names:
                raise TermsError(
                    f"there is no role {role!r}; the roles are {', '.join(roles.names)}"
                )
        for address in sorted(self.whole - {EVERY}):
            function = node.function(address)
            if function is None or function.dev_type != "type-PF":
                raise TermsError(f"{address} is no physical function of this node")
            if roles.role_of(function) is None:
                raise TermsError(
                    f"{address} has no role; add an entry to [hpc]device_role that matches "
                    f"vendor {function.vendor_id}, product {function.product_id}, "
                    f"class {(function.class_code or '')[:4]}, {function.dev_type}"
                )


@attrs.frozen
class Offer:
    """One resource provider: a physical device, or all VFs of one."""

    provider: str  # its address; that of the physical function for VFs
    functions: tuple[str, ...]  # what can be given, in order
    vendor_id: str
    product_id: str
    dev_type: str
    tags: Tags
    entries: tuple[Mapping[str, object], ...] = attrs.field(hash=False)


@attrs.frozen
class Omitted:
    """A function that has a role but is not offered."""

    address: str
    role: str
    reason: str


@attrs.frozen
class DeviceSpec:
    """``[pci]device_spec`` of one node."""

    offers: tuple[Offer, ...] = ()
    omitted: tuple[Omitted, ...] = ()

    def lines(self) -> Iterator[str]:
        """The values of the option, one JSON object each."""
        for offer in self.offers:
            for entry in offer.entries:
                yield json.dumps(entry)


@attrs.frozen
class _Pool:
    """An offer in the making."""

    role: str
    provider: str
    functions: tuple[Function, ...]


def build(node: Node, roles: Roles, terms: Terms | None = None) -> DeviceSpec:
    """Decide what *node* offers to servers, by role.

    Deterministic: offers and omissions come in the order of addresses.

    :param node: from any reader of :mod:`nova_hpc.topology`.
    :param roles: what is a device for servers, and of which role.
    :param terms: the operator's terms; by default virtual functions go before
        their physical function, and Nova names the resource classes.
    """
    terms = terms or Terms()
    sieve = _Sieve(node, roles, terms)
    pools = sieve.pools()
    units = _units(node, pools)
    # Leaving a pool out makes units smaller, so begin again until all agree.
    while odd := {id(pool): pool for pool in pools if len(_units_of(pool, units)) > 1}:
        for pool in odd.values():
            for function in pool.functions:
                sieve.omit(
                    function,
                    "the virtual functions of one adapter are in different IOMMU groups that are "
                    "shared with other devices, and Nova gives any of them",
                )
        pools = [pool for pool in pools if id(pool) not in odd]
        units = _units(node, pools)
    offers = []
    for pool in pools:
        offer = _offer(node, pool, next(iter(_units_of(pool, units))), terms)
        if isinstance(offer, str):
            for function in pool.functions:
                sieve.omit(function, offer)
        else:
            offers.append(offer)
    return DeviceSpec(
        offers=tuple(sorted(offers, key=lambda offer: address_key(offer.provider))),
        omitted=tuple(sorted(sieve.omitted, key=lambda item: address_key(item.address))),
    )


class _Sieve:
    """Sorts the functions of a node into pools and omissions."""

    def __init__(self, node: Node, roles: Roles, terms: Terms) -> None:
        self.omitted: list[Omitted] = []
        self._node = node
        self._terms = terms
        self._role = {
            function.address: role
            for function in node.functions
            if (role := roles.role_of(function)) is not None
        }

    def omit(self, function: Function, reason: str) -> None:
        """Remember why *function* is not offered."""
        self.omitted.append(Omitted(function.address, self._role[function.address], reason))

    def pools(self) -> list[_Pool]:
        """What may be offered as far as single functions and adapters go."""
        able = []
        for function in self._node.functions:
            if function.address in self._role:
                reason = _unfit(function)
                if reason is None:
                    able.append(function)
                else:
                    self.omit(function, reason)
        families: dict[str, list[Function]] = defaultdict(list)
        single = []
        for function in able:
            if function.physical_function is not None:
                families[function.physical_function].append(function)
            else:
                single.append(function)
        whole = {f.address for f in single if self._terms.gives_whole(f.address)}
        pools = []
        for parent, functions in families.items():
            reason = self._family_unfit(functions)
            if parent in whole:
                reason = f"its physical function {parent} is given whole"
            if reason is None:
                role = self._role[functions[0].address]
                pools.append(_Pool(role, parent, tuple(functions)))
            else:
                for function in functions:
                    self.omit(function, reason)
        shared = {pool.provider for pool in pools}
        for function in single:
            if function.address in shared:
                self.omit(function, "its virtual functions are offered instead")
            else:
                pools.append(_Pool(self._role[function.address], function.address, (function,)))
        return pools

    def _family_unfit(self, functions: list[Function]) -> str | None:
        """Why the virtual functions of one adapter cannot be one provider."""
        if len({(f.vendor_id, f.product_id) for f in functions}) > 1:
            return "the virtual functions of one adapter have different ids"
        if len({self._role[f.address] for f in functions}) > 1:
            return "the virtual functions of one adapter have different roles"
        return None


def _unfit(function: Function) -> str | None:
    """Why Nova could never give this function."""
    if function.unknown is not None:
        return function.unknown
    if function.vendor_id is None or function.product_id is None:
        return "its ids are not known"
    for address in filter(None, (function.address, function.physical_function)):
        if address_key(address)[0] > _LAST_DOMAIN:
            return "Nova knows PCI domains up to ffff only"
    return None


def _units(node: Node, pools: Iterable[_Pool]) -> dict[str, str]:
    """Address of each offered function -> its IOMMU unit, where it has one."""
    members: dict[int, list[str]] = defaultdict(list)
    for pool in pools:
        for function in pool.functions:
            if function.iommu_group is not None:
                members[function.iommu_group].append(function.address)
    return {
        address: min(group, key=address_key)
        for group in members.values()
        if len(group) > 1
        for address in group
    }


def _units_of(pool: _Pool, units: Mapping[str, str]) -> set[str | None]:
    return {units.get(function.address) for function in pool.functions}


def _offer(node: Node, pool: _Pool, unit: str | None, terms: Terms) -> Offer | str:
    """The offer of one pool, or why there is none."""
    first = pool.functions[0]
    # Both are there: _unfit() saw to it. The assertions are for the type checker.
    assert first.vendor_id is not None
    assert first.product_id is not None
    tags = Tags(
        location=_location(node, pool),
        role=pool.role,
        group=unit,
        resource_class=terms.resource_classes.get(pool.role),
        traits=frozenset(terms.traits.get(pool.role, ())),
    )
    pairs = tags.to_spec()
    for key, value in pairs.items():
        if len(value) > _LONGEST_TAG:
            return f"the tag {key} would have more than {_LONGEST_TAG} characters"
    common: dict[str, object] = {"managed": "no"}
    if tags.resource_class is not None:
        common["resource_class"] = tags.resource_class
    if tags.traits:
        common["traits"] = ",".join(sorted(tags.traits))
    ids: dict[str, object] = {"vendor_id": first.vendor_id, "product_id": first.product_id}
    return Offer(
        provider=pool.provider,
        functions=tuple(function.address for function in pool.functions),
        vendor_id=first.vendor_id,
        product_id=first.product_id,
        dev_type=first.dev_type,
        tags=tags,
        entries=tuple(
            {**ids, "address": address, **common, **pairs} for address in _addresses(node, pool)
        ),
    )


def _location(node: Node, pool: _Pool) -> Location:
    """The one place of a pool: its functions', or its physical function's."""
    places = Counter(function.location for function in pool.functions)
    if len(places) == 1:
        return next(iter(places))
    parent = node.function(pool.provider)
    return Location() if parent is None else parent.location


def _addresses(node: Node, pool: _Pool) -> Iterator[str | dict[str, str]]:
    """Values of ``address`` that match the functions of *pool* and no other."""
    first = pool.functions[0]
    if first.dev_type == "type-PCI":
        yield first.address
    elif first.dev_type == "type-VF" and _told_apart(node, pool):
        yield pool.provider
    else:
        yield from _patterns(function.address for function in pool.functions)


def _told_apart(node: Node, pool: _Pool) -> bool:
    """Whether ids alone tell all VFs of *pool* from their physical function."""
    parent = node.function(pool.provider)
    if parent is None or parent.vendor_id is None or parent.product_id is None:
        return False
    if (parent.vendor_id, parent.product_id) == (
        pool.functions[0].vendor_id,
        pool.functions[0].product_id,
    ):
        return False
    return set(parent.virtual_functions) <= {function.address for function in pool.functions}


def _patterns(addresses: Iterable[str]) -> Iterator[dict[str, str]]:
    """The fewest products of domain, bus, slots and functions, exactly covering.

    Nova takes an expression without any special character for an address, and
    an address of a physical function for all of its virtual functions: hence
    the brackets. Fields have a fixed width, so nothing needs to be anchored.
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
