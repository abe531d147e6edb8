# SPDX-License-Identifier: Apache-2.0
"""The resources and the fabric level that a flavor requests for each member of a cluster. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import attrs
import os_resource_classes
import os_traits

from nova_hpc.cluster.plan import GangPolicy
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.placement.flavor import DEVICE_PROFILE, read_fabric
from nova_hpc.placement.grouping import FlavorError
from nova_hpc_blazar.lease_room import ResourceKind

_ALIAS: Final = "pci_passthrough:alias"
#: Keys of numbered request groups.
_NUMBERED: Final = re.compile(r"(resources|trait|group_policy)[0-9_]")
_TERM: Final = re.compile(r"\s*([^:,]+):([1-9][0-9]{0,5})\s*", re.ASCII)


class LeaseAliasError(ValueError):
    """An entry of ``[pci]alias`` cannot be used. The text is for operators."""


@attrs.frozen
class MemberNearness:
    """How near to each other the members of a flavor are."""

    level: FabricLevel
    policy: GangPolicy

    @property
    def text(self) -> str:
        """The place for people: ``one leaf``, or ``all hosts together``."""
        if self.policy is GangPolicy.REQUIRED:
            return f"one {self.level.noun(1)}"
        return "all hosts together"


def read_aliases(texts: Iterable[str]) -> dict[str, ResourceKind]:
    """Read the values of ``[pci]alias``: name -> kind of its devices in Placement.

    The class is the one of nova/compute/pci_placement_translator.py (32 to 34).

    :raises LeaseAliasError: an entry is no JSON object with a name, or a name has two kinds.
    """
    kinds: dict[str, ResourceKind] = {}
    for text in texts:
        try:
            entry = json.loads(text)
            name = str(entry["name"])
            resource_class = entry.get("resource_class") or (
                f"CUSTOM_PCI_{entry['vendor_id']}_{entry['product_id']}"
            )
            traits = str(entry.get("traits") or "").split(",")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LeaseAliasError(
                f"[pci]alias {text!r} is no JSON object with a name, and a resource_class or the "
                "ids of a product; copy the line from nova.conf"
            ) from error
        kind = ResourceKind(
            _normalize_class(str(resource_class).upper()),
            frozenset(_normalize_trait(trait.strip().upper()) for trait in traits if trait.strip()),
            split=True,
        )
        if kinds.setdefault(name, kind) != kind:
            raise LeaseAliasError(f"[pci]alias has two entries {name!r}; rename one of them")
    return kinds


def _normalize_class(name: str) -> str:
    usable = name in os_resource_classes.STANDARDS or os_resource_classes.is_custom(name)
    return name if usable else str(os_resource_classes.normalize_name(name))


def _normalize_trait(name: str) -> str:
    usable = name in os_traits.get_traits() or os_traits.is_custom(name)
    return name if usable else str(os_traits.normalize_name(name))


def list_device_kinds(
    extra_specs: Mapping[str, str], aliases: Mapping[str, ResourceKind]
) -> dict[ResourceKind, int]:
    """List the devices of a flavor: kind -> number.

    :raises FlavorError: the flavor has a key whose resources cannot be counted, with the cure.
    """
    for key, value in extra_specs.items():
        if (
            _NUMBERED.match(key)
            or key == DEVICE_PROFILE
            or (key == "hw:cpu_policy" and value == "mixed")
        ):
            raise FlavorError(
                f"{key}={value} cannot be counted for a time in the future; lease a flavor "
                "without this key"
            )
    kinds: Counter[ResourceKind] = Counter()
    terms = extra_specs.get(_ALIAS, "")
    for term in terms.split(",") if terms else ():
        parsed = _TERM.fullmatch(term)
        if parsed is None:
            raise FlavorError(f"{_ALIAS}={terms} is not a list of name:count")
        name = parsed[1].strip()
        if name not in aliases:
            raise FlavorError(
                f"alias {name} of {_ALIAS} is unknown to Blazar; an operator copies the lines of "
                "[pci]alias from nova.conf into blazar.conf"
            )
        kinds[aliases[name]] += int(parsed[2])
    return dict(kinds)


def read_nearness(extra_specs: Mapping[str, str]) -> MemberNearness:
    """Read how near to each other the members are; anywhere without ``hpc:fabric``.

    :raises FlavorError: the key or its policy is wrong.
    """
    fabric = read_fabric(extra_specs)
    if fabric is None:
        return MemberNearness(FabricLevel.LEAF, GangPolicy.PREFERRED)
    return MemberNearness(FabricLevel.from_word(fabric.level), GangPolicy(fabric.policy.value))
