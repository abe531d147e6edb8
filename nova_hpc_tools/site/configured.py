# SPDX-License-Identifier: Apache-2.0
"""The settings that a node's services have, and the losses that new settings would cause.

Pure: texts of options in, losses out. New filters, weighers and aliases are
added to those of others. A :class:`Loss` is a configured value that would change
or disappear, or a device that was held back and would be offered. Nothing is
written until the operator confirms each loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.topology import cpuset
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.roles import Roles
from nova_hpc.wire import tags
from nova_hpc_tools.site import entry_losses, identity, nova_rules, spec_entries
from nova_hpc_tools.site.declaration import TUNNELS
from nova_hpc_tools.site.device_spec import DeviceOffer, DeviceSpec
from nova_hpc_tools.site.identity import Form

#: Keys that Nova ignores in its search for the devices of an alias (nova/pci/request.py,
#: _get_alias_from_config): aliases that differ only in these name the same devices.
_NO_DEVICES: Final = frozenset({"numa_policy", "live_migratable", "capability_type"})

#: Keys of an entry of device_spec that have rules of their own.
_JUDGED: Final = frozenset({"managed", "resource_class", "traits"})
#: Stands for the value of a missing key; null is a value.
_NOTHING: Final = object()


#: Nova's own driver, the base class of this project's driver.
STOCK_DRIVER: Final = "libvirt.LibvirtDriver"


@attrs.frozen
class Loss:
    """A configured value that ``configure`` would change or remove."""

    #: The option, and the item of it: both name the loss for ``--replace``.
    option: str
    name: str
    text: str
    #: The cure, if the operator cannot confirm the loss because a service would not start. A
    #: part of a sentence.
    cure: str | None = None
    #: The way to keep the present state; a part of a sentence.
    otherwise: str | None = None
    #: A JSON object of a file of others that has to go first.
    foreign: str | None = None

    def meant(self, replace: Iterable[str]) -> bool:
        """Whether *replace*, from the operator, confirms this loss."""
        return self.cure is None and bool({self.option, self.name} & set(replace))

    @property
    def refusal(self) -> str:
        """The text of the refusal, and how to keep the value or to give it up."""
        cure = self.cure or f"--replace {self.name} where it is meant"
        return f"{self.text}: {', or '.join(filter(None, (cure, self.otherwise)))}"


@attrs.frozen
class Configured:
    """The present settings of the services; None or empty if an option is not set."""

    filters: tuple[str, ...] | None = None
    weighers: tuple[str, ...] | None = None
    #: Of the files that ``configure`` itself wrote, and of all others.
    aliases: tuple[str, ...] = ()
    other_aliases: tuple[str, ...] = ()
    limits: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    #: ``[hpc]cache_size`` of the files that ``configure`` itself wrote; *limits* has the one of
    #: other files.
    own_cache: int | None = None
    cpu_sets: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Nova switches dedicated CPUs off while no server has them: see
    #: :func:`service_settings.switches_cpus_off`.
    switches_cpus_off: bool = False
    device_spec: tuple[str, ...] = ()
    #: The node's file was written with a declaration, so each device that it lacks has a reason.
    declared: bool = False
    #: ``[DEFAULT]compute_driver``.
    driver: str | None = None
    #: The part of *device_spec* (and of *cpu_sets*, below) from the node's own file.
    own_device_spec: tuple[str, ...] = ()
    #: The part of *device_spec* from files of others, with the names of interfaces as written.
    other_device_spec: tuple[str, ...] = ()
    own_cpu_sets: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Parts whose files exist.
    files: frozenset[str] = frozenset()


# --- lists: present items, then new ones ---------------------------------------


def losses_of_list(option: str, before: Iterable[str] | None, after: Sequence[str]) -> list[Loss]:
    """Return a loss for each item that an option's list has now and would lose."""
    gone = [name for name in before or () if name not in after]
    return [Loss(option, name, f"{option} would lose {name}") for name in gone]


