# SPDX-License-Identifier: Apache-2.0
"""The input of the planner, and its answers. Data only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc.fabric.model import FabricLevel, FabricPlace

#: The word for a gang that shares no domain, in place of a level.
ANYWHERE: Final = "anywhere"
#: The word for a gang on one host.
HOST: Final = "host"

#: More members than any gang has.
MOST_MEMBERS: Final = 1_000_000


class GangPolicy(enum.StrEnum):
    """The rule if no domain of the requested level holds the gang: refuse, or use a wider one."""

    #: The gang is refused.
    REQUIRED = "required"
    #: The next larger domain takes it, and at last any hosts.
    PREFERRED = "preferred"


class GangOrder(enum.StrEnum):
    """How a gang's members are distributed over hosts of the chosen leaves: packed or spread."""

    #: On the fewest hosts.
    PACK = "pack"
    #: As evenly as possible, on the most hosts.
    SPREAD = "spread"


def _validate_count(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    least = 0 if attribute.name == "rails" else 1
    if value is None and attribute.default is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_MEMBERS:
        raise ValueError(
            f"{attribute.name} is {value!r}; it must be a number from {least} to {MOST_MEMBERS}"
        )


@attrs.frozen
class Gang:
    """A set of servers that are placed together and near each other, all or none.

    :raises ValueError: names the invalid field.
    """

    #: Number of members to place now.
    members: int = attrs.field(validator=_validate_count)
    #: The largest domain that they may be spread over.
    level: FabricLevel = attrs.field(
        default=FabricLevel.LEAF, validator=attrs.validators.instance_of(FabricLevel)
    )
    policy: GangPolicy = attrs.field(default=GangPolicy.REQUIRED, converter=GangPolicy)
    #: Maximum on one host; None for as many as fit.
    max_per_host: int | None = attrs.field(default=None, validator=_validate_count)
    order: GangOrder = attrs.field(default=GangOrder.PACK, converter=GangOrder)
    #: Hosts with fewer rails do not count.
    rails: int = attrs.field(default=0, validator=_validate_count)
    #: Only hosts of this domain count: a gang that has a domain stays in it.
    within: tuple[FabricLevel, str] | None = None
    #: Host -> its present members, which no capacity counts any more.
    placed: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    #: UUID of the server group, which decides the order of equal domains; "" orders them by name.
    group: str = ""


@attrs.frozen
class GangPlan:
    """The hosts for all members of a gang, and the domain that contains them."""

    #: Host -> number of members, in the order of the hosts' names.
    hosts: Mapping[str, int] = attrs.field(hash=False)
    #: The tightest level that all of them share: a word of ``hpc:fabric``, ``host`` or
    #: ``anywhere``.
    level: str
    #: The domain of that level; the host's name; "" if they share none.
    domain: str
    #: All domains that hold the whole gang, the tightest first.
    around: tuple[tuple[FabricLevel, str], ...]
    #: Leaf -> number of members, in the order of the names. Hosts whose leaf is unknown are in
    #: none, because a host may have the name of a leaf.
    leaves: Mapping[str, int] = attrs.field(hash=False)
    #: Whether the gang got the requested level.
    reached: bool
    #: Whether no other plan is better. False if the search was cut short, so that only the level,
    #: the number of leaves and the choice of the domain are proven.
    proven: bool
    #: One sentence for operators.
    why: str

    def enclosing(self, level: FabricLevel) -> tuple[FabricLevel, str] | None:
        """Return level and name of the domain in which all members surely share one of *level*.

        None if unknown. See :meth:`nova_hpc.fabric.model.FabricPlace.enclosing`.
        """
        shared: dict[str, Any] = {around_level.word: name for around_level, name in self.around}
        return FabricPlace(host="?", **shared).enclosing(level)


@attrs.frozen
class GangMiss:
    """The domain that comes nearest to holding the gang, with the number of members that fit."""

    level: str
    #: "" for all hosts together.
    domain: str
    holds: int


@attrs.frozen
class GangRefusal:
    """The planner's answer if it finds no hosts for the gang: the reason and the nearest misses."""

    members: int
    #: At the requested level; None if the map has no such domain with a free host.
    nearest: GangMiss | None
    #: The tightest domain that would hold the gang; None if not even all hosts together do.
    instead: GangMiss | None
    #: Number of members that fit on all hosts together.
    total: int
    #: One sentence for operators: the nearest miss, and a possible remedy.
    reason: str
