# SPDX-License-Identifier: Apache-2.0
"""The devices of a server and how close they are, for its owner.

It contains roles and numbers, no address and no host. It is for information: no decision
depends on it, because the owner of the server may change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc_common.level import AffinityPolicy, Level
from nova_hpc_common.wire.version import (
    LONGEST_METADATA,
    WireDocument,
    WireError,
    show_json_value,
    write_compact_json,
)

SERVER_DEVICES: Final = WireDocument(
    name="server devices",
    lives="metadata['hpc_devices'] of the server",
    writer="nova_hpc_common.wire.server_devices:ServerDevices.dumps",
    readers=("nova_hpc_common.wire.server_devices:read_server_devices",),
    key="v",
    limit=LONGEST_METADATA,
)

#: The item of the server's metadata.
KEY: Final = "hpc_devices"
#: The role of a device without one.
OTHER: Final = "other"
_LONGEST_ROLE: Final = 64
_MOST: Final = 4096


@attrs.frozen
class ServerDevices:
    """The summary of a server's devices that its owner reads in the metadata.

    :ivar asked: the level in the flavor, and whether it must be reached; None
        if unknown.
    :ivar roles: role -> number of devices.
    :ivar groups: number of groups of each kind, and role -> number of devices in
        one such group; () if unknown.
    """

    asked: Level | None = None
    policy: AffinityPolicy | None = None
    reached: Level | None = None
    roles: Mapping[str, int] = attrs.Factory(dict)
    groups: tuple[tuple[int, Mapping[str, int]], ...] = ()

    def dumps(self) -> str:
        """Format the summary as text for the server's metadata; without groups if too long."""
        body: dict[str, Any] = SERVER_DEVICES.head()
        if self.asked is not None:
            body["asked"] = self.asked.word
        if self.policy is not None:
            body["policy"] = self.policy.value
        if self.reached is not None:
            body["reached"] = self.reached.word
        roles = {"roles": dict(self.roles)} if self.roles else {}
        groups = {"groups": [[count, dict(kind)] for count, kind in self.groups]}
        for more in ({**roles, **groups} if self.groups else roles, roles):
            text = write_compact_json({**body, **more})
            if SERVER_DEVICES.limit is None or len(text) <= SERVER_DEVICES.limit:
                return text
        return write_compact_json(body)


def count_device_groups(roles: Iterable[tuple[str, int | None]]) -> dict[str, Any]:
    """Return the fields of :class:`ServerDevices` that describe its devices.

    :param roles: for each device its role and the number of its group, None if it is in none.
    """
    total: Counter[str] = Counter()
    members: dict[int, Counter[str]] = {}
    for role, group in roles:
        total[role] += 1
        if group is not None:
            members.setdefault(group, Counter())[role] += 1
    kinds = Counter(tuple(sorted(role_counts.items())) for role_counts in members.values())
    complete = sum(sum(role_counts.values()) for role_counts in members.values()) == total.total()
    return {
        "roles": dict(sorted(total.items())),
        "groups": tuple((count, dict(kind)) for kind, count in sorted(kinds.items()))
        if complete
        else (),
    }


def read_server_devices(text: object) -> ServerDevices:
    """Parse the summary of a server's devices.

    :raises WireError: it is broken, or of a later release.
    """
    data = SERVER_DEVICES.load(text)
    try:
        asked, policy, reached = data.get("asked"), data.get("policy"), data.get("reached")
        return ServerDevices(
            asked=None if asked is None else Level.from_word(asked),
            policy=None if policy is None else AffinityPolicy(policy),
            reached=None if reached is None else Level.from_word(reached),
            roles=_read_role_counts(data.get("roles", {})),
            groups=tuple(
                _read_device_group(group) for group in _check_list(data.get("groups", []))
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, WireError):
            raise
        raise SERVER_DEVICES.broken(f"makes no sense: {error}") from error


def server_devices_of_metadata(metadata: Mapping[str, str]) -> ServerDevices | None:
    """Parse the devices in a server's metadata; None if it contains none that can be read."""
    try:
        return read_server_devices(metadata[KEY]) if KEY in metadata else None
    except WireError:
        return None


def _read_role_counts(value: object) -> dict[str, int]:
    good = isinstance(value, dict) and all(
        0 < len(role) <= _LONGEST_ROLE and role.isprintable() and _is_count(count)
        for role, count in value.items()
    )
    if not good:
        raise SERVER_DEVICES.broken(f"has roles: {show_json_value(value)}")
    assert isinstance(value, dict)
    return dict(value)


def _read_device_group(value: object) -> tuple[int, Mapping[str, int]]:
    if not isinstance(value, list) or len(value) != 2 or not _is_count(value[0]):
        raise SERVER_DEVICES.broken(f"has a group: {show_json_value(value)}")
    return value[0], _read_role_counts(value[1])


def _check_list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise SERVER_DEVICES.broken(f"has groups: {show_json_value(value)}")
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= _MOST
