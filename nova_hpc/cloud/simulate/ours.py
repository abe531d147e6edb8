# SPDX-License-Identifier: Apache-2.0
"""Our own policy: what the scheduler does, by the functions that it calls.

Every host that fits is asked by :func:`nova_hpc.placement.choose.choose`, with
the workload's typical shapes as the profile. Answers are kept by what can
change them: the layout, which GPUs are free, what is asked, and for how many
servers of each shape CPUs and memory suffice before and after. The amounts
themselves, of which there are many more, cannot change an answer.

CPUs and memory are counted for a node as a whole, as the traces have them. The
engine counts them by NUMA node; so a host with several is described as having
all on each, and a server (or a shape of the profile) as taking its part from
each, which gives the same limits for servers.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from typing import Final

import attrs
import numpy as np

from nova_hpc.cloud.simulate.cluster import Bools, Cluster, Floats, Ints
from nova_hpc.cloud.simulate.model import Layout, Shape, Typical
from nova_hpc.cloud.simulate.policy import Policy, Scores, best
from nova_hpc.placement import between_hosts, mix, model
from nova_hpc.placement.choose import choose
from nova_hpc.placement.profile import DEFAULT, HostProfile, Profile
from nova_hpc.placement.profile import Shape as Sold
from nova_hpc.topology.level import Level, Location

_ROLE: Final = "gpu"
_WANT: Final = "gpu"
#: Weights of the profile are frequencies in these parts.
PARTS: Final = 10_000
#: Memory is counted in pages of this size, so that none is rounded away.
_PAGE_KIB: Final = 1024
#: One more than the first parts of a rank can be, so that one number has them all.
_MOST: Final = (16, 16, 4096, 16, 16, 256, 256)
#: A host that the engine refuses.
_NEVER: Final = -1e18


class Weights(enum.Enum):
    """What a scheduler knows of its users."""

    #: ``[hpc]flavor_weights`` says how often each flavor is asked for.
    FREQUENT = "frequent"
    #: It says nothing, so every flavor counts once.
    EQUAL = "equal"
    #: The flavors cannot be read, and the engine's own shapes are taken.
    UNKNOWN = "unknown"


def profile_of(
    workload: tuple[Typical, ...], cells: int, weights: Weights = Weights.FREQUENT
) -> Profile:
    """The profile that a scheduler makes of flavors that are the workload's typical shapes.

    By the function of the scheduler, :func:`nova_hpc.placement.mix.profile`.

    :param cells: NUMA nodes of the hosts, on each of which a server takes its part.
    """
    if weights is Weights.UNKNOWN:
        return DEFAULT
    made = mix.profile(
        Sold(
            counts={_ROLE: one.shape.group_size},
            groups=one.shape.groups,
            level=one.shape.level,
            weight=1 if weights is Weights.EQUAL else max(1, round(one.frequency * PARTS)),
            cpus=one.shape.cpu_milli,
            memory_kib=one.shape.memory_mib * _PAGE_KIB,
            page_kib=_PAGE_KIB,
        )
        for one in workload
        if one.shape.gpus
    )
    return Profile(
        tuple(
            attrs.evolve(each, cpus=each.cpus * cells, memory_kib=each.memory_kib * cells)
            for each in made.shapes
        )
    )


@attrs.frozen
class _Verdict:
    score: float  # the best is the highest
    gpus: tuple[int, ...] = ()


class Ours(Policy):
    """HpcTopologyFilter and HpcPackingWeigher.

    :param by_damage: rank hosts as the weigher does, where the damage comes first
        among those that reach the level; otherwise by the whole score, in which the
        level, the distance and the spread do. Of equal hosts the first is taken.
    :param weights: what the scheduler knows of what is asked for.
    """

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        workload: tuple[Typical, ...],
        by_damage: bool = True,
        weights: Weights = Weights.FREQUENT,
    ) -> None:
        super().__init__(cluster, rng, workload)
        self.by_damage = by_damage
        self.cells = {
            machine.layout: max(1, len({place.numa for place in machine.layout}))
            for machine in cluster.machines
        }
        self.profiles = {
            count: profile_of(workload, count, weights) for count in set(self.cells.values())
        }
        shapes = profile_of(workload, 1, weights).shapes
        # A need of nothing is never what limits.
        self.cpus: Ints = np.array([max(one.cpus, 1) for one in shapes], dtype=np.int64)
        self.memory: Ints = np.array(
            [max(one.memory_kib // _PAGE_KIB, 1) for one in shapes], dtype=np.int64
        )
        self.groups: Ints = np.array([one.groups for one in shapes], dtype=np.int64)
        self.sizes: Ints = np.array([sum(one.counts.values()) for one in shapes], dtype=np.int64)
        self.known: dict[object, _Verdict] = {}
        self.asked = 0
        self.scores = Scores(cluster, self._compute)

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        return best(self.scores.of(shape, fits), fits)

    def gpus(self, node: int, shape: Shape) -> tuple[int, ...]:
        """Pick them."""
        if not shape.gpus:
            return ()
        return self._verdicts(shape, np.array([node]))[0].gpus

    def _compute(self, shape: Shape, nodes: Ints) -> Floats:
        return np.array([one.score for one in self._verdicts(shape, nodes)])

    def _verdicts(self, shape: Shape, nodes: Ints) -> list[_Verdict]:
        before = self._limits(nodes, 0, 0, 0)
        after = self._limits(nodes, shape.gpus, shape.cpu_milli, shape.memory_mib)
        result = []
        for index, node in enumerate(nodes.tolist()):
            layout = self.cluster.machines[node].layout
            free = self.cluster.free(node)
            # Without a layout one GPU is like another.
            where = (layout, free if layout else len(free))
            asked = (shape.gpus, shape.level, shape.group_size)
            key = (where, asked, before[index].tobytes(), after[index].tobytes())
            verdict = self.known.get(key)
            if verdict is None:
                verdict = self.known[key] = self._ask(node, shape, layout, free)
                self.asked += 1
            if not layout:
                verdict = attrs.evolve(verdict, gpus=free[: shape.gpus])
            result.append(verdict)
        return result

    def _limits(self, nodes: Ints, gpus: int, cpu_milli: int, memory_mib: int) -> Ints:
        """For how many servers, and groups, of each shape everything suffices.

        What CPUs and memory would allow beyond the number of GPUs limits nothing.
        """
        whole = (self.cluster.whole[nodes] - gpus)[:, None]
        servers: Ints = whole // (self.sizes * self.groups)
        groups: Ints = whole // self.sizes
        cells = np.array([self.cells[self.cluster.machines[n].layout] for n in nodes.tolist()])
        for free, needs in (
            (self.cluster.cpu[nodes] - cpu_milli, self.cpus),
            (self.cluster.memory[nodes] - memory_mib, self.memory),
        ):
            each = -(-needs * cells[:, None] // self.groups)
            servers = np.minimum(servers, free[:, None] // needs)
            groups = np.minimum(groups, free[:, None] // each)
        limits: Ints = np.concatenate([servers, groups], axis=1).astype(np.int8)
        return limits

    def _ask(self, node: int, shape: Shape, layout: Layout, free: tuple[int, ...]) -> _Verdict:
        cells = self.cells[layout]
        cpu, memory = int(self.cluster.cpu[node]), int(self.cluster.memory[node])
        host = _host(layout, free, cells, cpu, memory)
        profile = self.profiles[cells]
        if not shape.gpus:
            rest = _host(layout, free, cells, cpu - shape.cpu_milli, memory - shape.memory_mib)
            damage = _usable(host, profile) - _usable(rest, profile)
            return _Verdict(-float(-(-damage // between_hosts.grain(profile))))
        answer = choose(_request(shape, cells), host, 1, profile)
        if not answer.sets and shape.groups > 1:
            # The engine spreads groups over the cells; the trace does not ask for it.
            answer = choose(_request(shape, 0), host, 1, profile)
        if not answer.sets:
            return _Verdict(_NEVER)
        chosen = answer.sets[0]
        level, misses, distance, spread, damage, _, left, _, spare = chosen.score
        if self.by_damage:
            rank = between_hosts.rank(chosen.score, shape.level, between_hosts.grain(profile))
            score = 0.0
            for part, most in zip(rank, _MOST, strict=False):
                score = score * most - part
        else:
            place = ((level * 8 + misses) * 8 + distance) * 64 + spread
            score = -float(place * 2**40 + damage * 2**10 + left * 32 + spare)
        return _Verdict(score, tuple(sorted(int(pick.pool) for pick in chosen.picks)))


def _host(layout: Layout, free: tuple[int, ...], cells: int, cpu: int, memory: int) -> model.Host:
    nodes = sorted({place.numa or 0 for place in layout}) or [0]
    return model.Host(
        name="host",
        pools=tuple(
            model.Pool(
                id=str(number),
                name=f"{number:04}",
                location=layout[number] if layout else Location(numa=0),
                free=1,
                serves=frozenset({_WANT}),
                role=_ROLE,
            )
            for number in free
        ),
        nodes=tuple(
            model.HostNode(number, number, cpu, {_PAGE_KIB: memory}) for number in nodes[:cells]
        ),
    )


def _request(shape: Shape, cells: int) -> model.Request:
    return model.Request(
        wants=(model.Want(_WANT, _WANT, shape.gpus),),
        groups=(model.Group({_WANT: shape.group_size}),) * shape.groups,
        level=shape.level,
        policy=model.Policy.REQUIRED,
        cells=tuple(
            model.Cell(number, shape.cpu_milli, shape.memory_mib * _PAGE_KIB, _PAGE_KIB)
            for number in range(cells)
        ),
    )


def _usable(host: model.Host, profile: Profile) -> int:
    """How many of the free GPUs the shapes can use; weighted."""
    host_profile = HostProfile.of(profile, frozenset({_ROLE}), frozenset({_ROLE}))
    opened = host_profile.open([len(host.pools)], host_profile.limits_on_host(host.nodes, ()))
    total = 0
    for level in Level:
        domains = Counter(pool.location.domain(level) for pool in host.pools)
        total += sum(
            host_profile.usable(level, [count], opened)
            for domain, count in domains.items()
            if domain is not None
        )
    return total
