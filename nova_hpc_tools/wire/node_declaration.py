# SPDX-License-Identifier: Apache-2.0
"""An operator's declaration for a node, or for all nodes of a kind: a YAML file.

``nova-hpc configure`` writes it once and reads it from then on (``/etc/nova-hpc/node.yaml``)::

    schema: nova-hpc/node
    version: 1
    left_out:
    - hardware: serial:946dae0300a11500
      address: 0000:18:00.0
      why: manages the NVSwitches
    cpus: {housekeeping_cores: 2}
    nodes:
      node17: {cpus: {housekeeping_cores: 4}}

A missing key has no effect. People write the file, so a wrong reading is worse than an error:
an unknown key, a repeated key and a value of a wrong type are refused by name.
Scalars follow YAML 1.2; in YAML 1.1 the address ``0000:18:00.0`` is a number.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

import attrs
import yaml

from nova_hpc.topology.model import ADDRESS, normalise_address
from nova_hpc.wire import strict
from nova_hpc_common.wire.version import WireError, show_json_value
from nova_hpc_tools.wire.documents import NODE_DECLARATION
from nova_hpc_tools.wire.rail_wish import RailWish, check_rails, rails_as_lists

#: Address of ``whole_pf`` that stands for every adapter.
EVERY: Final = "all"
ALIAS_NAMES: Final = ("auto", "product")
IDENTITIES: Final = ("class", "trait", "ids")

_PAGES: Final = re.compile(r"[1-9][0-9]{0,5}[KMG]", re.ASCII)
_HOST: Final = re.compile(r"[\w.*?\[\]-]{1,253}", re.ASCII)
_UNITS: Final = {"K": 1, "M": 1 << 10, "G": 1 << 20}


@attrs.frozen
class DeclaredDevice:
    """A device in the declaration: a piece of hardware, or any hardware at an address."""

    address: str | None = None
    #: As in the ledger: ``serial:...`` or ``vpd:...``. It wins over the address.
    hardware: str | None = None
    #: The reason, for people.
    why: str | None = None


@attrs.frozen
class RoleWish:
    """The operator's declared settings for the devices of one role; None for the default."""

    identity: str | None = None
    resource_class: str | None = None
    traits: tuple[str, ...] | None = None
    one_time_use: bool | None = None
    physical_network: str | None = None


@attrs.frozen
class Cpus:
    """The declared number of CPU cores that the host keeps for itself."""

    housekeeping_cores: int | None = None


@attrs.frozen
class DeclaredLimits:
    """The declared size of the cloud: its number of hosts."""

    hosts: int | None = None


@attrs.frozen
class NodeWishes:
    """The declared settings, for all nodes of the file or for one; None if not set."""

    #: Entries of ``[hpc]device_role``.
    roles: tuple[Mapping[str, str], ...] | None = None
    role_options: Mapping[str, RoleWish] | None = attrs.field(default=None, hash=False)
    rails: RailWish | None = None
    left_out: tuple[DeclaredDevice, ...] | None = None
    offer_in_use: tuple[DeclaredDevice, ...] | None = None
    whole_pf: tuple[DeclaredDevice, ...] | None = None
    offer_switches: bool | None = None
    #: Values of ``[hpc]nvlink_set``, each a JSON object.
    nvlink_sets: tuple[str, ...] | None = None
    alias_names: str | None = None
    cpus: Cpus | None = None
    #: The host keeps its own work off the CPUs of ``[compute]cpu_dedicated_set``.
    quiet_cpus: bool | None = None
    #: Size of a page (``2M``, ``1G``) -> pages of each NUMA node with CPUs.
    hugepages: Mapping[str, int] | None = attrs.field(default=None, hash=False)
    #: Role of physical functions, or an address of one -> its virtual functions.
    vfs: Mapping[str, int] | None = attrs.field(default=None, hash=False)
    limits: DeclaredLimits | None = None
    #: Address of a function -> the other settings of the operator's device_spec entry that this
    #: project has replaced; the new entry keeps them.
    kept: Mapping[str, Mapping[str, str | None]] | None = attrs.field(default=None, hash=False)


@attrs.frozen
class NodeDeclaration:
    """The content of a declaration file: settings for all its nodes, and for single ones."""

    wishes: NodeWishes = attrs.field(factory=NodeWishes)
    #: Patterns of the host names that may use it; if empty, every host may.
    hosts: tuple[str, ...] = ()
    #: Host name -> its differences.
    nodes: Mapping[str, NodeWishes] = attrs.field(factory=dict, hash=False)

    def is_for(self, hostname: str | None) -> bool:
        """Whether the file is for a node of that name. A node without a name may use any file."""
        if hostname is None or not self.hosts:
            return True
        return any(fnmatch.fnmatchcase(hostname, pattern) for pattern in self.hosts)


