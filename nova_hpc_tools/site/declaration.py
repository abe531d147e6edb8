# SPDX-License-Identifier: Apache-2.0
"""The operator's wishes for a node's offer that are not in its inventory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy.storage import Erasers
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.nvlink import SWITCH_ROLE
from nova_hpc.topology.roles import Roles
from nova_hpc_tools.site import identity, nvlink_sets
from nova_hpc_tools.site.identity import Form
from nova_hpc_tools.site.nvlink_sets import NvlinkSet
from nova_hpc_tools.wire import node_declaration

#: Value of :attr:`Declaration.whole` that means every adapter.
EVERY: Final = node_declaration.EVERY

#: Stands for the physical network of networks without one, which tunnel. Nova uses null.
TUNNELS: Final = ""

#: Resource classes that Nova accepts unchanged, without ``CUSTOM_``.
STANDARD_CLASSES: Final = frozenset({"PGPU", "FPGA", "PCI_DEVICE", "SRIOV_NET_VF"})

#: Why NVSwitches are not offered if the declaration has no ``offer_switches``.
SWITCH_CHOICE: Final = (
    "decide now who runs the NVSwitches: write offer_switches: false into the declaration if "
    "Fabric Manager does, on the node or in a service machine, or offer_switches: true if one "
    "server gets them with all GPUs of the board"
)

_CUSTOM: Final = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}", re.ASCII)
_NETWORK: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class DeclarationError(ValueError):
    """The operator's declaration makes no sense. The text names the wish and the cure."""


def check_resource_class(name: str) -> str:
    """Return *name* if Nova and Placement accept it unchanged.

    :raises DeclarationError: Nova would change it, and the tag would not match.
    """
    if name in STANDARD_CLASSES or _CUSTOM.fullmatch(name):
        return name
    raise DeclarationError(
        f"{name!r} is no resource class: write CUSTOM_ and capital letters, digits and _, "
        f"or one of {', '.join(sorted(STANDARD_CLASSES))}"
    )


def check_trait(name: str) -> str:
    """Return *name* if Nova and Placement accept it unchanged.

    :raises DeclarationError: it is not a custom trait.
    """
    if _CUSTOM.fullmatch(name):
        return name
    raise DeclarationError(f"{name!r} is no trait: write CUSTOM_ and capital letters, digits and _")


def check_network(name: str) -> str:
    """Return *name* if it can name a physical network.

    :raises DeclarationError: it cannot.
    """
    if _NETWORK.fullmatch(name):
        return name
    raise DeclarationError(
        f"{name!r} is no name of a network: write letters, digits, '.', '_' and '-'"
    )


@attrs.frozen
class Declaration:
    """The operator's wishes for a node's devices, in terms of its addresses and roles."""

    #: Addresses of physical functions that are given whole although virtual
    #: functions are switched on, which are then not offered; or EVERY.
    whole: frozenset[str] = frozenset()
    #: Role -> resource class; all other roles have Nova's own, made of the ids.
    resource_classes: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Role -> the form of its devices' identity; all other roles have IDS.
    identity: Mapping[str, Form] = attrs.field(factory=dict, hash=False)
    #: Role, or address of a function -> physical network: its devices are for Neutron's
    #: direct ports, and for no alias. An address wins over its role, also with TUNNELS.
    networks: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Address of a function -> keys of it in an entry of others, which its own entry keeps.
    kept: Mapping[str, Mapping[str, str | None]] = attrs.field(factory=dict, hash=False)
    #: Role -> traits of the device's resource provider.
    traits: Mapping[str, frozenset[str]] = attrs.field(factory=dict, hash=False)
    #: Roles whose devices Nova reserves after use until they are clean.
    one_time_use: frozenset[str] = frozenset()
    #: Offer NVSwitches, too: their server decides which GPUs are linked, also
    #: the GPUs of other servers. None: not decided, and they are not offered.
    switches: bool | None = None
    #: Addresses of functions that are not offered although they have a role,
    #: and neither are their virtual functions.
    left_out: frozenset[str] = frozenset()
    #: Address -> why a function is not offered without an explicit declaration.
    withheld: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: The node's NVLink sets; None for the sets that the inventory shows.
    nvlink: tuple[NvlinkSet, ...] | None = None
    #: Address -> declared number of virtual functions: the adapter is only for them.
    vfs: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    #: The roles whose cleaner proves that it erases storage.
    erasers: Erasers = attrs.field(factory=Erasers)

    def gives_whole(self, address: str) -> bool:
        """Whether the physical function at *address* is given as a whole."""
        return EVERY in self.whole or address in self.whole

    def class_of(self, role: str) -> str | None:
        """Return the resource class of a role's devices; None for Nova's own, made from ids."""
        own_class = self.resource_classes.get(role)
        return own_class or identity.resource_class(self.identity.get(role, Form.IDS), role)

    def own_traits(self, role: str, vendor_id: str, product_id: str) -> frozenset[str]:
        """Return the traits that distinguish a role's devices from others."""
        form = self.identity.get(role, Form.IDS)
        if form is Form.CLASS and role in self.resource_classes:
            return frozenset()  # the operator's class stands for all products
        return identity.traits_of_role(form, role, vendor_id, product_id)

    def network_of(self, role: str, address: str) -> str | None:
        """Return the physical network whose ports use a function; None if it is for aliases."""
        own_network = self.networks.get(address)
        return self.networks.get(role) if own_network is None else own_network

    def leaves_open(self, function: PciFunction, role: str | None) -> bool:
        """Whether *function* is an NVSwitch whose manager the declaration does not name."""
        return (
            role == SWITCH_ROLE and self.switches is None and function.address not in self.left_out
        )

    def refuses(self, function: PciFunction, role: str) -> str | None:
        """Return the reason not to offer a *function* of this role; None if it may be offered."""
        if {function.address, function.physical_function} & self.left_out:
            return "it is left out (left_out of the declaration)"
        if function.address in self.withheld:
            return self.withheld[function.address]
        if self.leaves_open(function, role):
            return SWITCH_CHOICE
        if role == SWITCH_ROLE and not self.switches:
            return "it stays with the host, or with a service machine"
        count = self.vfs.get(function.address, 0)
        if count and not function.virtual_functions and not self.gives_whole(function.address):
            return (
                f"{count} virtual functions are declared for it (vfs), and it has none yet, so it "
                "is not given as a whole"
            )
        return None

    def check(self, node: Node, roles: Roles) -> None:
        """Check that every wish applies to devices of *node*.

        :raises DeclarationError: an address in *whole* is not a physical function with a role,
            or virtual functions have one-time use.
        :raises nova_hpc_tools.site.nvlink_sets.NvlinkError: a set of GPUs does not match
            the node.
        """
        nvlink_sets.check_nvlink_sets(self.nvlink or (), node, roles)
        for candidate in node.functions:
            role = roles.role_of(candidate, node) or ""
            if candidate.physical_function and role in self.one_time_use:
                raise DeclarationError(
                    f"role_options: {role}: one_time_use: Nova does not allow it for virtual "
                    f"functions ({candidate.address}); remove it"
                )
        for address in sorted(self.whole - {EVERY}):
            function = node.function(address)
            if function is None or function.dev_type != "type-PF":
                raise DeclarationError(
                    f"whole_pf: {address} is no physical function that can have virtual ones: "
                    "remove it"
                )
            if roles.role_of(function, node) is None:
                raise DeclarationError(
                    f"whole_pf: {address} has no role; add an entry to roles that matches "
                    f"vendor {function.vendor_id}, product {function.product_id}, "
                    f"class {(function.class_code or '')[:4]}, {function.dev_type}"
                )
