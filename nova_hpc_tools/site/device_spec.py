# SPDX-License-Identifier: Apache-2.0
"""From the inventory of a node to its entries of ``[pci]device_spec``.

One entry offers one physical device, or virtual functions of one physical function that have the
same properties; :mod:`nova_hpc_tools.site.spec_address` makes the addresses. Keys of a device in
an entry of others are copied into ours.

This module does not decide whether a device may be given right now: the tracker
decides that at every update and withholds the other devices.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology.model import Node, PciFunction, address_key
from nova_hpc.topology.roles import Roles
from nova_hpc.wire.tags import Tags
from nova_hpc_common.level import Location
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.site import identity, nova_rules, nvlink_sets, spec_address, spec_entries
from nova_hpc_tools.site.declaration import Declaration

_LONGEST_TAG: Final = 255
#: Most devices that one line names.
_MOST_ADDRESSES: Final = 12
#: Keys of others that are not copied unchanged: :func:`_offer_of_pool` sets them.
_JUDGED: Final = frozenset({"managed", "resource_class", "traits", spec_entries.NETWORK})


@attrs.frozen
class DeviceOffer:
    """A physical device that the node offers, or equal virtual functions of one device: one
    provider.
    """

    provider: str  # its address; for VFs the address of the physical function
    functions: tuple[str, ...]  # the functions that can be given, in order
    vendor_id: str
    product_id: str
    dev_type: str
    tags: Tags
    entries: tuple[Mapping[str, object], ...] = attrs.field(hash=False)
    #: The traits that distinguish its role or its product from others.
    own_traits: frozenset[str] = frozenset()
    #: Its resource class is the operator's, whatever the product.
    any_product: bool = False
    #: Its devices are for Neutron's ports on this physical network, or on networks that
    #: tunnel (:data:`~nova_hpc_tools.site.declaration.TUNNELS`), so no alias matches them. Nova
    #: does not report devices of a physical network in Placement.
    network: str | None = None

    @property
    def reported_as(self) -> tuple[str, frozenset[str], bool] | None:
        """Class and traits of the provider, and whether it migrates live; None without a
        provider.
        """
        if self.network:
            return None
        entry = self.entries[0]
        return (
            self.tags.resource_class or identity.product_class(self.vendor_id, self.product_id),
            self.tags.traits,
            nova_rules.is_true(entry.get("live_migratable")),
        )


@attrs.frozen
class Omitted:
    """A function that has a role but is not offered."""

    address: str
    role: str
    reason: str
    #: The physical function of a virtual function.
    parent: str | None = None
    #: The only reason is its data: no cleaner proves that it erases the data.
    unerased: bool = False


@attrs.frozen
class DeviceSpec:
    """All values of ``[pci]device_spec`` that one node should have."""

    offers: tuple[DeviceOffer, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    #: Adapters whose virtual functions have several roles, each with these.
    mixed: tuple[str, ...] = ()
    #: Addresses of NVSwitches whose manager the declaration does not name.
    undecided: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the values of ``[pci]device_spec``, one JSON object each."""
        for offer in self.offers:
            for entry in offer.entries:
                yield json.dumps(entry)


def format_omitted_lines(omitted: Iterable[Omitted]) -> Iterator[str]:
    """Yield the devices that are not offered, one line for each role and reason."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in omitted:
        alike[item.role, item.reason].append(item.address)
    for (role, reason), addresses in alike.items():
        yield f"Not offered: {join_first(addresses, _MOST_ADDRESSES)} ({role}): {reason}"


@attrs.frozen
class _OfferPool:
    """PCI functions that will become one offer, with their role and their provider's address."""

    role: str
    provider: str
    functions: tuple[PciFunction, ...]
    #: The keys in entries of others, the same for each of the functions.
    kept: Mapping[str, str | None] = attrs.field(factory=dict, hash=False)


