# SPDX-License-Identifier: Apache-2.0
"""The names under which flavors ask for devices: ``[pci]alias``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import attrs

from nova_hpc.offer.device_spec import DeviceSpec


@attrs.frozen(order=True)
class _Kind:
    """Devices that one alias can name: Nova takes one specification each."""

    role: str
    resource_class: str  # "" stands for Nova's own, made of the ids
    vendor_id: str  # "" with a resource class of the operator
    product_id: str
    dev_type: str


def build(specs: Iterable[DeviceSpec], product_names: bool = False) -> list[dict[str, str]]:
    """The values of ``[pci]alias`` that name everything that *specs* offer.

    The name is the role where it has one kind of device only, else the role
    and the product id (``gpu-2330``). Physical functions need their
    ``device_type``, or Nova leaves them out: many GPUs are, and cannot be
    told from others by their ids.
    """
    kinds = sorted({kind for spec in specs for kind in _kinds(spec)})
    alone = Counter(kind.role for kind in kinds)
    named: dict[_Kind, str] = {}
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
                named[kind] = f"{name}-{_word(getattr(kind, suffix))}"
    taken: Counter[str] = Counter()
    for kind, name in named.items():
        # Only a role that looks like another's alias comes here: gpu-2330.
        taken[name] += 1
        if taken[name] > 1:
            named[kind] = f"{name}.{taken[name]}"
    return [_alias(kind, name) for kind, name in named.items()]


def _word(text: str) -> str:
    return text.removeprefix("CUSTOM_").removeprefix("type-").lower()


def _kinds(spec: DeviceSpec) -> Iterator[_Kind]:
    for offer in spec.offers:
        resource_class = offer.tags.resource_class or ""
        own = bool(resource_class)
        yield _Kind(
            role=offer.tags.role or "",
            resource_class=resource_class,
            vendor_id="" if own else offer.vendor_id,
            product_id="" if own else offer.product_id,
            dev_type=offer.dev_type,
        )


def _alias(kind: _Kind, name: str) -> dict[str, str]:
    pairs = {
        "name": name,
        "vendor_id": kind.vendor_id,
        "product_id": kind.product_id,
        "resource_class": kind.resource_class,
        "device_type": kind.dev_type,
    }
    return {key: value for key, value in pairs.items() if value}