def page_kib(size: str) -> int:
    """Convert the size of a hugepage to KiB: 1048576 for ``1G``."""
    return int(size[:-1]) * _UNITS[size[-1]]


# --- reading --------------------------------------------------------------------------


def read_declaration(text: object) -> NodeDeclaration:
    """Parse a declaration file.

    :raises nova_hpc_common.wire.version.LaterError: only a later release reads it.
    :raises WireError: it is broken; the text names the place. No part of it counts.
    """
    document = _parse_yaml_document(text)
    hosts = _read_host_patterns(document.pop("for", None))
    nodes = document.pop("nodes", None)
    if nodes is None:
        nodes = {}
    if not isinstance(nodes, dict):
        raise WireError(f"nodes is {show_json_value(nodes)}, not an object")
    declaration = NodeDeclaration(
        wishes=_read_wishes(document, ""),
        hosts=hosts or (),
        nodes={
            _check_host_name(name): _read_wishes(wishes, f"nodes: {name}: ")
            for name, wishes in nodes.items()
        },
    )
    for pattern in declaration.hosts:
        if not _HOST.fullmatch(pattern):
            raise WireError(f"for: {show_json_value(pattern)} is no host name or pattern of one")
    return declaration


def _parse_yaml_document(text: object) -> dict[str, Any]:
    longest = NODE_DECLARATION.longest or 0
    if not isinstance(text, str) or len(text) > longest:
        raise NODE_DECLARATION.broken(f"is no text of at most {longest} characters")
    try:
        loader = _Loader(text)
        try:
            document = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise NODE_DECLARATION.broken(f"is not YAML: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise NODE_DECLARATION.broken(f"is not YAML: {problem}") from error
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
        # A tag (!!int, !!timestamp) for a text of another type, or a thousand brackets.
        raise NODE_DECLARATION.broken("is not YAML that can be read: plain values only") from error
    if not isinstance(document, dict):
        raise NODE_DECLARATION.broken("is no YAML mapping")
    if document.pop("schema", None) != NODE_DECLARATION.schema:
        raise WireError(
            f"it is no {NODE_DECLARATION.name}: it begins with schema: {NODE_DECLARATION.schema}"
        )
    NODE_DECLARATION.check(document.pop(NODE_DECLARATION.key, None))
    return document


def _read_host_patterns(data: object) -> tuple[str, ...] | None:
    try:
        return strict.structure_document(_CONVERTER, {"hosts": data}, _HostPatterns, {}).hosts
    except WireError as error:
        raise WireError(str(error).replace("hosts", "for", 1)) from error


def _check_host_name(name: object) -> str:
    if not isinstance(name, str) or not _HOST.fullmatch(name) or set(name) & set("*?["):
        raise WireError(f"nodes: {show_json_value(name)} is no host name")
    return name


def _read_wishes(data: object, where: str) -> NodeWishes:
    """Read one set of the operator's wishes, with the short forms that operators may write.

    :param where: the beginning of errors, like ``"nodes: cn17: "``.
    """
    if isinstance(data, dict):
        data = dict(data)
        for key in ("left_out", "offer_in_use", "whole_pf"):
            if isinstance(data.get(key), list):
                # An address as a text is enough.
                data[key] = [
                    {"address": entry} if isinstance(entry, str) else entry for entry in data[key]
                ]
        if isinstance(data.get("roles"), list):
            data["roles"] = [_numbers_as_texts(entry) for entry in data["roles"]]
        if isinstance(data.get("rails"), dict):
            data["rails"] = rails_as_lists(data["rails"])
    try:
        wishes = strict.structure_document(_CONVERTER, data, NodeWishes, _SINGULAR)
        return _check_wishes(wishes)
    except ValueError as error:
        raise WireError(f"{where}{error}") from error


def _numbers_as_texts(entry: object) -> object:
    """Convert numbers in an entry of ``roles`` to texts, such as ``product_id: 1021``."""
    if not isinstance(entry, dict):
        return entry
    return {key: str(value) if type(value) is int else value for key, value in entry.items()}


def _check_wishes(wishes: NodeWishes) -> NodeWishes:
    """Check the settings, and normalise their addresses.

    :raises ValueError: a setting is invalid; the text names it.
    """
    lists: dict[str, Any] = {
        key: tuple(_check_device(key, device) for device in devices)
        for key in ("left_out", "offer_in_use", "whole_pf")
        if (devices := getattr(wishes, key)) is not None
    }
    both = set(map(_device_key_of, lists.get("left_out", ()))) & set(
        map(_device_key_of, lists.get("offer_in_use", ()))
    )
    if both:
        raise ValueError(f"left_out and offer_in_use both name {min(both)}: remove one")
    if wishes.alias_names not in (None, *ALIAS_NAMES):
        raise ValueError(
            f"alias_names is {show_json_value(wishes.alias_names)}, not auto or product"
        )
    for role, wish in (wishes.role_options or {}).items():
        if wish.identity not in (None, *IDENTITIES):
            raise ValueError(
                f"role_options: {role}: identity is {show_json_value(wish.identity)}, none of "
                f"{', '.join(IDENTITIES)}"
            )
    for address in wishes.kept or ():
        if not ADDRESS.fullmatch(address):
            raise ValueError(
                f"kept: {show_json_value(address)} is not a PCI address like 0000:17:00.0"
            )
    for size in wishes.hugepages or ():
        if not _PAGES.fullmatch(size):
            raise ValueError(
                f"hugepages: {show_json_value(size)} is no size of pages like 2M or 1G"
            )
    if wishes.rails is not None:
        lists["rails"] = check_rails(wishes.rails)
    return attrs.evolve(wishes, **lists)


def _check_device(key: str, device: DeclaredDevice) -> DeclaredDevice:
    """Return the entry of *key* with its address in the usual spelling.

    :raises ValueError: it names no device, or its address is malformed.
    """
    if device.address is None and device.hardware is None:
        raise ValueError(f"{key}: an entry names neither address nor hardware")
    if device.address is None or (key == "whole_pf" and device.address == EVERY):
        return device
    if not ADDRESS.fullmatch(device.address):
        raise ValueError(
            f"{key}: {show_json_value(device.address)} is not a PCI address like 0000:17:00.0"
        )
    return attrs.evolve(device, address=normalise_address(device.address))


def _device_key_of(device: DeclaredDevice) -> str:
    return device.hardware or str(device.address)


@attrs.frozen
class _HostPatterns:
    hosts: tuple[str, ...] | None


_SINGULAR: Final = {
    "roles": "entry",
    "left_out": "device",
    "offer_in_use": "device",
    "whole_pf": "device",
    "nvlink_sets": "entry",
    "adapters": "adapter",
    "traits": "trait",
}
_CONVERTER: Final = strict.make_strict_converter(
    {
        "housekeeping_cores": strict.number_field(0, 10_000),
        "hosts": strict.number_field(1),
    },
    defaults=True,
)


class _Loader(yaml.SafeLoader):
    """A YAML loader for plain data: texts, whole numbers, true, false and null, as in YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse YAML references, which a file for people does not need."""
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"line {mark.line + 1}: references (*) are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Build a YAML mapping; refuse a repeated key, because its value is ambiguous."""
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str):
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: a key is no text")
            if name in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: {name} is given twice")
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), ["t", "f"])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:|~|null)$"), ["", "~", "n"]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^(?:0|-?[1-9][0-9]{0,30})$"), list("-0123456789")
)


