"""Asks choose() once for all nodes that are alike."""

from __future__ import annotations

import attrs

from nova_hpc.cloud import snapshot
from nova_hpc.cloud.snapshot import Flavor, Node
from nova_hpc.placement import between_hosts
from nova_hpc.placement.choose import choose
from nova_hpc.placement.model import Answer, DeviceSet, Host, Pool, Request
from nova_hpc.placement.profile import Profile


class Chooser:
    """Remembers answers for the time of one report.

    Nodes of one kind with the same free devices have the same answer; what
    tells them apart are their names and the UUIDs of their providers, which
    are therefore replaced by addresses, as the scheduler does.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._known: dict[tuple[Request, Host], Answer] = {}

    def rank(self, request: Request, devices: DeviceSet) -> tuple[int, ...]:
        """The place of the node that gives *devices*, as HpcPackingWeigher ranks it."""
        coarse = between_hosts.grain(self._profile)
        return between_hosts.rank(devices.score, request.level, coarse)

    def choose(self, request: Request, flavor: Flavor, node: Node) -> Answer:
        """The best devices of *node* for *request*, by their providers."""
        host = snapshot.engine_host(node, flavor.engine_wants())
        ids = {pool.id: pool.name for pool in host.pools}
        if len(set(ids.values())) < len(ids):
            return choose(request, host, profile=self._profile)
        plain = attrs.evolve(
            host,
            name="",
            pools=tuple(_named(pool) for pool in host.pools),
            nvlink=tuple(frozenset(ids[each] for each in one) for one in host.nvlink),
        )
        key = (request, plain)
        if key not in self._known:
            self._known[key] = choose(request, plain, profile=self._profile)
        answer = self._known[key]
        back = {name: provider for provider, name in ids.items()}
        return attrs.evolve(
            answer,
            sets=tuple(
                attrs.evolve(
                    one,
                    picks=tuple(attrs.evolve(pick, pool=back[pick.pool]) for pick in one.picks),
                )
                for one in answer.sets
            ),
        )


def _named(pool: Pool) -> Pool:
    return attrs.evolve(pool, id=pool.name)
