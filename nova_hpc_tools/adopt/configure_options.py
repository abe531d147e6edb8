# SPDX-License-Identifier: Apache-2.0
"""The options of ``nova-hpc configure``, and what they say in terms of the declaration."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.topology import roles
from nova_hpc.topology.model import AddressError, Node, normalise_address
from nova_hpc.wire.node_declaration import (
    ALIAS_NAMES,
    EVERY,
    Cpus,
    DeclaredDevice,
    DeclaredLimits,
    NodeDeclaration,
    NodeWishes,
    RoleWish,
)
from nova_hpc_tools.adopt import declaration, layouts, node_wishes, service_settings, settings
from nova_hpc_tools.adopt.identity import Form
from nova_hpc_tools.base import MOST, CommandError, Count

_PAGES: Final = re.compile(r"[1-9][0-9]{0,5}[KMG]", re.ASCII)


def add_configure_options(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    _add_source_options(parser.add_argument_group("where the inventory comes from"))
    _add_offer_options(parser.add_argument_group("what is offered to servers"))
    _add_cloud_options(parser.add_argument_group("the node and its cloud"))
    _add_output_options(parser.add_argument_group("what is written"))


def add_node_options(parser: argparse.ArgumentParser) -> None:
    """Declare where the node and its declaration are, of a command that only looks."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="directory that holds sys and proc of the node (default: /)",
    )
    parser.add_argument(
        "--declaration",
        type=Path,
        metavar="FILE",
        help="the node's declaration (default: /etc/nova-hpc/node.yaml, of this machine)",
    )


def parse_as_configure(args: argparse.Namespace, parts: Iterable[str]) -> argparse.Namespace:
    """As ``configure`` would be called there: what it would offer is what is expected."""
    parser = argparse.ArgumentParser()
    add_configure_options(parser)
    words = ["--root", str(args.root)]
    if args.declaration is not None:
        words += ["--declaration", str(args.declaration)]
    for part in parts:
        words += ["--part", part]
    parsed_args = parser.parse_args(words)
    parsed_args.config = args.config
    return parsed_args


def _add_source_options(source: Any) -> None:
    inventory_group = source.add_mutually_exclusive_group()
    inventory_group.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="directory that holds sys and proc of the node (default: /)",
    )
    inventory_group.add_argument(
        "--xml",
        type=Path,
        metavar="FILE",
        help="an lstopo XML instead; it does not tell physical from virtual functions",
    )
    source.add_argument(
        "--also",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="capture (a directory like --root, or an lstopo XML) of a node of another kind, "
        "whose devices the aliases have to name, too; may be repeated",
    )
    source.add_argument(
        "--declaration",
        type=Path,
        metavar="FILE",
        help="the node's declaration, which is read, and written where options change it "
        "(default: /etc/nova-hpc/node.yaml; of a node that is not this machine, node.yaml in the "
        "directory of --write)",
    )
    source.add_argument(
        "--ask",
        action="store_true",
        help="ask what cannot be known, with defaults from the inventory, before anything is "
        "written into the declaration",
    )


def _add_offer_options(offer: Any) -> None:
    service_settings.add_config_options(offer, "Nova's services: what it says is added to")
    for name, metavar, what in _REPEATED:
        offer.add_argument(
            name, action="append", default=[], metavar=metavar, help=f"{what}; may be repeated"
        )
    offer.add_argument(
        "--offer-switches",
        action="store_true",
        help="offer the devices of the role nvswitch, too. Whoever has them decides which GPUs "
        "are linked: only where each server gets all switches of its GPUs, or for the one "
        "machine that manages them",
    )
    offer.add_argument(
        "--alias-names",
        choices=ALIAS_NAMES,
        help="auto: an alias is called as its role where that has one kind of device; "
        "product: always role and product id, e.g. gpu-2330 (default: auto)",
    )


