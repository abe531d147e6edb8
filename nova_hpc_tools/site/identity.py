# SPDX-License-Identifier: Apache-2.0
"""The marks that distinguish the devices of one role from others in Nova and Placement.

Vendor and product are not enough: the virtual functions of all mlx5 adapters have
the same ids, whatever fabric they are on. Therefore a role has a resource class of
its own, which project quotas can count, too. The class of a provider cannot change
while a server has one of its devices (Placement answers ``InventoryInUse``, and
nova-compute does not start); its traits can. So there are three forms:

``class``
   A resource class of the role, and a trait of the product, which distinguishes the
   aliases of several products of one role. A new node gets this form.
``trait``
   Nova's own resource class, made of the ids, and a trait of the role. For nodes
   that have servers.
``ids``
   Only the ids, as in releases before this one. Enough as long as no other role has
   devices with the same ids.

The present configuration decides the form, so a node that was configured once keeps
its classes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_PREFIX: Final = "CUSTOM_HPC_"

#: Placement's own resource classes (os-resource-classes), which Nova accepts without ``CUSTOM_``;
#: the pattern below matches its own traits (os-traits).
STANDARD_CLASSES: Final = frozenset(
    {
        *("VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "PCI_DEVICE", "SRIOV_NET_VF", "NUMA_SOCKET"),
        *("NUMA_CORE", "NUMA_THREAD", "NUMA_MEMORY_MB", "IPV4_ADDRESS", "VGPU", "PGPU", "FPGA"),
        *("VGPU_DISPLAY_HEAD", "MEM_ENCRYPTION_CONTEXT", "NET_BW_EGR_KILOBIT_PER_SEC"),
        *("NET_BW_IGR_KILOBIT_PER_SEC", "NET_PACKET_RATE_KILOPACKET_PER_SEC"),
        *("NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC", "NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC"),
    }
)
_STANDARD: Final = re.compile(r"(?:COMPUTE|HW|MISC|OWNER|STORAGE)_[A-Z0-9_]+", re.ASCII)


class Form(enum.Enum):
    """The way to distinguish the devices of one role: a resource class, a trait, or vendor and
    product ids.
    """

    CLASS = "class"
    TRAIT = "trait"
    IDS = "ids"


def class_of_role(role: str) -> str:
    """Return the resource class of a role in form ``class``, e.g. ``CUSTOM_HPC_VF``."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", role.upper())


def trait_of_role(role: str) -> str:
    """Return the trait of a role in form ``trait``, e.g. ``CUSTOM_HPC_ROLE_VF``."""
    return f"{_PREFIX}ROLE_" + re.sub(r"[^A-Z0-9]", "_", role.upper())


def product_class(vendor_id: str, product_id: str) -> str:
    """Return Nova's own resource class of a product, which is also its trait in form ``class``.

    The same as nova/compute/pci_placement_translator.py, get_resource_class (32 to 34).
    """
    return f"CUSTOM_PCI_{vendor_id}_{product_id}".upper()


def class_as_nova_has_it(name: object) -> str:
    """Return the resource class that Nova makes of any text.

    The same as nova/compute/pci_placement_translator.py, _normalize_resource_class (32 to 34).
    """
    text = str(name).upper()
    return text if text in STANDARD_CLASSES else _custom_name_of(text)


def traits_as_nova_has_them(names: object) -> frozenset[str]:
    """Return the traits that Nova makes of any text with commas (get_traits in the same file)."""
    words = str(names).split(",") if names else []
    return frozenset(
        word if _STANDARD.fullmatch(word) else _custom_name_of(word.upper()) for word in words
    )


def _custom_name_of(text: str) -> str:
    """Convert a text like normalize_name of os-traits and os-resource-classes."""
    return text if text.startswith("CUSTOM_") else f"CUSTOM_{re.sub(r'[^0-9A-Z]+', '_', text)}"


def resource_class(form: Form, role: str) -> str | None:
    """Return the resource class for devices of *role*; None for Nova's own."""
    return class_of_role(role) if form is Form.CLASS else None


def traits_of_role(form: Form, role: str, vendor_id: str, product_id: str) -> frozenset[str]:
    """Return the traits that distinguish the devices of a role, as its alias requires."""
    if form is Form.CLASS:
        return frozenset({product_class(vendor_id, product_id)})
    return frozenset({trait_of_role(role)} if form is Form.TRAIT else ())


def form_written_in(pairs: Mapping[str, Any], role: str) -> Form:
    """Return the form in which an entry of ``device_spec`` or ``alias`` is written.

    An entry with any other resource class has the form ``ids``: it has no mark of ours.
    """
    if str(pairs.get("resource_class", "")).upper() == class_of_role(role):
        return Form.CLASS
    if trait_of_role(role) in {
        word.strip().upper() for word in str(pairs.get("traits", "")).split(",")
    }:
        return Form.TRAIT
    return Form.IDS


def oldest_form(forms: Iterable[Form]) -> Form | None:
    """Return the form of the earliest release among *forms*; None without forms."""
    present = set(forms)
    return next((form for form in (Form.IDS, Form.TRAIT, Form.CLASS) if form in present), None)
