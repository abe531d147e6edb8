# SPDX-License-Identifier: Apache-2.0
"""The names of devices in flavors: ``[pci]alias``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from nova_hpc_tools.site import identity
from nova_hpc_tools.site.device_spec import DeviceOffer, DeviceSpec


class ClashError(ValueError):
    """Two roles have devices that Nova cannot distinguish. The text names both and the cure."""


@attrs.frozen(order=True)
class _AliasKind:
    """A kind of devices that one alias can name: Nova accepts one specification for each alias."""

    role: str
    resource_class: str  # "" stands for Nova's own, made of the ids
    vendor_id: str  # "" with a resource class of the operator
    product_id: str
    dev_type: str
    #: Required traits of the devices, in order.
    traits: tuple[str, ...] = ()


def build_aliases(specs: Iterable[DeviceSpec], product_names: bool = False) -> list[dict[str, str]]:
    """Build the values of ``[pci]alias`` that name all offers of *specs*.

    The name is the role if the role has only one kind of device, else the role and the product id
    (``gpu-2330``). Aliases of physical functions need a ``device_type``, or Nova leaves these
    devices out. Many GPUs are physical functions, which their ids do not show.
    """
    kinds = sorted({kind for spec in specs for kind in _alias_kinds_of(spec)})
    alone = Counter(kind.role for kind in kinds)
    named: dict[_AliasKind, str] = {}
    for kind in kinds:
        name = kind.role
        if kind.product_id and (product_names or alone[kind.role] > 1):
            name += f"-{kind.product_id}"
        named[kind] = name
    for suffix in ("vendor_id", "resource_class", "dev_type"):
        alike: dict[str, set[str]] = defaultdict(set)
        for kind, name in named.items():
            alike[name].add(getattr(kind, suffix))
        for kind, name in named.items():
            if len(alike[name]) > 1 and getattr(kind, suffix):
                named[kind] = f"{name}-{_suffix_word_of(getattr(kind, suffix))}"
    taken: Counter[str] = Counter()
    for kind, name in named.items():
        # Only a role that looks like the alias of another role gets a number: gpu-2330.
        taken[name] += 1
        if taken[name] > 1:
            named[kind] = f"{name}.{taken[name]}"
    return [_build_alias(kind, name) for kind, name in named.items()]


def check_alias_roles(specs: Sequence[DeviceSpec]) -> None:
    """Check that the aliases of every role match only devices of that role.

    :raises ClashError: Nova would give devices of another role for an alias.
    """
    everything = [offer for spec in specs for offer in spec.offers]
    _check_networks(everything)
    offers = [offer for offer in everything if offer.network is None]
    classes: dict[str, str] = {}
    for offer in offers:
        role, name = offer.tags.role or "", offer.tags.resource_class
        if name is None:
            continue
        claimant = classes.setdefault(name, role)
        if claimant != role:
            pair = " and ".join(sorted((role, claimant)))
            raise ClashError(
                f"the roles {pair} would have the same resource class {name}: rename one, or "
                f"declare a class of its own (role_options: {{{role}: "
                f"{{resource_class: {name}_2}}}})"
            )
    samples = {_alias_kind_of(offer): offer for offer in reversed(offers)}
    for kind, sample in samples.items():
        asked = _build_alias(kind, "")
        for theirs in samples.values():
            if theirs.tags.role != kind.role and alias_asks_for(asked, theirs):
                raise ClashError(
                    f"the roles {kind.role} ({sample.provider}) and {theirs.tags.role} "
                    f"({theirs.provider}) cannot be distinguished: Nova would give one for the "
                    "other. If no server has any of them, declare both by class "
                    f"({_identity_line(kind.role, theirs.tags.role, 'class')}); otherwise by "
                    f"trait ({_identity_line(kind.role, theirs.tags.role, 'trait')})"
                )


def _identity_line(first: str, second: str | None, form: str) -> str:
    """Return the line of a declaration that gives two roles the same form of identity."""
    words = ", ".join(f"{role}: {{identity: {form}}}" for role in (first, second))
    return f"role_options: {{{words}}}"


def _check_networks(offers: Iterable[DeviceOffer]) -> None:
    networks: dict[str, str] = {}
    for offer in offers:
        role = offer.tags.role or ""
        if offer.network is not None and networks.setdefault(offer.network, role) != role:
            pair = " and ".join(sorted((role, networks[offer.network])))
            raise ClashError(
                f"the roles {pair} would have the same physical network {offer.network}, and "
                "Nova distinguishes the devices of ports by nothing else: change "
                "physical_network of one of them in the declaration"
            )


def roles_of(alias: Mapping[str, Any], specs: Iterable[DeviceSpec]) -> list[str]:
    """Return the roles whose devices match an alias, in order."""
    offers = (offer for spec in specs for offer in spec.offers if offer.network is None)
    return sorted({offer.tags.role or "" for offer in offers if alias_asks_for(alias, offer)})


def alias_asks_for(alias: Mapping[str, Any], offer: DeviceOffer) -> bool:
    """Whether Nova and Placement would give a device of *offer* for *alias*.

    The comparison is the one of nova/objects/request_spec.py
    (generate_request_groups_from_pci_requests, 32 to 34) and
    PciDeviceStats._filter_pools_for_spec.
    """
    ids = {key: str(alias.get(key, "")).lower() for key in ("vendor_id", "product_id")}
    name = str(alias.get("resource_class") or identity.product_class(*ids.values())).upper()
    theirs = identity.product_class(offer.vendor_id, offer.product_id)
    traits = {word.strip().upper() for word in str(alias.get("traits", "")).split(",")} - {""}
    return (
        name == (offer.tags.resource_class or theirs)
        and traits <= offer.tags.traits
        and ids["vendor_id"] in ("", offer.vendor_id)
        and ids["product_id"] in ("", offer.product_id)
        and alias.get("device_type") in (None, offer.dev_type)
    )


def _suffix_word_of(text: str) -> str:
    return text.removeprefix("CUSTOM_").removeprefix("type-").lower()


def _alias_kinds_of(spec: DeviceSpec) -> Iterator[_AliasKind]:
    for offer in spec.offers:
        if offer.network is None:
            yield _alias_kind_of(offer)


def _alias_kind_of(offer: DeviceOffer) -> _AliasKind:
    return _AliasKind(
        role=offer.tags.role or "",
        resource_class=offer.tags.resource_class or "",
        vendor_id="" if offer.any_product else offer.vendor_id,
        product_id="" if offer.any_product else offer.product_id,
        dev_type=offer.dev_type,
        traits=tuple(sorted(offer.own_traits)),
    )


def _build_alias(kind: _AliasKind, name: str) -> dict[str, str]:
    pairs = {
        "name": name,
        "vendor_id": kind.vendor_id,
        "product_id": kind.product_id,
        "resource_class": kind.resource_class,
        "traits": ",".join(kind.traits),
        "device_type": kind.dev_type,
    }
    return {key: value for key, value in pairs.items() if value}