#: Option, metavar, help.
_REPEATED: Final = (
    (
        "--device-role",
        "JSON",
        "a value of [hpc]device_role; given once or more, these replace those of the declaration "
        "and are written to the file of the node",
    ),
    (
        "--add-device-role",
        "JSON",
        "one more value of [hpc]device_role, after those that count now",
    ),
    (
        "--nvlink-set",
        "JSON",
        "a value of [hpc]nvlink_set; given once or more, these replace those of the declaration "
        "(default of the option: all GPUs where the node has NVSwitches)",
    ),
    (
        "--whole-pf",
        "ADDRESS|all",
        "give this physical function as a whole although virtual functions are switched on, which "
        "are then not offered",
    ),
    (
        "--leave-out",
        "ADDRESS",
        "do not offer this device, e.g. an adapter that manages the NVSwitches, nor its virtual "
        "functions. The declaration keeps its serial number, so it is left out wherever it is "
        "plugged in",
    ),
    (
        "--offer-in-use",
        "ADDRESS",
        "offer this device although the host, or a service of it, uses it now",
    ),
    (
        "--resource-class",
        "ROLE=NAME",
        "count the devices of a role as this resource class, and let its alias ask for any "
        "product of it (default: see --role-identity)",
    ),
    (
        "--role-identity",
        "ROLE=FORM",
        "by what Nova tells the devices of a role from others. class: by a resource class of the "
        "role; trait: by a trait, for nodes that have servers; ids: by vendor and product alone "
        "(default: as it is configured, and class where nothing is)",
    ),
    ("--trait", "ROLE=NAME", "give the devices of a role this trait"),
    (
        "--physical-network",
        "ROLE=NAME",
        "keep the devices of a role for Neutron's direct ports on this physical network: no alias "
        "asks for them (default: as it is configured)",
    ),
    (
        "--one-time-use",
        "ROLE",
        "have Nova reserve the devices of a role when a server gets them, until they were found "
        "clean; not for virtual functions",
    ),
)


def _add_cloud_options(cloud: Any) -> None:
    cloud.add_argument(
        "--housekeeping-cores",
        type=Count(0),
        metavar="N",
        help="physical cores of each NUMA node that stay with the host, with all of their "
        "threads (default: the CPU sets that are configured stay; where none are, 1)",
    )
    cloud.add_argument(
        "--hugepages",
        action="append",
        default=[],
        metavar="SIZE=N",
        help="pages of that size (2M, 1G) that each NUMA node with CPUs is to have; what is "
        "missing is said; may be repeated",
    )
    cloud.add_argument(
        "--vfs",
        action="append",
        default=[],
        metavar="ROLE|ADDRESS=N",
        help="virtual functions that each physical function of a role is to have; what is missing "
        "is said; may be repeated",
    )
    cloud.add_argument(
        "--hosts",
        type=Count(1),
        metavar="N",
        help="number of hosts that can match one request: the limits of Placement become at "
        f"least that, and never less than {settings.FEWEST_CANDIDATES} or than they are; "
        f"[hpc]{settings.CACHE} becomes what they need",
    )
    cloud.add_argument(
        "--enabled-filters",
        metavar="LIST",
        help="the deployment's filters, separated by commas, to which those of this project "
        "are added in their place (default: the configured ones, or Nova's)",
    )


def _add_output_options(output: Any) -> None:
    output.add_argument(
        "--part",
        choices=settings.PARTS,
        action="append",
        help="only this file; may be repeated (default: all of them; of a node without devices "
        "none)",
    )
    output.add_argument(
        "--layout",
        choices=layouts.NAMES,
        default=layouts.PLAIN,
        help="kolla: files below the custom configuration of Kolla-Ansible (/etc/kolla/config); "
        "osa: variables of OpenStack-Ansible (/etc/openstack_deploy). Give the merged nova.conf "
        "of the service with --config-file: what it says of others is kept (default: plain, "
        "include files)",
    )
    output.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="show the differences to the files in DIR and to what the services are told, then "
        "write them there",
    )
    output.add_argument(
        "--dry-run", action="store_true", help="with --write: show the differences only"
    )
    output.add_argument(
        "--undo",
        action="store_true",
        help="with --write: give back what the last run that wrote there has replaced, the "
        "declaration included",
    )
    output.add_argument(
        "--keep",
        choices=settings.SINGLE,
        action="append",
        default=[],
        help="leave this option as it is configured; may be repeated",
    )
    output.add_argument(
        "--replace",
        action="append",
        default=[],
        metavar="NAME",
        help="take away what is configured under this name: an option, or one filter, alias or "
        "device of it; or take one entry of device_spec of others out of its file, named by its "
        "JSON. Otherwise nothing is written when something would be lost; may be repeated",
    )