# --- writing --------------------------------------------------------------------------

_HEAD: Final = """\
# The decisions for this node, or for all nodes of its kind. nova-hpc configure reads them
# whenever it runs. Edit it, then run nova-hpc configure again; it shows the changes. Comments
# of yours are lost when it adds to the file (--add-device-role); a "why:" stays. A
# missing key has no effect.
"""

#: Key -> its purpose, and an example for a key without a value.
_COMMENTS: Final[Mapping[str, tuple[str, str]]] = {
    "for": (
        "Host names (with * and ?) that this file is for; without it, whichever reads it.",
        "for: [gpu-*]",
    ),
    "roles": (
        "Which PCI function plays which role: the entries of [hpc]device_role. Without them,\n"
        "those of nova.conf, or the defaults.",
        "roles: [{role: gpu, vendor_id: '10de', class: '0302'}]",
    ),
    "role_options": (
        "How the devices of a role are offered: identity (class, trait, ids), resource_class,\n"
        "traits, one_time_use, physical_network.",
        "role_options: {gpu: {traits: [CUSTOM_SXM]}}",
    ),
    "rails": (
        "Adapters for Neutron's ports, in the order of the rails: PCI addresses, interfaces, RDMA\n"
        "devices or GUIDs of ports; {n} is the number of the rail.",
        "rails: {physical_network: 'ibrail{n}', adapters: ['0000:1a:00.0', '0000:3c:00.0']}",
    ),
    "left_out": (
        "Never offered, nor are their virtual functions; with hardware (configure prints "
        "it),\nin any slot.",
        "left_out: [{address: '0000:18:00.0', why: manages the NVSwitches}]",
    ),
    "offer_in_use": (
        "Offered although the host, or a service of it, uses them now.",
        "offer_in_use: [{address: '0000:19:00.0'}]",
    ),
    "whole_pf": (
        "Given whole although virtual functions are switched on; the address all means all.",
        "whole_pf: [{address: all}]",
    ),
    "offer_switches": ("Offer NVSwitches, too.", "offer_switches: false"),
    "nvlink_sets": (
        "Values of [hpc]nvlink_set.",
        """nvlink_sets: ['{"name": "left", "devices": ["0000:07:00.0", "0000:0a:00.0"]}']""",
    ),
    "alias_names": (
        "auto: an alias is called as its role; product: role and product id.",
        "alias_names: auto",
    ),
    "cpus": (
        "Physical cores of each NUMA node that stay with the host. Without it, the CPU sets\n"
        "that are configured stay; where none are, the host keeps one core of each.",
        "cpus: {housekeeping_cores: 1}",
    ),
    "quiet_cpus": (
        "true: nova-hpc prepare keeps the host's own work off the CPUs of\n"
        "[compute]cpu_dedicated_set, from the next boot on.",
        "quiet_cpus: true",
    ),
    "hugepages": (
        "Pages that each NUMA node with CPUs has to have; missing ones are reported, "
        "and\nnova-hpc prepare makes them at boot.",
        "hugepages: {1G: 40}",
    ),
    "vfs": (
        "Virtual functions that each physical function has to have, by role or address; "
        "missing\nones are reported, and nova-hpc prepare makes them at boot.",
        "vfs: {pf: 8}",
    ),
    "limits": (
        "Hosts of the cloud: the limits of Nova and Placement are beyond them all.",
        "limits: {hosts: 400}",
    ),
    "kept": (
        "Settings of functions from removed entries of device_spec, which stay in the "
        "new\nentries: configure names the lines to add.",
        "kept: {'0000:18:00.0': {trusted: 'true'}}",
    ),
    "nodes": (
        "Settings of single nodes. Lists of devices are added to, everything else is replaced.",
        "nodes: {node17: {cpus: {housekeeping_cores: 2}}}",
    ),
}