def merge_aliases(
    configured: Configured, wanted: Sequence[Mapping[str, str]], again: bool = False
) -> tuple[list[str], list[Loss]]:
    """Return the values of ``[pci]alias`` to write: present ones, then the new ones; and losses.

    :param again: devices that already have an alias of ours get no second one.

    An alias of another file is not written again: with PCI devices in Placement, Nova refuses a
    name with two specifications, even if both are the same (nova/pci/request.py,
    _validate_multispec).
    """
    theirs = {
        str(alias.get("name")): alias
        for alias in map(spec_entries.read_spec_entry, configured.other_aliases)
    }
    kept = {
        str(alias["name"]): alias
        for alias in map(spec_entries.read_spec_entry, configured.aliases)
        if alias
    }
    losses = []
    lines = {name: alias for name, alias in kept.items() if name not in theirs}
    asked = [_devices_of_alias(alias) for alias in kept.values()]
    for alias in wanted:
        name = alias["name"]
        if again and name not in kept and name not in theirs and _devices_of_alias(alias) in asked:
            continue  # an earlier run, with other nodes, has given them another name
        before = theirs.get(name, kept.get(name))
        if before is not None and _devices_of_alias(before) != _devices_of_alias(alias):
            text = f"alias {name} is {json.dumps(before)} and would be {json.dumps(dict(alias))}"
            foreign = json.dumps(before) if name in theirs else None
            losses.append(Loss("alias", name, text, foreign=foreign))
            lines[name] = alias
        elif name not in theirs:
            lines.setdefault(name, alias)
    return [json.dumps(dict(alias)) for alias in lines.values()], losses