# --- what they say ---------------------------------------------------------------


def wishes_of_options(args: argparse.Namespace) -> NodeWishes:
    """The wishes in the options of one run, and nothing else.

    :raises CommandError: a value makes no sense.
    :raises roles.RoleError: a bad role.
    :raises declaration.DeclarationError: a name that Nova does not take.
    """
    roles.parse_roles(args.device_role)
    roles.parse_roles(args.add_device_role)
    return NodeWishes(
        roles=tuple(json.loads(text) for text in args.device_role) or None,
        role_options=_collect_role_wishes(args) or None,
        left_out=_parse_devices("--leave-out", args.leave_out),
        offer_in_use=_parse_devices("--offer-in-use", args.offer_in_use),
        whole_pf=_parse_devices("--whole-pf", args.whole_pf),
        offer_switches=True if args.offer_switches else None,
        nvlink_sets=tuple(args.nvlink_set) or None,
        alias_names=args.alias_names,
        cpus=None if args.housekeeping_cores is None else Cpus(args.housekeeping_cores),
        hugepages=_parse_hugepages(args.hugepages),
        vfs=_parse_counts("--vfs", args.vfs) or None,
        limits=None if args.hosts is None else DeclaredLimits(args.hosts),
    )


def add_roles_to_current(
    args: argparse.Namespace,
    before: NodeDeclaration,
    node: Node,
    told: service_settings.ServiceSettings,
) -> tuple[Mapping[str, str], ...]:
    """The roles that count now, and those of --add-device-role after them.

    :param before: the file, as it is.
    :raises CommandError: another file decides.
    """
    if told.other_roles:
        raise CommandError(
            "--add-device-role: [hpc]device_role is set in a configuration file of yours, of which "
            "Nova takes all: add the line there"
        )
    current_roles = node_wishes.wishes_for_node(before, node.hostname, "the declaration").roles
    if args.device_role:
        current_roles = tuple(json.loads(text) for text in args.device_role)
    if current_roles is None:
        # The names that devices of this node have in its entries stay theirs.
        kept = service_settings.role_table_of(
            told.device_role, node, told.configured.device_spec
        ).kept
        entries = [json.loads(text) for text in told.device_role]
        current_roles = tuple(
            {**entry, "role": kept.get(entry["role"], entry["role"])} for entry in entries
        )
    more = [json.loads(text) for text in args.add_device_role]
    return (*current_roles, *(entry for entry in more if entry not in current_roles))


def check_named_devices(wishes: NodeWishes, node: Node) -> None:
    """See whether the devices that options name are there.

    :raises CommandError: one is not.
    """
    for what, devices in (
        ("left out", wishes.left_out),
        ("offered", wishes.offer_in_use),
        ("given whole", wishes.whole_pf),
    ):
        for device in devices or ():
            if device.address != EVERY and node.function(device.address or "") is None:
                raise CommandError(
                    f"{device.address}, which is {what}, is no function of this node"
                )


