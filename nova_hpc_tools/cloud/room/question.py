# SPDX-License-Identifier: Apache-2.0
"""A request for room: servers of one flavor, in one domain of the fabric or anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.cluster.plan import Gang, GangPlan, GangPolicy, GangRefusal, plan_gang
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc.placement.flavor import read_fabric
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Request
from nova_hpc_common.level import AffinityPolicy
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import find_flavor
from nova_hpc_tools.snapshot import Flavor, Snapshot, SnapshotError
from nova_hpc_tools.snapshot.direct_ports import DirectPorts

#: The domain of all hosts, if a request needs none.
_EVERYWHERE = (FabricLevel.CORE, "")


@attrs.frozen
class RoomQuestion:
    """The servers that need room: their flavor and number, and the level that they share."""

    flavor: Flavor
    request: Request
    members: int
    fabric: FabricMap
    #: None if they may be anywhere.
    level: FabricLevel | None = None

    @classmethod
    def of(
        cls,
        cloud: Snapshot,
        name: str,
        fabric: FabricMap,
        members: int = 1,
        level: FabricLevel | None = None,
        image: str | None = None,
        ports: Iterable[DirectPorts] = (),
    ) -> RoomQuestion:
        """Build the question for a flavor of the cloud.

        :param level: None for the level that the flavor itself requires.
        :raises SnapshotError: the flavor does not exist, or no server can be created from it.
        """
        flavor = snapshot.flavor_with_ports(cloud, find_flavor(cloud, name, image), ports)
        try:
            request = snapshot.request_of_flavor(flavor, cloud.hosts)
            wish = read_fabric(flavor.extra_specs)
        except FlavorError as error:
            raise SnapshotError(f"flavor {flavor.name}: {error}") from error
        if level is None and wish is not None and wish.policy is AffinityPolicy.REQUIRED:
            level = FabricLevel.from_word(wish.level)
        if level is not None and not any(place.enclosing(level) for place in fabric.places):
            raise SnapshotError(
                f"no host has a known {level.noun(1)}: give --map FILE, or write a map into Nova "
                "with nova-hpc fabric sync"
            )
        return cls(flavor, request, members, fabric, level)

    @property
    def text(self) -> str:
        """The request for people, such as ``4 x hpc.gpu8 on one leaf``."""
        where = f" in one {self.level.noun(1)}" if self.level is not None else ""
        if self.level is FabricLevel.LEAF:
            where = " on one leaf"
        return f"{self.members} x {self.flavor.name}{where}"

    def domain_of(self, host: str) -> tuple[FabricLevel, str] | None:
        """Return the domain in which a host can take members; None if it can take none."""
        return _EVERYWHERE if self.level is None else self.place_of(host).enclosing(self.level)

    def place_of(self, host: str) -> FabricPlace:
        """Return the domains of a host; none if the map lacks the host."""
        return self.fabric.place(host) or FabricPlace(host=host)

    def plan(self, fit: Mapping[str, int]) -> GangPlan | GangRefusal:
        """Plan the hosts of the members, as ``nova-hpc explain`` does.

        :param fit: host -> the number of members that fit on it.
        """
        gang = Gang(
            members=self.members,
            level=FabricLevel.LEAF if self.level is None else self.level,
            policy=GangPolicy.PREFERRED if self.level is None else GangPolicy.REQUIRED,
        )
        return plan_gang(self.fabric, fit, gang)
