# SPDX-License-Identifier: Apache-2.0
"""Facts about a member in its server's metadata and flavor, as far as they can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_common import group_keys
from nova_hpc_common.wire import cluster_wish, position
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_guest import host_list
from nova_hpc_guest.host_list import PublicKeys, WrongHostListError


def read_member_keys(metadata: Mapping[str, Any]) -> PublicKeys | None:
    """Return the public keys that a member was given; None if there are none, or if unreadable."""
    with contextlib.suppress(WrongHostListError):
        return host_list.read_public_keys(metadata.get(host_list.KEYS_KEY))
    return None


def read_member_hosts(metadata: Mapping[str, Any]) -> str:
    """Return the text of a member's host list; "" if there is none, or if a part is missing."""
    with contextlib.suppress(WrongHostListError):
        return host_list.from_items(metadata) or ""
    return ""


def shared_mib_of(flavor: Mapping[str, Any]) -> int:
    """Return the MiB of shared memory that a flavor requests; 0 if none."""
    specs = flavor.get("extra_specs") or {}
    return group_keys.parse_shared_mib(str(specs.get(group_keys.SHARED_MEMORY) or "")) or 0


def bound_level_of(flavor: Mapping[str, Any]) -> str:
    """Return the level of the fabric to which a flavor binds a cluster; "" if none."""
    specs = flavor.get("extra_specs") or {}
    level = str(specs.get(group_keys.FABRIC) or "")
    bound = specs.get(group_keys.FABRIC_POLICY, "required") == "required"
    return level if bound and level in position.LEVELS else ""


def is_head(metadata: Mapping[str, Any], name: str, wish: ClusterWish | None) -> bool:
    """Whether a server of a cluster is its head.

    Either its metadata or its name is enough, because users change both. A head that counted as a
    member would be a surplus one.
    """
    named = wish is not None and bool(wish.head) and name == wishes.head_name(wish.name)
    return named or metadata.get(cluster_wish.ROLE_KEY) == cluster_wish.HEAD_ROLE