def build_device_spec(
    node: Node, roles: Roles, declaration: Declaration | None = None
) -> DeviceSpec:
    """Decide which devices *node* offers to servers, by role.

    1. Functions that can never be given, or that the declaration refuses, are omitted. The others
       form pools: a single device, or like virtual functions of one adapter.
    2. A pool whose functions are in several IOMMU units is omitted, because Nova gives any of them.
    3. Each pool becomes an offer, or is omitted if a tag would be too long.
    4. Pools that contradict another pool of their adapter are omitted.

    Deterministic: offers and omissions come in the order of addresses.

    :param node: from any reader of :mod:`nova_hpc.topology`.
    :param roles: the rules that select devices for servers, and give them a role.
    :param declaration: the operator's; by default virtual functions go before
        their physical function, NVSwitches stay with the host, and Nova names
        the resource classes.
    """
    declaration = declaration or Declaration()
    sieve = _Sieve(node, roles, declaration)
    pools = sieve.pools()
    units = _iommu_units_of(pools)
    links = nvlink_sets.nvlink_tags_of(
        nvlink_sets.default_nvlink_sets(node, roles)
        if declaration.nvlink is None
        else declaration.nvlink
    )
    # Units become smaller when a pool is left out, so repeat until all pools have one unit.
    while odd := {id(pool): pool for pool in pools if len(_units_of_pool(pool, units)) > 1}:
        for pool in odd.values():
            for function in pool.functions:
                sieve.omit(
                    function,
                    "the virtual functions of one adapter are in different IOMMU groups that are "
                    "shared with other devices, and Nova gives any of them",
                )
        pools = [pool for pool in pools if id(pool) not in odd]
        units = _iommu_units_of(pools)
    offers = []
    for pool in pools:
        offer = _offer_of_pool(
            node, pool, next(iter(_units_of_pool(pool, units))), links, declaration
        )
        if isinstance(offer, str):
            for function in pool.functions:
                sieve.omit(function, offer)
        else:
            offers.append((pool, offer))
    for pool, reason in _find_contradicting_offers(offers):
        offers = [(other_pool, offer) for other_pool, offer in offers if other_pool is not pool]
        for function in pool.functions:
            sieve.omit(function, reason)
    return DeviceSpec(
        offers=tuple(
            sorted(
                (offer for _, offer in offers),
                key=lambda offer: (address_key(offer.provider), address_key(offer.functions[0])),
            )
        ),
        omitted=tuple(sorted(sieve.omitted, key=lambda item: address_key(item.address))),
        mixed=tuple(sieve.mixed),
        undecided=tuple(
            function.address
            for function in node.functions
            if declaration.leaves_open(function, roles.role_of(function, node))
        ),
    )


def _find_contradicting_offers(
    offers: Iterable[tuple[_OfferPool, DeviceOffer]],
) -> Iterator[tuple[_OfferPool, str]]:
    """Find pools of virtual functions that contradict an entry of others for their adapter.

    A provider in Placement has one class and one set of traits, and nova-compute does not
    start if its devices differ (PlacementPciMixedResourceClassException).
    """
    families: dict[str, list[tuple[_OfferPool, DeviceOffer]]] = defaultdict(list)
    for pool, offer in offers:
        if offer.reported_as is not None:
            families[pool.provider].append((pool, offer))
    for family in families.values():
        theirs = [(pool, offer) for pool, offer in family if pool.kept or offer.network is not None]
        for pool, offer in family:
            others = [sibling for _, sibling in theirs if sibling.reported_as != offer.reported_as]
            if others and (pool, offer) not in theirs:
                named = ", ".join(address for sibling in others for address in sibling.functions)
                yield (
                    pool,
                    f"an entry of yours offers {named} of its adapter otherwise, and Placement "
                    "has one class and one set of traits for an adapter",
                )


