# SPDX-License-Identifier: Apache-2.0
"""The fit of servers of one group: whether they fit together, in which domain, or the lack. Pure.

``nova-hpc explain`` shows it. The planner gets the free places, less those kept for other groups.
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
    """The free and reserved places in one domain of the requested level."""

    domain: GroupDomain
    #: Hosts on which a member fits.
    hosts: int
    #: Members that fit on these hosts.
    fit: int
    #: Places among *fit* that are kept for other groups.
    kept: int
    #: Members that have no place in the domain.
    missing: int


@attrs.frozen
class GroupFit:
    """The answer for members of one server group: a plan, or the reason why there is none."""

    gang: Gang
    answer: GangPlan | GangRefusal
    #: Domains with the fewest missing members first.
    rooms: tuple[DomainFit, ...]
    #: The domain that the group has already; None if it has none.
    decided: GroupDomain | None = None
    #: Whether the places kept for other groups are known; a snapshot does not contain them.
    kept_known: bool = True

    @property
    def fits(self) -> bool:
        """Whether all members fit together as the flavor requires."""
        return isinstance(self.answer, GangPlan)

    def build(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
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
    """Assess whether *members* servers would fit together.

    A group that has announced more members than it has keeps places for them in its domain. The
    planner gets the free places less those of all other groups. It plans only inside the domain
    that the assessed group has already, if any.

    :param seats: the hosts, and the number of such servers that fit on each.
    :param lines: Placement's records of every group; None if unknown.
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
