# SPDX-License-Identifier: Apache-2.0
"""The role of each function of a node, and whether servers are offered it, or the reason if not.

The answer comes from the entries that ``configure`` would write
(:mod:`nova_hpc_tools.site.device_spec`) and from the current ``[pci]device_spec``. So an
inventory, a picture and ``configure`` cannot differ.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.tenancy.stage import erasers
from nova_hpc.topology import roles
from nova_hpc.topology.model import InventoryError, Node
from nova_hpc.topology.roles import Roles
from nova_hpc_tools.site import configured, device_spec, nvlink_sets, service_settings, spec_entries
from nova_hpc_tools.site.declaration import Declaration
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.overlooked import NOBODY


class Offer(enum.Enum):
    """Whether a function is offered to servers. The value is the word for people."""

    #: An entry of ``[pci]device_spec`` names it.
    OFFERED = "offered"
    #: ``configure`` would write an entry for it, and it has none yet.
    POSSIBLE = "can be offered"
    #: It has a role, but there is a reason not to offer it.
    REFUSED = "not offered"
    #: It has no role: it stays with the host.
    NO_ROLE = "no role"


@attrs.frozen
class FunctionStanding:
    """The role of a function, and whether it is offered to servers."""

    role: str = ""
    offer: Offer = Offer.NO_ROLE
    #: The reason not to offer it; an offered function may have one, too.
    reason: str = ""

    @property
    def words(self) -> str:
        """Role and offer as a text for people; "" without a role."""
        if not self.role and self.offer is Offer.NO_ROLE:
            return ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.role or 'no role'} {self.offer.value}{reason}"


NONE: Final = FunctionStanding()


@attrs.frozen
class NodeSettings:
    """The configured roles and device_spec entries of a node, and its offer."""

    roles: Roles
    #: Values of ``[pci]device_spec``.
    lines: tuple[str, ...]
    #: The devices that ``configure`` would offer and omit.
    spec: DeviceSpec


def read_node_settings(node: Node, config: Sequence[str]) -> NodeSettings:
    """Read the settings of nova-compute, and decide which devices *node* offers.

    :param config: as :func:`nova_hpc_tools.site.source_options.add_config_options` stores it.
    :raises InventoryError: a setting cannot be used; the text contains the option and the reason.
    """
    try:
        options = service_settings.read_node_options(
            config, ("device_role", "nvlink_set", "nvlink_backend", *erasers.OPTIONS)
        )
        lines = tuple(options.pci.device_spec or ())
        role_table = service_settings.role_table_of(options.hpc.device_role, node, lines)
    except (roles.RoleError, service_settings.ConfigError) as error:
        raise InventoryError(f"[hpc]device_role cannot be used: {error}") from error
    try:
        links = nvlink_sets.parse_nvlink_sets(options.hpc.nvlink_set)
        nvlink_sets.check_nvlink_sets(links, node, role_table)
    except nvlink_sets.NvlinkError as error:
        raise InventoryError(str(error)) from error
    current_settings = configured.Configured(
        device_spec=lines, aliases=tuple(options.pci.alias or ())
    )
    identity = configured.identity_forms_of(current_settings, node, role_table, {})
    declaration = Declaration(
        nvlink=links or None,
        identity=identity,
        # configure has written entries only after the decision.
        switches=None if options.hpc.nvlink_backend == NOBODY and not lines else False,
        erasers=erasers.find_erasers(options.hpc),
    )
    return NodeSettings(
        role_table, lines, device_spec.build_device_spec(node, role_table, declaration)
    )


def make_default_settings(node: Node) -> NodeSettings:
    """Make the settings for a node whose configuration is unknown: default roles, and no entry."""
    role_table = roles.parse_roles(DEFAULT_ROLES)
    return NodeSettings(role_table, (), device_spec.build_device_spec(node, role_table))


def judge_functions(node: Node, settings: NodeSettings) -> Mapping[str, FunctionStanding]:
    """Return address -> role and offer, for every function that has a role or an entry."""
    entries = [
        spec_entries.read_spec_entry(text)
        for text in spec_entries.translate_interfaces(
            spec_entries.split_entries(settings.lines), node
        )
    ]
    reasons = {item.address: item.reason for item in settings.spec.omitted}
    standings = {}
    for function in node.functions:
        role = settings.roles.role_of(function, node) or ""
        named = not function.is_bridge and any(
            spec_entries.entry_matches(entry, function) for entry in entries
        )
        if not role and not named:
            continue
        reason = reasons.get(function.address, "")
        offer = Offer.OFFERED if named else Offer.REFUSED if reason else Offer.POSSIBLE
        standings[function.address] = FunctionStanding(role, offer, reason)
    return standings