class _Sieve:
    """Sorter of a node's functions into pools to offer, and into omissions with reasons."""

    def __init__(self, node: Node, roles: Roles, declaration: Declaration) -> None:
        self.omitted: list[Omitted] = []
        self.mixed: list[str] = []
        self._node = node
        self._declaration = declaration
        self._role = {
            function.address: role
            for function in node.functions
            if (role := roles.role_of(function, node)) is not None
        }

    def omit(self, function: PciFunction, reason: str, unerased: bool = False) -> None:
        """Record the reason why *function* is not offered."""
        role, parent = self._role[function.address], function.physical_function
        self.omitted.append(Omitted(function.address, role, reason, parent, unerased))

    def pools(self) -> list[_OfferPool]:
        """Return the pools to offer, judged only by single functions and adapters."""
        able = []
        # Physical function -> one of its virtual functions that is not given.
        kept: dict[str | None, str] = {}
        for function in self._node.functions:
            if function.address in self._role:
                role = self._role[function.address]
                reason = _why_never_given(function) or self._declaration.refuses(function, role)
                data = self._declaration.erasers.explain_refusal(self._node, function, role)
                if reason is None and data is None:
                    able.append(function)
                else:
                    kept.setdefault(function.physical_function, function.address)
                    self.omit(function, reason or data or "", unerased=reason is None)
        families: dict[str, list[PciFunction]] = defaultdict(list)
        single = []
        for function in able:
            if function.physical_function is not None:
                families[function.physical_function].append(function)
            else:
                single.append(function)
        whole = {f.address for f in single if self._declaration.gives_whole(f.address)}
        pools = []
        for parent, functions in families.items():
            reason = self._family_unfit(functions)
            if parent in whole:
                reason = f"its physical function {parent} is given whole"
            elif len(roles := sorted({self._role[function.address] for function in functions})) > 1:
                self.mixed.append(f"{parent} with the roles {' and '.join(roles)}")
            if reason is None:
                role = self._role[functions[0].address]
                for some in self._alike(role, functions):
                    pools.append(_OfferPool(role, parent, tuple(some), self._kept(some[0])))
            else:
                for function in functions:
                    self.omit(function, reason)
        shared = {pool.provider for pool in pools}
        for function in single:
            if function.address in shared:
                self.omit(function, "its virtual functions are offered instead")
            elif function.address in kept and function.address not in whole:
                self.omit(function, f"its virtual function {kept[function.address]} is not given")
            else:
                pools.append(
                    _OfferPool(
                        self._role[function.address],
                        function.address,
                        (function,),
                        self._kept(function),
                    )
                )
        return pools

    def _kept(self, function: PciFunction) -> Mapping[str, str | None]:
        return self._declaration.kept.get(function.address, {})

    def _alike(self, role: str, functions: Iterable[PciFunction]) -> Iterator[list[PciFunction]]:
        """Yield the virtual functions of one adapter, grouped by network and kept keys."""
        groups: dict[object, list[PciFunction]] = defaultdict(list)
        for function in functions:
            network = self._declaration.network_of(role, function.address)
            terms = sorted((key, repr(value)) for key, value in self._kept(function).items())
            groups[network, *terms].append(function)
        yield from groups.values()

    def _family_unfit(self, functions: list[PciFunction]) -> str | None:
        """Explain why the virtual functions of one adapter cannot be one provider, else None."""
        if len({(f.vendor_id, f.product_id) for f in functions}) > 1:
            return "the virtual functions of one adapter have different ids"
        roles = sorted({self._role[f.address] for f in functions})
        if len(roles) > 1:
            return f"the virtual functions of one adapter have the roles {' and '.join(roles)}"
        return None


def _why_never_given(function: PciFunction) -> str | None:
    """Return the reason why Nova could never give this function; None if it could."""
    if function.unknown is not None:
        return function.unknown
    if function.vendor_id is None or function.product_id is None:
        return "its ids are not known"
    if not spec_address.is_expressible_address(function):
        return "Nova supports PCI domains up to ffff only"
    return None


def _iommu_units_of(pools: Iterable[_OfferPool]) -> dict[str, str]:
    """Return address of each offered function -> its IOMMU unit, if it has one.

    The unit's name is the lowest address of the functions that can only be given together.
    """
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


def _units_of_pool(pool: _OfferPool, units: Mapping[str, str]) -> set[str | None]:
    return {units.get(function.address) for function in pool.functions}


