# SPDX-License-Identifier: Apache-2.0
"""Our own policy: the simulation calls the same functions as the scheduler.

:func:`nova_hpc.placement.choose.choose_device_sets` chooses the devices on every host that fits.
The profile is the workload's typical shapes, weighted as a scheduler weighs flavors.
Nova's own weighers decide between equal hosts, and on requests without whole GPUs, because the
engine gives only whole devices.
Answers are kept by their inputs: the layout, the free GPUs, the request, and the number of servers
of each shape for which CPUs and memory suffice before and after. The amounts themselves have many
more values and cannot change an answer.

CPUs and memory are counted for a node as a whole, as in the traces. The
engine counts them by NUMA node. So a host with several NUMA nodes is described with
all CPUs and memory on each. A server (or a shape of the profile) takes its part from
each node. The limits for servers are the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

import attrs
import numpy as np

from nova_hpc.placement import between_hosts, model, shape_mix
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.profile import FlavorShape as Sold
from nova_hpc.placement.profile import Profile
from nova_hpc_common.level import AffinityPolicy, Location
from nova_hpc_simulate.cluster import Bools, Floats, Ints, SimulatedCluster
from nova_hpc_simulate.model import Layout, TaskShape, Typical
from nova_hpc_simulate.policy import Multipliers, Nova, Scores, SimulatedPolicy

_ROLE: Final = "gpu"
_WANT: Final = "gpu"
#: Page size of the memory: 1 MiB, the unit of the traces, so no memory is lost by rounding.
_PAGE_KIB: Final = 1024
#: Bounds of the first parts of a rank, each above its highest value, to pack them in one number.
_MOST: Final = (16, 16, 4096, 16, 16, 256, 256)
#: The profile is learned again after this number of placements; a scheduler learns every five
#: minutes.
_LEARN: Final = 100
#: Score of a host that the engine refuses.
_NEVER: Final = -1e18


def learned_profile_of(
    workload: tuple[Typical, ...], cells: int, running: Mapping[TaskShape, int]
) -> Profile:
    """Build the profile of a scheduler whose flavors are the workload's typical shapes.

    The scheduler's functions build it: :mod:`nova_hpc.placement.shape_mix`.

    :param cells: NUMA nodes of the hosts; a server takes an equal part from each.
    :param running: servers by their shapes, from which the weights of flavors are learned.
    """
    sold = [typical.shape for typical in workload if typical.shape.gpus]
    weights = shape_mix.learn_weights({shape: running.get(shape, 0) for shape in sold})
    made = shape_mix.build_mixed_profile(
        Sold(
            counts={_ROLE: shape.group_size},
            groups=shape.groups,
            level=shape.level,
            weight=weights[shape],
            cpus=shape.cpu_milli,
            memory_kib=shape.memory_mib * _PAGE_KIB,
            page_kib=_PAGE_KIB,
        )
        for shape in sold
    )
    return Profile(
        tuple(
            attrs.evolve(shape, cpus=shape.cpus * cells, memory_kib=shape.memory_kib * cells)
            for shape in made.shapes
        )
    )


@attrs.frozen
class _ScoredGpus:
    score: float  # the best is the highest
    gpus: tuple[int, ...] = ()


class Ours(SimulatedPolicy):
    """Simulated policy: HpcTopologyFilter and HpcPackingWeigher, with Nova's own weighers after
    them.
    """

    def __init__(
        self, cluster: SimulatedCluster, rng: random.Random, workload: tuple[Typical, ...]
    ) -> None:
        super().__init__(cluster, rng, workload)
        self.nova = Nova(cluster, rng, workload, Multipliers())
        self.cells = {
            machine.layout: max(1, len({place.numa for place in machine.layout}))
            for machine in cluster.machines
        }
        self.placed = 0
        self.profiles: dict[int, Profile] = {}
        self._sell({})

    def _sell(self, running: Mapping[TaskShape, int]) -> None:
        """Learn the profile from the running servers, and drop answers of another profile."""
        profiles = {
            count: learned_profile_of(self.workload, count, running)
            for count in {1, *self.cells.values()}
        }
        if profiles == self.profiles:
            return
        self.profiles = profiles
        shapes = profiles[1].shapes
        # A need of 0 becomes 1 for the division, and is never the limit.
        self.cpus: Ints = np.array([max(shape.cpus, 1) for shape in shapes], dtype=np.int64)
        self.memory: Ints = np.array(
            [max(shape.memory_kib // _PAGE_KIB, 1) for shape in shapes], dtype=np.int64
        )
        self.groups: Ints = np.array([shape.groups for shape in shapes], dtype=np.int64)
        self.sizes: Ints = np.array(
            [sum(shape.counts.values()) for shape in shapes], dtype=np.int64
        )
        self.known: dict[object, _ScoredGpus] = {}
        self.scores = Scores(self.cluster, self._compute)

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Choose a node: by the engine's score, then least free CPU and memory, then Nova's
        weighers.
        """
        if not shape.exclusive or not shape.gpus:
            return self.nova.node(shape, fits)
        if self.placed % _LEARN == 0:
            self._sell(self.cluster.running)
        self.placed += 1
        scores = self.scores.of(shape, fits)
        nodes = np.flatnonzero(fits)
        alike = nodes[scores[nodes] == scores[nodes].max()]
        for free in (self.cluster.cpu, self.cluster.memory):
            alike = alike[free[alike] == free[alike].min()]
        return self.nova.among(alike, fits)

    def gpus(self, node: int, shape: TaskShape) -> tuple[int, ...]:
        """Choose GPUs on *node* with the engine, or as Nova does for a part of a GPU."""
        if not shape.gpus:
            return ()
        if not shape.exclusive:
            return self.nova.gpus(node, shape)
        return self._verdicts(shape, np.array([node]))[0].gpus

    def _compute(self, shape: TaskShape, nodes: Ints) -> Floats:
        return np.array([scored.score for scored in self._verdicts(shape, nodes)])

    def _verdicts(self, shape: TaskShape, nodes: Ints) -> list[_ScoredGpus]:
        before = self._limits(nodes, 0, 0, 0)
        after = self._limits(nodes, shape.gpus, shape.cpu_milli, shape.memory_mib)
        result = []
        for index, node in enumerate(nodes.tolist()):
            layout = self.cluster.machines[node].layout
            free = self.cluster.free(node)
            # Without a layout all GPUs are equal, so only their number matters.
            where = (layout, free if layout else len(free))
            asked = (shape.gpus, shape.level, shape.group_size)
            key = (where, asked, before[index].tobytes(), after[index].tobytes())
            verdict = self.known.get(key)
            if verdict is None:
                verdict = self.known[key] = self._ask(node, shape, layout, free)
            if not layout:
                verdict = attrs.evolve(verdict, gpus=free[: shape.gpus])
            result.append(verdict)
        return result

    def _limits(self, nodes: Ints, gpus: int, cpu_milli: int, memory_mib: int) -> Ints:
        """Compute the number of servers, and of groups, of each shape that fit on each node.

        The GPUs limit it first, so CPUs and memory beyond that do not change it.
        """
        whole = (self.cluster.whole[nodes] - gpus)[:, None]
        servers: Ints = whole // (self.sizes * self.groups)
        groups: Ints = whole // self.sizes
        cells = np.array([self.cells[self.cluster.machines[n].layout] for n in nodes.tolist()])
        for free, needs in (
            (self.cluster.cpu[nodes] - cpu_milli, self.cpus),
            (self.cluster.memory[nodes] - memory_mib, self.memory),
        ):
            group_needs = -(-needs * cells[:, None] // self.groups)
            servers = np.minimum(servers, free[:, None] // needs)
            groups = np.minimum(groups, free[:, None] // group_needs)
        limits: Ints = np.concatenate([servers, groups], axis=1).astype(np.int8)
        return limits

    def _ask(
        self, node: int, shape: TaskShape, layout: Layout, free: tuple[int, ...]
    ) -> _ScoredGpus:
        cells = self.cells[layout]
        cpu, memory = int(self.cluster.cpu[node]), int(self.cluster.memory[node])
        host = _host_for_engine(layout, free, cells, cpu, memory)
        profile = self.profiles[cells]
        answer = choose_device_sets(_request_for_engine(shape, cells), host, 1, profile)
        if not answer.sets and shape.groups > 1:
            # The engine spreads groups over the cells, but the trace does not need that.
            answer = choose_device_sets(_request_for_engine(shape, 0), host, 1, profile)
        if not answer.sets:
            return _ScoredGpus(_NEVER)
        chosen = answer.sets[0]
        grain = between_hosts.damage_grain_of(profile)
        rank = between_hosts.rank_device_set(chosen.score, shape.level, grain)
        score = 0.0
        for part, most in zip(rank, _MOST, strict=False):
            score = score * most - part
        return _ScoredGpus(score, tuple(sorted(int(pick.pool) for pick in chosen.picks)))


def _host_for_engine(
    layout: Layout, free: tuple[int, ...], cells: int, cpu: int, memory: int
) -> model.FreeHost:
    nodes = sorted({place.numa or 0 for place in layout}) or [0]
    return model.FreeHost(
        name="host",
        pools=tuple(
            model.DevicePool(
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


def _request_for_engine(shape: TaskShape, cells: int) -> model.Request:
    return model.Request(
        wants=(model.Want(_WANT, _WANT, shape.gpus),),
        groups=(model.DeviceGroup({_WANT: shape.group_size}),) * shape.groups,
        level=shape.level,
        policy=AffinityPolicy.REQUIRED,
        cells=tuple(
            model.WantedCell(number, shape.cpu_milli, shape.memory_mib * _PAGE_KIB, _PAGE_KIB)
            for number in range(cells)
        ),
    )
