# SPDX-License-Identifier: Apache-2.0
"""A server group, and the cluster label in its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import Label
from nova_hpc_common.wire.version import WireError


@attrs.frozen
class ClusterGroup:
    """A server group.

    :ivar label: None if it does not belong to a cluster, or if its name cannot be read.
    :ivar problem: the reason why its name cannot be read.
    """

    id: str
    name: str
    policy: str = ""
    rules: Mapping[str, Any] = attrs.Factory(dict)
    members: tuple[str, ...] = ()
    label: Label | None = None
    problem: str = ""


def read_group(group: Mapping[str, Any]) -> ClusterGroup:
    """Parse a server group's record of Nova's API, with the cluster label in its name."""
    label, problem = None, ""
    try:
        label = cluster_wish.from_group_name(str(group["name"]))
    except WireError as error:
        problem = str(error)
    return ClusterGroup(
        id=str(group["id"]),
        name=str(group["name"]),
        policy=str(group.get("policy") or ""),
        rules=dict(group.get("rules") or {}),
        members=tuple(group.get("members") or ()),
        label=label,
        problem=problem,
    )
