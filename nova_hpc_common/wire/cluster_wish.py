# SPDX-License-Identifier: Apache-2.0
"""The description of a virtual cluster, as it lies in Nova's own records.

No service keeps it. The name of the server group contains it until the first member
exists, then the metadata of each member. Any client that reads it can finish or undo
the work of another one. A name has 255 characters and never changes. If the description is
too long, the name has its digest, and the user has to repeat the options to finish the work.

The user data and the volumes are never stored, only their digests. Mounts stand behind the digest
of the user data. A client of an earlier release takes both for one digest, keeps it, and refuses to
create members, which would lack the mounts.

A description with a head has version 2, and every other one has version 1. A release without
heads would take the head for a surplus member, and delete it. So it must not read such a
description.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc_common.outside.host_names import is_uuid
from nova_hpc_common.wire import numbers
from nova_hpc_common.wire.mounts import Mount, MountError, check_mounts, parse_mount
from nova_hpc_common.wire.version import (
    LONGEST_METADATA,
    WireDocument,
    WireError,
    show_json_value,
    write_compact_json,
)

CLUSTER_LABEL: Final = WireDocument(
    name="cluster label",
    lives="name of the cluster's server group",
    writer="nova_hpc_common.wire.cluster_wish:to_group_name",
    readers=("nova_hpc_common.wire.cluster_wish:from_group_name",),
    # Version 2 is written only for clusters with a head.
    reads=(1, 2),
    key="v",
    limit=LONGEST_METADATA,
)
CLUSTER_WISH: Final = WireDocument(
    name="cluster wish",
    lives="metadata['hpc_cluster'] of each member, and hpc_cluster_2 to _9",
    writer="nova_hpc_common.wire.cluster_wish:write_cluster_wish",
    readers=("nova_hpc_common.wire.cluster_wish:read_cluster_wish",),
    # The same versions as the label.
    reads=(1, 2),
    key="v",
    limit=9 * (LONGEST_METADATA - 2),
)

#: Beginning of the name of a cluster's server group.
PREFIX: Final = "hpc:"
#: The item of a member's metadata with the description; longer ones continue in
#: ``hpc_cluster_2`` and so on.
KEY: Final = "hpc_cluster"
#: The item with the id of the server group, which is also in the member's tag.
GROUP_KEY: Final = "hpc_cluster_group"
#: The same for a cluster that was adopted. It has a name of its own, because clients without
#: adopted clusters would take the server group for deleted.
ADOPTED_GROUP_KEY: Final = "hpc_adopted_group"
#: The item with the last turn that a member has done (:attr:`ClusterWish.turn`).
TURN_KEY: Final = "hpc_cluster_turn"
#: The verb of the turn of a cluster in which a healer replaces members.
HEAL: Final = "heal"
#: The item that marks the head, and its value.
ROLE_KEY: Final = "hpc_cluster_role"
HEAD_ROLE: Final = "head"
#: Version of the wish and of the label of a cluster that has a head.
_WITH_HEAD: Final = 2
#: Longest value of an item, and longest name of a server group, in characters.
_LONGEST: Final = 255
_MOST_ITEMS: Final = 9
#: Digits of a digest.
_DIGEST: Final = 12

#: Values for the networks of a member without named networks.
AUTO, NONE = "auto", "none"
#: Instead of a digest: members may have something or nothing, and no API shows which.
UNKNOWN: Final = "?"

#: Names of members are names of hosts: NAME-1.
NAME: Final = re.compile(r"[a-zA-Z](?:[a-zA-Z0-9-]{0,38}[a-zA-Z0-9])?", re.ASCII)
_PACKED: Final = "~"
_TURN: Final = re.compile(r"([a-z]{1,16})-[0-9]{1,10}(?:-([a-zA-Z0-9-]{1,36}))?", re.ASCII)


@attrs.frozen
class Nic:
    """One network interface of each member of a cluster.

    :ivar network: its id.
    :ivar vnic: type of the port that is made before the server; empty if Nova makes the port.
    """

    network: str
    vnic: str = ""


@attrs.frozen(slots=False)
class ClusterWish:
    """The description of a cluster: the wanted members and their options, stored in Nova.

    :ivar members: numbers of the members; NAME-3 is number 3.
    :ivar generation: grows with each change; the highest one counts.
    :ivar nics: networks of each member; if empty, *networks* decides.
    :ivar networks: ``auto`` or ``none``, if *nics* is empty.
    :ivar user_data: digest of the user data, or :data:`UNKNOWN`; empty if there is none.
    :ivar mounts: file systems that each member mounts.
    :ivar volumes: digest of the list of existing volumes, one per member; or :data:`UNKNOWN`.
    :ivar boot_gib: size of the boot volume that Nova makes, in GiB; 0 if it makes none.
    :ivar check: a member counts once its guest has checked itself.
    :ivar single: members are created one by one, even if Nova could make all at once.
    :ivar gpu_share: id of the GPU server that gives each member a slot; empty if none does.
    :ivar hosts: members have keys for each other and the cluster's host list.
    :ivar turn: an action of each member that some may not have done yet:
        ``reboot-GENERATION`` or ``rebuild-GENERATION-IMAGE``; empty if there is none. While a
        healer replaces members, ``heal-GENERATION-HEALER``.
    :ivar healed: times at which a healer began to replace a member, in seconds since 1970.
    :ivar head: id of the head's flavor; empty if the cluster has no head.
    :ivar head_image: id of the image that the head boots from, even if it is the members'; empty if
        there is no head.
    :ivar adopted: the server group existed before the cluster, and stays when the cluster goes.
        Members may have the number 0.
    """

    name: str
    members: frozenset[int]
    flavor: str
    image: str = ""
    nics: tuple[Nic, ...] = ()
    networks: str = AUTO
    key: str = ""
    zone: str = ""
    security_groups: tuple[str, ...] = ()
    user_data: str = ""
    mounts: tuple[Mount, ...] = ()
    volumes: str = ""
    boot_gib: int = 0
    config_drive: bool = False
    check: bool = False
    single: bool = False
    gpu_share: str = ""
    hosts: bool = False
    turn: str = ""
    healed: tuple[int, ...] = ()
    head: str = ""
    head_image: str = ""
    adopted: bool = False
    generation: int = 1

    @property
    def digest(self) -> str:
        """A digest that does not change with members, turn, healing or generation.

        It shows whether repeated options are the same.
        """
        alike = attrs.evolve(self, members=frozenset({1}), turn="", healed=(), generation=1)
        body = _build_wish_body(alike)
        return short_digest_of(json.dumps(body, sort_keys=True).encode())

    @functools.cached_property
    def order(self) -> tuple[int, str]:
        """Sort key of descriptions: the one with the greatest key counts, for every client
        alike.
        """
        return self.generation, short_digest_of(write_cluster_wish(self).encode())

    @property
    def turn_verb(self) -> str:
        """The command of the pending action on all members, such as ``reboot``; empty without
        one.
        """
        return self.turn.partition("-")[0]

    @property
    def turn_image(self) -> str:
        """The image that members get by the pending rebuild; empty if there is none."""
        match = _TURN.fullmatch(self.turn)
        return (match[2] or "") if match else ""


@attrs.frozen
class Label:
    """The parsed name of a cluster's server group.

    :ivar attempt: distinguishes this creation from any other one of the same cluster.
    :ivar wish: None if it did not fit; *digest* then shows whether repeated options are the same.
    :ivar head: whether the cluster is to have a head.
    """

    name: str
    members: frozenset[int]
    attempt: str
    digest: str
    wish: ClusterWish | None = None
    head: bool = False


def short_digest_of(data: bytes) -> str:
    """Return a short digest of *data*, for comparing equality."""
    return hashlib.sha256(data).hexdigest()[:_DIGEST]


def write_cluster_wish(wish: ClusterWish) -> str:
    """Format the description of a cluster as one line of JSON in ASCII."""
    head = {**CLUSTER_WISH.head(), **_version_of(wish)}
    return write_compact_json({**head, "name": wish.name, **_build_wish_body(wish)})


def _version_of(wish: ClusterWish) -> dict[str, int]:
    return {CLUSTER_WISH.key: _WITH_HEAD} if wish.head else {}


def read_cluster_wish(text: object) -> ClusterWish:
    """Read the description of a cluster.

    :raises WireError: it is broken, or of a later release.
    """
    data = CLUSTER_WISH.load(text)
    return _parse_wish_body(_check_cluster_name(data.get("name")), data)


def to_metadata(wish: ClusterWish, group: str) -> dict[str, str]:
    """Return the metadata items that store a cluster's description on a member.

    :param group: id of the server group.
    :raises WireError: the description is too long.
    """
    text = write_cluster_wish(wish)
    room = _LONGEST - 2
    parts = [text[at : at + room] for at in range(0, len(text), room)]
    if len(parts) > _MOST_ITEMS:
        raise WireError(f"the cluster's description has {len(text)} characters: name fewer things")
    parts[0] = f"{len(parts)}:{parts[0]}"
    key = group_key_of(wish.adopted)
    return {key: group} | {_metadata_key_of(at): part for at, part in enumerate(parts, 1)}


def group_key_of(adopted: bool) -> str:
    """Return the key of the metadata item that contains the id of the server group.

    :param adopted: whether the cluster was made of existing servers.
    """
    return ADOPTED_GROUP_KEY if adopted else GROUP_KEY


def from_metadata(metadata: Mapping[str, str]) -> ClusterWish:
    """Read the description of a cluster from a member's metadata.

    :raises WireError: there is none, or it cannot be read.
    """
    first = metadata.get(KEY)
    if not isinstance(first, str) or not re.match("[1-9]:", first):
        raise CLUSTER_WISH.broken("is missing or cut")
    count = int(first[0])
    rest = [metadata.get(_metadata_key_of(at), "") for at in range(2, count + 1)]
    return read_cluster_wish(first[2:] + "".join(map(str, rest)))


def to_group_name(wish: ClusterWish, attempt: str) -> str:
    """Return the name of a cluster's server group: it contains the description, or its digest.

    :param attempt: random text that makes the name unique.
    """
    head = {**CLUSTER_LABEL.head(), **_version_of(wish), "a": attempt}
    full = f"{PREFIX}{wish.name} {write_compact_json({**head, **_build_wish_body(wish)})}"
    if len(full) <= _LONGEST:
        return full
    members = numbers.format_number_ranges(wish.members)
    short = {**head, "m": members, "h": wish.digest} | ({"e": True} if wish.head else {})
    return f"{PREFIX}{wish.name} {write_compact_json(short)}"


def from_group_name(text: str) -> Label | None:
    """Read the name of a server group; None if it does not belong to a cluster.

    :raises WireError: it belongs to a cluster, but cannot be read.
    """
    if not text.startswith(PREFIX):
        return None
    name, _, rest = text.removeprefix(PREFIX).partition(" ")
    data = CLUSTER_LABEL.load(rest)
    name = _check_cluster_name(name)
    members = numbers.parse_number_ranges(data.get("m"))
    attempt = _wish_text(data, "a")
    if "h" in data:
        return Label(name, members, attempt, _wish_text(data, "h"), head="e" in data)
    wish = _parse_wish_body(name, data)
    return Label(name, members, attempt, wish.digest, wish, bool(wish.head))


def _metadata_key_of(at: int) -> str:
    return KEY if at == 1 else f"{KEY}_{at}"


def _build_wish_body(wish: ClusterWish) -> dict[str, Any]:
    """Return all fields except the name as a JSON object; default values are left out."""
    body: dict[str, Any] = {
        "m": numbers.format_number_ranges(wish.members),
        "f": _pack_id(wish.flavor),
    }
    if wish.generation != 1:
        body["g"] = wish.generation
    if wish.image:
        body["i"] = _pack_id(wish.image)
    if wish.nics:
        body["n"] = [
            _pack_id(nic.network) + (f"/{nic.vnic}" if nic.vnic else "") for nic in wish.nics
        ]
    elif wish.networks != AUTO:
        body["n"] = wish.networks
    if wish.security_groups:
        body["s"] = list(wish.security_groups)
    texts = {"k": wish.key, "z": wish.zone, "u": _join_user_data(wish), "o": wish.volumes}
    texts["r"] = wish.turn
    body |= {key: value for key, value in texts.items() if value}
    if wish.healed:
        body["q"] = list(wish.healed)
    if wish.boot_gib:
        body["b"] = wish.boot_gib
    if wish.gpu_share:
        body["x"] = _pack_id(wish.gpu_share)
    if wish.head:
        body["e"] = _pack_id(wish.head)
        if wish.head_image != wish.image:
            body["ei"] = _pack_id(wish.head_image)
    flags = {"d": wish.config_drive, "t": wish.check, "l": wish.single, "y": wish.hosts}
    flags["adopted"] = wish.adopted
    return body | {key: True for key, value in flags.items() if value}


def _parse_wish_body(name: str, data: Mapping[str, Any]) -> ClusterWish:
    """Parse the description behind the name; keys that were left out stand for their defaults.

    ``u`` holds the digest of the user data and then the mounts, separated by blanks. Only an
    adopted cluster may have a member 0.
    """
    adopted = data.get("adopted") is True
    nics = data.get("n", AUTO)
    if isinstance(nics, str):
        if nics not in (AUTO, NONE):
            raise CLUSTER_WISH.broken(f"has networks {show_json_value(nics)}")
        named: tuple[Nic, ...] = ()
    else:
        named = tuple(_parse_nic(text) for text in _wish_texts(data, "n"))
    image = _unpack_id(_wish_text(data, "i", ""))
    head = _unpack_id(_wish_text(data, "e", ""))
    user_data, *mounts = _wish_text(data, "u", "").split(" ")
    return ClusterWish(
        name=name,
        members=numbers.parse_number_ranges(data.get("m"), lowest=int(not adopted)),
        flavor=_unpack_id(_wish_text(data, "f")),
        image=image,
        nics=named,
        networks=AUTO if named else nics,
        key=_wish_text(data, "k", ""),
        zone=_wish_text(data, "z", ""),
        security_groups=tuple(_wish_texts(data, "s")),
        user_data=user_data,
        mounts=_parse_mounts(mounts),
        volumes=_wish_text(data, "o", ""),
        boot_gib=_wish_number(data, "b", 0),
        config_drive=data.get("d") is True,
        check=data.get("t") is True,
        single=data.get("l") is True,
        gpu_share=_unpack_id(_wish_text(data, "x", "")),
        hosts=data.get("y") is True,
        turn=_parse_turn(_wish_text(data, "r", "")),
        healed=_wish_times(data, "q"),
        head=head,
        head_image=(_unpack_id(_wish_text(data, "ei", "")) or image) if head else "",
        adopted=adopted,
        generation=_wish_number(data, "g", 1),
    )


def _parse_nic(text: str) -> Nic:
    network, _, vnic = text.partition("/")
    return Nic(_unpack_id(network), vnic)


def _join_user_data(wish: ClusterWish) -> str:
    return " ".join((wish.user_data, *map(str, wish.mounts)))


def _parse_mounts(texts: list[str]) -> tuple[Mount, ...]:
    try:
        mounts = tuple(map(parse_mount, texts))
        check_mounts(mounts)
    except MountError as error:
        raise CLUSTER_WISH.broken(f"has a wrong mount: {error}") from error
    return mounts


def _parse_turn(text: str) -> str:
    if text and not _TURN.fullmatch(text):
        raise CLUSTER_WISH.broken(f"has the turn {show_json_value(text)}")
    return text


def _pack_id(text: str) -> str:
    """Shorten an identifier: 22 characters for a UUID; other ids unchanged."""
    if is_uuid(text):
        return _PACKED + base64.urlsafe_b64encode(uuid.UUID(text).bytes).decode().rstrip("=")
    return _PACKED + text if text.startswith(_PACKED) else text


def _unpack_id(text: str) -> str:
    """Return an identifier as before packing: a UUID from base64, other texts as they are."""
    if not text.startswith(_PACKED) or text.startswith(_PACKED * 2):
        return text.removeprefix(_PACKED)
    try:
        return str(uuid.UUID(bytes=base64.b64decode(text[1:] + "==", b"-_", validate=True)))
    except ValueError:
        raise CLUSTER_WISH.broken(f"has the id {show_json_value(text)}") from None


def _check_cluster_name(text: object) -> str:
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise CLUSTER_WISH.broken(f"has the name {show_json_value(text)}")
    return text


def _wish_text(data: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = data.get(key, default)
    if not isinstance(value, str) or not value.isprintable() or (default is None and not value):
        raise CLUSTER_WISH.broken(f"has {key}: {show_json_value(value)}")
    return value


def _wish_texts(data: Mapping[str, Any], key: str) -> list[str]:
    value = data.get(key, [])
    good = isinstance(value, list) and all(
        isinstance(text, str) and text and text.isprintable() for text in value
    )
    if not good:
        raise CLUSTER_WISH.broken(f"has {key}: {show_json_value(value)}")
    return list(value)


def _wish_times(data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or any(type(at) is not int or at < 0 for at in value):
        raise CLUSTER_WISH.broken(f"has {key}: {show_json_value(value)}")
    return tuple(value)


def _wish_number(data: Mapping[str, Any], key: str, default: int) -> int:
    value = data.get(key, default)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise CLUSTER_WISH.broken(f"has {key}: {show_json_value(value)}")
    return value
