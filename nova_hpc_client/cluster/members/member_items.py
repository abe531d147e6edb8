# SPDX-License-Identifier: Apache-2.0
"""Facts about a member in its server's metadata and flavor, as far as they can be read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Final

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_common.wire import cluster_wish, position
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_guest import host_list
from nova_hpc_guest.host_list import PublicKeys, WrongHostListError

#: Even number of MiB of ``hpc:shared_memory``, as the node accepts it but for its bounds.
_SHARED_MIB: Final = re.compile(r"(?:[1-9][0-9]{0,2})?[02468]", re.ASCII)


def read_member_keys(metadata: Mapping[str, Any]) -> PublicKeys | None:
    """The public keys that a member was given; None if there are none, or if unreadable."""
    with contextlib.suppress(WrongHostListError):
        return host_list.read_public_keys(metadata.get(host_list.KEYS_KEY))
    return None


def read_member_hosts(metadata: Mapping[str, Any]) -> str:
    """The text of a member's host list; empty if there is none, or if a part is missing."""
    with contextlib.suppress(WrongHostListError):
        return host_list.from_items(metadata) or ""
    return ""


def shared_mib_of(flavor: Mapping[str, Any]) -> int:
    """MiB of shared memory that a flavor requests; 0 if none."""
    value = str((flavor.get("extra_specs") or {}).get("hpc:shared_memory") or "")
    # A node refuses a flavor with another value.
    return int(value) if _SHARED_MIB.fullmatch(value) else 0


def bound_level_of(flavor: Mapping[str, Any]) -> str:
    """The level of the fabric to which a flavor binds a cluster; empty if none."""
    specs = flavor.get("extra_specs") or {}
    level = str(specs.get("hpc:fabric") or "")
    bound = specs.get("hpc:fabric_policy", "required") == "required"
    return level if bound and level in position.LEVELS else ""


def is_head(metadata: Mapping[str, Any], name: str, wish: ClusterWish | None) -> bool:
    """Whether a server of a cluster is its head.

    Either its metadata or its name is enough, because users change both. A head that counted as a
    member would be a surplus one.
    """
    named = wish is not None and bool(wish.head) and name == wishes.head_name(wish.name)
    return named or metadata.get(cluster_wish.ROLE_KEY) == cluster_wish.HEAD_ROLE