def _offer_of_pool(
    node: Node,
    pool: _OfferPool,
    unit: str | None,
    links: Mapping[str, str],
    declaration: Declaration,
) -> DeviceOffer | str:
    """Build the offer of one pool, or return the reason to omit it."""
    first = pool.functions[0]
    # _why_never_given() has refused functions without ids. This is for the type checker.
    assert first.vendor_id is not None
    assert first.product_id is not None
    network = declaration.network_of(pool.role, first.address)
    own = declaration.own_traits(pool.role, first.vendor_id, first.product_id)
    if network is not None:
        return _offer_of_ports(node, pool, unit, network)
    theirs = pool.kept.get("resource_class")
    tags = Tags(
        location=_location_of_pool(node, pool),
        role=pool.role,
        group=unit,
        # Virtual functions share their adapter, so they are in no set.
        nvlink=links.get(first.address) if first.physical_function is None else None,
        resource_class=(
            identity.class_as_nova_has_it(theirs) if theirs else declaration.class_of(pool.role)
        ),
        traits=own.union(
            declaration.traits.get(pool.role, ()),
            identity.traits_as_nova_has_them(pool.kept.get("traits")),
        ),
    )
    common: dict[str, str | None] = {"managed": "no"}
    if tags.resource_class is not None:
        common["resource_class"] = tags.resource_class
    if tags.traits:
        common["traits"] = ",".join(sorted(tags.traits))
    if pool.role in declaration.one_time_use:
        common["one_time_use"] = "true"
    # Nova does not start with one_time_use for virtual functions, whatever its value.
    never = _JUDGED if first.physical_function is None else {*_JUDGED, "one_time_use"}
    common |= {key: value for key, value in sorted(pool.kept.items()) if key not in never}
    offer = _write_offer(node, pool, tags, common)
    if isinstance(offer, str):
        return offer
    return attrs.evolve(
        offer, own_traits=own, any_product=pool.role in declaration.resource_classes
    )


def _offer_of_ports(
    node: Node, pool: _OfferPool, unit: str | None, network: str
) -> DeviceOffer | str:
    """Build the offer of devices for Neutron's ports, which only their network distinguishes.

    It adds no ``managed``: libvirt rebinds the device of a port whatever the entry has.

    :returns: the offer, or the reason to omit it.
    """
    theirs = dict(pool.kept)
    name, words = theirs.get("resource_class"), theirs.get("traits")
    tags = Tags(
        location=_location_of_pool(node, pool),
        role=pool.role,
        group=unit,
        # Devices of networks that tunnel are in Placement.
        resource_class=identity.class_as_nova_has_it(name) if name else None,
        traits=identity.traits_as_nova_has_them(words),
    )
    if pool.functions[0].physical_function is not None:
        theirs.pop("one_time_use", None)
    theirs.pop(spec_entries.NETWORK, None)
    common = {spec_entries.NETWORK: network or None, **dict(sorted(theirs.items()))}
    offer = _write_offer(node, pool, tags, common)
    return offer if isinstance(offer, str) else attrs.evolve(offer, network=network)


def _write_offer(
    node: Node, pool: _OfferPool, tags: Tags, common: Mapping[str, str | None]
) -> DeviceOffer | str:
    """Build the offer of a pool with *common* and each entry's tags, or explain its omission."""
    first = pool.functions[0]
    assert first.vendor_id is not None
    assert first.product_id is not None
    pairs = tags.to_spec()
    for key, value in {**common, **pairs}.items():
        if value is not None and len(value) > _LONGEST_TAG:
            return f"the tag {key} would have more than {_LONGEST_TAG} characters"
    ids = {"vendor_id": first.vendor_id, "product_id": first.product_id}
    return DeviceOffer(
        provider=pool.provider,
        functions=tuple(function.address for function in pool.functions),
        vendor_id=first.vendor_id,
        product_id=first.product_id,
        dev_type=first.dev_type,
        tags=tags,
        entries=tuple(
            {**ids, "address": address, **common, **pairs}
            for address in spec_address.address_forms_of(node, pool.functions)
        ),
    )


def _location_of_pool(node: Node, pool: _OfferPool) -> Location:
    """Return the place of a pool: its functions' if all agree, else the physical one's."""
    places = Counter(function.location for function in pool.functions)
    if len(places) == 1:
        return next(iter(places))
    parent = node.function(pool.provider)
    return Location() if parent is None else parent.location
