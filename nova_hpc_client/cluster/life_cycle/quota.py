# SPDX-License-Identifier: Apache-2.0
"""Checks that quotas leave room for all members, before the first one is requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_common.outside.text import shell_command

#: Name of the quota -> the option of ``openstack quota set``.
_OPTIONS: Final = {
    "instances": "--instances",
    "cores": "--cores",
    "ram": "--ram",
    "server_groups": "--server-groups",
    "server_group_members": "--server-group-members",
    "ports": "--ports",
}
#: The value that Nova and Neutron use for "unlimited".
UNLIMITED: Final = -1


@attrs.frozen
class Quota:
    """One limit.

    :ivar limit: -1 for unlimited.
    """

    limit: int
    used: int


@attrs.frozen
class HeadNeed:
    """The amounts that a head adds; it is not in the server group."""

    vcpus: int
    ram_mb: int
    ports: int


@attrs.frozen
class QuotaNeed:
    """The amounts that a command will add.

    :ivar members: the number of servers that it creates.
    :ivar in_group: the number of members that the server group has afterwards.
    :ivar group: whether it creates a server group.
    :ivar ports: ports of each member; 0 if unknown.
    :ivar head: None if it creates no head.
    """

    members: int
    in_group: int
    group: bool
    vcpus: int
    ram_mb: int
    ports: int
    head: HeadNeed | None = None

    def by_name(self) -> dict[str, int]:
        """The amount that is added to each quota."""
        head = self.head or HeadNeed(0, 0, 0)
        return {
            "instances": self.members + (self.head is not None),
            "cores": self.members * self.vcpus + head.vcpus,
            "ram": self.members * self.ram_mb + head.ram_mb,
            "server_groups": int(self.group),
            "server_group_members": self.in_group,
            "ports": self.members * self.ports + head.ports,
        }


@attrs.frozen
class Short:
    """A quota that is too low.

    :ivar least: the lowest limit that is enough.
    """

    name: str
    needed: int
    quota: Quota
    least: int


def find_short_quotas(
    need: QuotaNeed, quotas: Mapping[str, Quota], freed: QuotaNeed | None = None
) -> list[Short]:
    """The quotas that are too low. Nova itself checks the quotas that are missing here.

    :param freed: the amounts that the command gives back before it takes others.
    """
    short_quotas = []
    back = freed.by_name() if freed else {}
    for name, needed in need.by_name().items():
        quota = quotas.get(name)
        if quota is None or quota.limit == UNLIMITED or not needed:
            continue
        # This quota applies to each group separately, and *in_group* counts all its members.
        used = 0 if name == "server_group_members" else quota.used - back.get(name, 0)
        if used + needed > quota.limit:
            short_quotas.append(Short(name, needed, quota, used + needed))
    return short_quotas


def format_short_quotas(short_quotas: Sequence[Short], project: str) -> str:
    """A line for each quota that is too low, and the command with which an operator raises them."""
    lines = []
    for quota in short_quotas:
        text = f"quota {quota.name}: {quota.needed} more needed"
        if quota.name == "server_group_members":
            text = f"quota {quota.name}: {quota.needed} in one server group needed"
        else:
            text += f", {quota.quota.used} used"
        lines.append(f"{text}, the limit is {quota.quota.limit}")
    options = [word for quota in short_quotas for word in (_OPTIONS[quota.name], str(quota.least))]
    command = shell_command("openstack", "quota", "set", *options, project)
    lines.append(f"an operator can change it: {command}")
    return "\n".join(lines)


def quotas_from_limits(absolute: Mapping[str, int]) -> dict[str, Quota]:
    """Nova's quotas from the absolute limits of its ``GET /limits``."""
    pairs = {
        "instances": ("maxTotalInstances", "totalInstancesUsed"),
        "cores": ("maxTotalCores", "totalCoresUsed"),
        "ram": ("maxTotalRAMSize", "totalRAMUsed"),
        "server_groups": ("maxServerGroups", "totalServerGroupsUsed"),
        "server_group_members": ("maxServerGroupMembers", ""),
    }
    return {
        name: Quota(int(absolute[most]), int(absolute.get(used, 0)))
        for name, (most, used) in pairs.items()
        if most in absolute
    }