def split_filter_names(text: str | None) -> Sequence[str] | None:
    """Names of --enabled-filters; None without it."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(name.isidentifier() for name in names):
        raise CommandError("--enabled-filters: write names of filters, separated by commas")
    return names


def _collect_role_wishes(args: argparse.Namespace) -> dict[str, RoleWish]:
    role_wishes: dict[str, RoleWish] = {}

    def say(role: str, **words: Any) -> None:
        role_wishes[role] = attrs.evolve(role_wishes.get(role, RoleWish()), **words)

    for role, name in _parse_resource_classes(args.resource_class).items():
        say(role, resource_class=name)
    for role, form in _parse_identity_forms(args.role_identity).items():
        say(role, identity=form.value)
    for role, name in _parse_physical_networks(args.physical_network).items():
        say(role, physical_network=name)
    for role, names in _parse_traits(args.trait).items():
        say(role, traits=tuple(sorted(names)))
    for role in args.one_time_use:
        say(role, one_time_use=True)
    return role_wishes


def _parse_devices(option: str, values: Iterable[str]) -> tuple[DeclaredDevice, ...] | None:
    """Addresses, normalised; or ``all``, of --whole-pf."""
    devices = []
    for value in values:
        try:
            whole = option == "--whole-pf" and value == EVERY
            devices.append(DeclaredDevice(value if whole else normalise_address(value)))
        except AddressError as error:
            raise CommandError(f"{option}: {error}") from error
    return tuple(devices) or None


def _split_pairs(
    option: str, values: Iterable[str], form: str = "ROLE=NAME"
) -> Iterable[tuple[str, str]]:
    for value in values:
        role, equals, name = value.partition("=")
        if not (role and equals and name):
            raise CommandError(f"{option}: {value!r} is not {form}")
        yield role, name


def _parse_counts(option: str, values: Iterable[str], form: str = "ROLE=N") -> dict[str, int]:
    counts = {}
    for name, text in _split_pairs(option, values, form):
        if not text.isascii() or not text.isdigit() or int(text) > MOST:
            raise CommandError(f"{option}: {text!r} is no number from 0 to {MOST}")
        counts[name] = int(text)
    return counts


def _parse_hugepages(values: Iterable[str]) -> Mapping[str, int] | None:
    counts = _parse_counts("--hugepages", values, "SIZE=N")
    for size in counts:
        if not _PAGES.fullmatch(size):
            raise CommandError(f"--hugepages: {size!r} is no size of pages like 2M or 1G")
    return counts or None


def _parse_resource_classes(values: Sequence[str]) -> dict[str, str]:
    """Role -> resource class, of --resource-class."""
    classes: dict[str, str] = {}
    for role, name in _split_pairs("--resource-class", values):
        if classes.setdefault(role, declaration.check_resource_class(name)) != name:
            raise CommandError(
                f"--resource-class: role {role!r} has two: {classes[role]} and {name}"
            )
    return classes


def _parse_identity_forms(values: Sequence[str]) -> dict[str, Form]:
    """Role -> form, of --role-identity."""
    forms: dict[str, Form] = {}
    for role, name in _split_pairs("--role-identity", values, "ROLE=FORM"):
        if name not in {form.value for form in Form}:
            words = ", ".join(form.value for form in Form)
            raise CommandError(f"--role-identity: {name!r} is none of {words}")
        if forms.setdefault(role, Form(name)) is not Form(name):
            raise CommandError(f"--role-identity: role {role!r} has two")
    return forms


def _parse_physical_networks(values: Sequence[str]) -> dict[str, str]:
    """Role -> physical network, of --physical-network."""
    networks: dict[str, str] = {}
    for role, name in _split_pairs("--physical-network", values):
        try:
            declaration.check_network(name)
        except declaration.DeclarationError as error:
            raise CommandError(f"--physical-network: {error}") from error
        if networks.setdefault(role, name) != name:
            raise CommandError(
                f"--physical-network: role {role!r} has two: {networks[role]}, {name}"
            )
    return networks


def _parse_traits(values: Sequence[str]) -> dict[str, frozenset[str]]:
    """Role -> traits, of --trait."""
    traits: dict[str, frozenset[str]] = {}
    for role, name in _split_pairs("--trait", values):
        traits[role] = traits.get(role, frozenset()) | {declaration.check_trait(name)}
    return traits
