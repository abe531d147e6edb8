# SPDX-License-Identifier: Apache-2.0
"""The fit of servers of one group: whether they come together, where, and what is missing. Pure.

For ``nova-hpc explain``: the planner's answer to what is free, less what is kept for other groups.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from nova_hpc.cluster.group_domain.domain_choice import FabricSeat, Ground
from nova_hpc.cluster.group_domain.model import GroupDomain
from nova_hpc.cluster.plan import Gang, GangPlan, GangPolicy, GangRefusal, plan_gang
from nova_hpc.fabric.model import FabricLevel
from nova_hpc_tools.fabric import plan_document
from nova_hpc_tools.snapshot.group_fleet import GroupLine


@attrs.frozen
class DomainFit:
    """One domain of the wanted level."""

    domain: GroupDomain
    #: Hosts on which a member fits.
    hosts: int
    #: Members that fit on them.
    fit: int
    #: Of these places, those that are kept for other groups.
    kept: int
    #: Members that have no place there.
    missing: int


@attrs.frozen
class GroupFit:
    """The answer for members of one server group."""

    gang: Gang
    answer: GangPlan | GangRefusal
    #: Those with the fewest members missing first.
    rooms: tuple[DomainFit, ...]
    #: Where the group is already; None: nowhere.
    decided: GroupDomain | None = None
    #: Whether it is known what is kept for other groups; a snapshot does not say it.
    kept_known: bool = True

    @property
    def fits(self) -> bool:
        """Whether all members come together as the flavor wants it."""
        return isinstance(self.answer, GangPlan)

    def build(self) -> dict[str, Any]:
        """The answer as plain objects."""
        return {
            **plan_document.build_plan_document(self.gang, self.answer),
            "decided": None if self.decided is None else str(self.decided),
            "kept_known": self.kept_known,
            "rooms": [
                {
                    "level": room.domain.level,
                    "domain": room.domain.name,
                    "hosts": room.hosts,
                    "fit": room.fit,
                    "kept": room.kept,
                    "missing": room.missing,
                }
                for room in self.rooms
            ],
        }


def assess_group_fit(
    seats: Iterable[FabricSeat],
    level: FabricLevel,
    policy: GangPolicy,
    members: int,
    lines: Sequence[GroupLine] | None,
    group: str = "",
) -> GroupFit:
    """Whether *members* servers would come together.

    :param seats: the hosts, and how many such servers fit on each.
    :param lines: what Placement holds of every group; None: unknown.
    :param group: UUID of their server group, if there is one.
    """
    ground = Ground(tuple(seats))
    kept: collections.Counter[GroupDomain] = collections.Counter()
    decided: GroupDomain | None = None
    for line in lines or ():
        domain = GroupDomain(line.level, line.domain)
        if line.group != group:
            kept[domain] += max(0, line.announced - line.members)
        elif line.state == "decided":
            decided = domain
    cut = {domain.uuid: max(0, ground.free_in(domain) - number) for domain, number in kept.items()}
    gang = Gang(
        members=members,
        level=level,
        policy=policy,
        group=group,
        within=ground.named(decided) if decided is not None else None,
    )
    rooms = []
    free = ground.free(level)
    for domain, fit in free.items():
        if decided in free and domain != decided:
            continue
        left = max(0, fit - kept[domain])
        rooms.append(
            DomainFit(
                domain=domain,
                hosts=ground.hosts.get(domain.uuid, 0),
                fit=fit,
                kept=min(fit, kept[domain]),
                missing=max(0, members - left),
            )
        )
    return GroupFit(
        gang=gang,
        answer=plan_gang(ground.fabric, ground.capacity(cut), gang),
        rooms=tuple(sorted(rooms, key=lambda room: (room.missing, room.fit, room.domain))),
        decided=decided,
        kept_known=lines is not None,
    )