def build_declaration(declaration: NodeDeclaration) -> dict[str, Any]:
    """Return the declaration as plain objects; settings without a value are left out."""
    document = {**NODE_DECLARATION.head(), **_stated_items_of(declaration.wishes)}
    if declaration.hosts:
        document["for"] = list(declaration.hosts)
    if declaration.nodes:
        document["nodes"] = {
            name: _stated_items_of(wishes) for name, wishes in declaration.nodes.items()
        }
    return document


def write_declaration(declaration: NodeDeclaration) -> str:
    """Format the text of a declaration file, with a comment for every key."""
    document = build_declaration(declaration)
    lines = [_HEAD]
    lines += [f"{key}: {document[key]}\n" for key in NODE_DECLARATION.head()]
    for key, (comment, example) in _COMMENTS.items():
        lines.append("\n")
        lines += [f"# {line}\n" for line in comment.splitlines()]
        if key in document:
            lines.append(
                yaml.safe_dump({key: document[key]}, sort_keys=False, width=96, allow_unicode=True)
            )
        else:
            lines.append(f"# {example}\n")
    return "".join(lines)


def _stated_items_of(value: Any) -> dict[str, Any]:
    return dict(_iterate_stated(value))


def _iterate_stated(value: Any) -> Iterator[tuple[str, Any]]:
    for field in attrs.fields(type(value)):
        field_value = getattr(value, field.name)
        if field_value is not None:
            yield field.name, _to_plain_yaml(field_value)


def _to_plain_yaml(value: Any) -> Any:
    if attrs.has(type(value)):
        return _stated_items_of(value)
    if isinstance(value, Mapping):
        return {key: _to_plain_yaml(item) for key, item in value.items()}
    if isinstance(value, tuple):
        # One adapter of a rail needs no brackets.
        return [
            item[0] if isinstance(item, tuple) and len(item) == 1 else _to_plain_yaml(item)
            for item in value
        ]
    return value