def _devices_of_alias(alias: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of an alias that select its devices, with their values in lower case."""
    return {
        key: str(value).lower() for key, value in alias.items() if key not in {"name", *_NO_DEVICES}
    }


# --- single values -------------------------------------------------------------


def not_lowered(configured: Configured, option: str, limit: int) -> int:
    """Return a limit that is at least the configured one; below 0 means unlimited and stays."""
    before = configured.limits.get(option)
    if before is None:
        return limit
    return before if before < 0 else max(before, limit)


def driver_losses(configured: Configured, driver: str) -> list[Loss]:
    """Return the loss of a compute driver neither Nova's nor this one; [] if none is set."""
    before = configured.driver
    if before in (None, "", STOCK_DRIVER, driver):
        return []
    text = f"compute_driver is {before} and would be {driver}"
    return [Loss("compute_driver", "compute_driver", text)]


def parse_cpus(text: str) -> frozenset[int] | None:
    """Read a set as Nova does (nova/virt/hardware.py, parse_cpu_spec): ``0-3,^2``.

    :returns: None if Nova would not start with it.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        some = cpuset.parse_list(",".join(part for part in parts if not part.startswith("^")))
        return some - cpuset.parse_list(
            ",".join(part[1:].strip() for part in parts if part.startswith("^"))
        )
    except ValueError:
        return None


# --- devices -------------------------------------------------------------------


def device_losses(
    configured: Configured, node: Node, spec: DeviceSpec, told: Collection[str] = ()
) -> list[Loss]:
    """Return the losses of devices: newly offered, offered on other terms, or no longer offered.

    :param told: addresses in the operator's list of devices that are left out.
    """
    return [
        *_no_longer_offered(configured, spec, told),
        *_given_now(configured, node, spec),
        *_lost_wishes(configured, node, spec),
    ]


def _no_longer_offered(
    configured: Configured, spec: DeviceSpec, told: Collection[str]
) -> Iterator[Loss]:
    """Yield a loss for each offer in the node's own file that would end."""
    offered = {address for offer in spec.offers for address in (offer.provider, *offer.functions)}
    reasons = {item.address: item.reason for item in spec.omitted}
    seen = set()
    for entry in map(spec_entries.read_spec_entry, configured.own_device_spec):
        for address in spec_entries.addresses_of_entry(entry):
            if address in offered or address in told or address in seen:
                continue
            seen.add(address)
            role = entry.get(tags.ROLE)
            reason = reasons.get(address) or _why_family(spec, address) or "it is not there now"
            yield Loss(
                "device_spec",
                address,
                f"{address}{f' ({role})' if role else ''} is offered and would not be ({reason})",
            )


def _why_family(spec: DeviceSpec, provider: str) -> str | None:
    """Explain why the virtual functions of *provider* are not offered; None if unknown."""
    return next((omission.reason for omission in spec.omitted if omission.parent == provider), None)


def _given_now(configured: Configured, node: Node, spec: DeviceSpec) -> Iterator[Loss]:
    entries = [spec_entries.read_spec_entry(text) for text in configured.device_spec]
    if configured.declared or not entries:
        return
    for offer in spec.offers:
        functions = [
            function for address in offer.functions if (function := node.function(address))
        ]
        if not all(
            any(spec_entries.entry_matches(entry, function) for entry in entries)
            for function in functions
        ):
            # Without a declaration the reason is unknown: it may be new, or left out on purpose.
            yield Loss(
                "device_spec",
                offer.provider,
                f"{offer.provider} ({offer.tags.role}) is not offered and would be",
                otherwise=f"left_out: ['{offer.provider}'] in the declaration keeps it so",
            )


def _lost_wishes(configured: Configured, node: Node, spec: DeviceSpec) -> Iterator[Loss]:
    """Yield a loss for each of the operator's wishes for a device that would no longer be met."""
    before = {
        _entry_key_of(entry): entry
        for entry in map(spec_entries.read_spec_entry, configured.device_spec)
    }
    for offer in spec.offers:
        functions = [
            function for address in offer.functions if (function := node.function(address))
        ]
        yield from _class_changed(configured, offer, functions)
        for entry in offer.entries:
            old = before.get(_entry_key_of(entry), {})
            lost = identity.traits_as_nova_has_them(
                old.get("traits")
            ) - identity.traits_as_nova_has_them(entry.get("traits"))
            if lost:
                names = ",".join(sorted(lost))
                text = f"{offer.provider}: traits is {names} and would be lost"
                yield Loss("device_spec", offer.provider, text)
            wishes = {key for key in spec_entries.carried_keys_of(old) if key not in _JUDGED}
            for name in sorted(wishes | ({tags.NVLINK} & set(old))):
                if entry_losses.as_tag(old[name]) != entry.get(name, _NOTHING):
                    old_text = entry_losses.format_value(old[name])
                    after = "would be lost"
                    if name in entry:
                        after = f"would be {entry_losses.format_value(entry[name])}"
                    text = f"{offer.provider}: {name} is {old_text} and {after}"
                    yield Loss("device_spec", offer.provider, text)


def _class_changed(
    configured: Configured, offer: DeviceOffer, functions: Sequence[PciFunction]
) -> Iterator[Loss]:
    """Yield the loss if a provider's resource class would change: impossible while it is in use."""
    new_class = offer.tags.resource_class
    for entry in spec_entries.entries_of_functions(configured.device_spec, functions):
        if spec_entries.NETWORK in entry or offer.network is not None:
            continue  # not in Placement
        old_class = entry.get("resource_class")
        default_class = identity.product_class(offer.vendor_id, offer.product_id)
        if identity.class_as_nova_has_it(old_class or default_class) == (
            new_class or default_class
        ):
            continue
        after = "would be lost" if new_class is None else f"would be {new_class}"
        yield Loss(
            "device_spec",
            offer.provider,
            f"{offer.provider}: resource_class is {old_class or default_class} and "
            f"{after}; as long as a server "
            "has one of its devices, nova-compute does not start with that (InventoryInUse), and "
            f"role_options: {{{offer.tags.role}: {{identity: trait}}}} in the declaration does "
            "without",
        )
        return


def roles_told_by_ids(configured: Configured, node: Node, roles: Roles) -> list[str]:
    """Return roles identified by vendor and product, because a foreign entry names a device."""
    stock = [
        text
        for text in configured.device_spec
        if tags.ROLE not in spec_entries.read_spec_entry(text)
    ]
    return [
        role
        for role, functions in _functions_by_role(node, roles).items()
        if any(
            spec_entries.NETWORK not in entry
            for entry in spec_entries.entries_of_functions(stock, functions)
        )
    ]


def networks_of_roles(
    configured: Configured,
    node: Node,
    roles: Roles,
    chosen: Mapping[str, str],
    remembered: Mapping[str, Mapping[str, str | None]],
) -> dict[str, str]:
    """Return role, or address of a function -> the physical network whose ports use it.

    :param chosen: role -> network, from the operator; other roles keep their networks.
    :param remembered: address -> keys of a removed entry, from the declaration.
    """
    known_networks = dict(chosen)
    for role, functions in _functions_by_role(node, roles).items():
        for function in () if role in chosen else functions:
            entries = spec_entries.entries_of_functions(configured.device_spec, [function])
            for entry in (remembered.get(function.address, {}), *entries):
                if spec_entries.NETWORK in entry:
                    known_networks[function.address] = str(entry[spec_entries.NETWORK] or TUNNELS)
                elif nova_rules.is_true(entry.get("remote_managed")):
                    # Nova gives these only to remote-managed ports (pci/stats.py).
                    known_networks[function.address] = TUNNELS
    return known_networks


def keep_names(roles: Roles, node: Node, device_spec: Iterable[str]) -> Roles:
    """Return the default roles, under the names that the node's devices have already.

    The default roles of later releases distinguish more devices. A node that was configured before
    keeps the names of its entries until its operator changes them.

    :param roles: the default ones.
    """
    lines = tuple(device_spec)
    kept = {}
    for role, functions in _functions_by_role(node, roles).items():
        written_roles = {
            entry.get(tags.ROLE) for entry in spec_entries.entries_of_functions(lines, functions)
        } - {None}
        if len(written_roles) == 1 and not written_roles & {role}:
            kept[role] = str(written_roles.pop())
    return attrs.evolve(roles, kept=kept) if kept else roles


def _functions_by_role(node: Node, roles: Roles) -> dict[str, list[PciFunction]]:
    by_role: dict[str, list[PciFunction]] = {}
    for function in node.functions:
        role = roles.role_of(function, node)
        if role is not None:
            by_role.setdefault(role, []).append(function)
    return by_role


def identity_forms_of(
    configured: Configured, node: Node, roles: Roles, chosen: Mapping[str, Form]
) -> dict[str, Form]:
    """Return role -> the form of its identity: the operator's, or the configured one, or CLASS.

    The node's own entries decide. If they name no device of a role yet, the role's alias decides.
    So a new node of an old cloud is like the other nodes.

    :param chosen: role -> form, from the operator.
    """
    decided: dict[str, Form] = {}
    aliases = [*map(spec_entries.read_spec_entry, (*configured.aliases, *configured.other_aliases))]
    by_role = _functions_by_role(node, roles)
    for role in roles.names:
        role_entries = spec_entries.entries_of_functions(
            configured.device_spec, by_role.get(role, ())
        )
        entries = [entry for entry in role_entries if spec_entries.NETWORK not in entry]
        called = re.compile(re.escape(role) + "(?:-[0-9a-f]{4}.*)?", re.ASCII)
        named = [alias for alias in aliases if called.fullmatch(str(alias.get("name", "")).strip())]
        written = identity.oldest_form(identity.form_written_in(entry, role) for entry in entries)
        asked = identity.oldest_form(identity.form_written_in(alias, role) for alias in named)
        decided[role] = chosen.get(role) or written or asked or Form.CLASS
    return decided


def _entry_key_of(entry: Mapping[str, Any]) -> str:
    parts = [entry.get(name) for name in ("vendor_id", "product_id", "address")]
    return json.dumps(parts, sort_keys=True).lower()
