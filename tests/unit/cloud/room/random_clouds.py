# SPDX-License-Identifier: Apache-2.0
"""Small full clouds by seed, and every sequence of moves in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping

import attrs

from nova_hpc.cluster.plan import GangPlan
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.capacity import measure_flavor
from nova_hpc_tools.cloud.explain import judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.snapshot import Flavor, FlavorWant, Server, Snapshot, SnapshotGroup
from tests.unit.snapshot import clouds

#: Two GPUs a switch, two switches a host.
SIZES = (1, 2, 4)
LEVELS = ("switch", "numa", "host")
TAKEN = "2026-01-01T00:00:00+00:00"


def flavor_of(size: int, level: str, **specs: str) -> Flavor:
    """A flavor of GPUs."""
    return Flavor(
        name=f"gpu{size}-{level}-{len(specs)}",
        id=f"id-{size}-{level}-{len(specs)}",
        extra_specs={
            "hpc:affinity": level,
            "hw:pci_numa_affinity_policy": "preferred",
            **{f"hpc:{key}": value for key, value in specs.items()},
        },
        wants=(FlavorWant("gpu", size),),
        numa_policy="preferred",
    )


def draw_cloud(seed: int) -> tuple[Snapshot, FabricMap, random.Random]:
    """Up to four hosts in two leaves, with as many servers as chance places."""
    chance = random.Random(seed)
    hosts = [f"n{number}" for number in range(chance.randint(2, 4))]
    fabric = FabricMap(
        places=tuple(
            FabricPlace(host=host, leaf=f"l{chance.randrange(2)}", spine="s") for host in hosts
        )
    )
    flavors = [flavor_of(size, level) for size in SIZES for level in LEVELS]
    flavors = [each for each in flavors if each.name not in ("gpu4-switch-0", "gpu4-numa-0")]
    flavors += [flavor_of(1, "switch", fabric="leaf"), flavor_of(2, "numa", fabric="leaf")]
    # Two switches for each NUMA node in clouds.gpu: one node has all.
    nodes = {host: clouds.node(host, [2, 2]) for host in hosts}
    cloud = clouds.cloud(*nodes.values(), flavors=flavors)
    chooser = Chooser(cloud.profile)
    servers: list[Server] = []
    for number in range(chance.randint(2, 10)):
        flavor = chance.choice([each for each in flavors if each.wants[0].count < 4] * 2 + flavors)
        host = chance.choice(hosts)
        request = snapshot.request_of_flavor(flavor, cloud.hosts)
        choice = judge_node(nodes[host], flavor, request, chooser).choice
        if choice is None:
            continue
        uuid = f"s{number}"
        nodes[host] = snapshot.take_from_node(nodes[host], choice.devices, (), uuid)
        servers.append(
            Server(
                uuid=uuid,
                name=uuid,
                host=host,
                node=host,
                flavor=flavor.name,
                extra_specs=flavor.extra_specs,
                immobile="it is paused" if chance.random() < 0.1 else None,
            )
        )
    groups: tuple[SnapshotGroup, ...] = ()
    if len(servers) > 1 and chance.random() < 0.3:
        members = {each.uuid: each.host for each in chance.sample(servers, 2)}
        policy = chance.choice(["affinity", "anti-affinity"])
        groups = (SnapshotGroup("g", policy, 1, members),)
    made = attrs.evolve(
        cloud,
        taken=TAKEN,
        hosts=tuple(nodes.values()),
        servers=tuple(servers),
        groups=groups,
        problems=(),
    )
    return made, fabric, chance


def draw_consent(cloud: Snapshot, chance: random.Random) -> Snapshot:
    """Some flavors and some owners agree to moves; others refuse, or write other words."""
    agreeing = {each.name for each in cloud.flavors if chance.random() < 0.3}

    def specs_of(name: str, specs: Mapping[str, str]) -> dict[str, str]:
        return {**specs, **({"hpc:movable": "yes"} if name in agreeing else {})}

    return attrs.evolve(
        cloud,
        flavors=tuple(
            attrs.evolve(each, extra_specs=specs_of(each.name, each.extra_specs))
            for each in cloud.flavors
        ),
        servers=tuple(
            attrs.evolve(
                each,
                extra_specs=specs_of(each.flavor, each.extra_specs),
                movable=chance.choice([None, None, None, "yes", "no", "perhaps"]),
            )
            for each in cloud.servers
        ),
    )


def draw_preemptible(cloud: Snapshot, chance: random.Random) -> Snapshot:
    """Some servers have a flavor that allows their preemption; others say it of themselves."""
    servers = []
    for each in cloud.servers:
        word = chance.choice(["yes", "yes", "yes", "no", "Yes", ""])
        key = {"hpc:preemptible": word} if word else {}
        servers.append(
            attrs.evolve(each, extra_specs={**each.extra_specs, **key}, movable="yes", until=None)
        )
    return attrs.evolve(cloud, servers=tuple(servers))


def fewest_removed(cloud: Snapshot, question: RoomQuestion) -> tuple[int, int] | None:
    """The fewest preemptible servers without which a request fits, and their devices.

    Every choice of them is tried; None if none is enough.
    """
    uuids = [
        each.uuid
        for each in cloud.servers
        if each.extra_specs.get("hpc:preemptible") == "yes" and each.immobile is None
    ]
    for count in range(len(uuids) + 1):
        costs = [
            sum(use.server in some for n in cloud.hosts for d in n.devices for use in d.used)
            for some in itertools.combinations(uuids, count)
            if fits(without(cloud, some), question)
        ]
        if costs:
            return count, min(costs)
    return None


def without(cloud: Snapshot, uuids: Iterable[str]) -> Snapshot:
    """The cloud after some servers have left."""
    gone = set(uuids)
    leaving = [each for each in cloud.servers if each.uuid in gone]
    return attrs.evolve(
        cloud,
        hosts=tuple(snapshot.release_from_node(node, *leaving) for node in cloud.hosts),
        servers=tuple(each for each in cloud.servers if each.uuid not in gone),
    )


def has_agreed(server: Server) -> bool:
    """The rule of consent, written anew: the owner's word outranks the flavor."""
    flavor = server.extra_specs.get("hpc:movable") == "yes"
    return server.movable == "yes" or (server.movable is None and flavor)


def draw_question(cloud: Snapshot, fabric: FabricMap, chance: random.Random) -> RoomQuestion:
    """A request; most often one that does not fit, although enough devices are free."""
    names = [each.name for each in cloud.flavors if "hpc:fabric" not in each.extra_specs]
    free = sum(device.free for node in cloud.hosts for device in node.devices)
    for _ in range(20):
        level = chance.choice([None, FabricLevel.LEAF])
        question = RoomQuestion.of(cloud, chance.choice(names), fabric, chance.randint(1, 3), level)
        if free >= question.members * question.flavor.wants[0].count and not fits(cloud, question):
            break
    return question


def fits(cloud: Snapshot, question: RoomQuestion) -> bool:
    """Whether the request fits, with a new count of everything."""
    return isinstance(question.plan(measure_flavor(cloud, question.flavor).by_host), GangPlan)


def may_go(cloud: Snapshot, fabric: FabricMap, server: Server, host: str) -> bool:
    """Nova's rules of server groups and ours of domains, written anew."""
    if server.immobile:
        return False
    old, new = fabric.place(server.host), fabric.place(host)
    assert old is not None
    assert new is not None
    if "hpc:fabric" in server.extra_specs and old.leaf != new.leaf:
        return False
    hosts = {each.uuid: each.host for each in cloud.servers}
    for group in cloud.groups:
        if server.uuid in group.members:
            (other,) = group.members.keys() - {server.uuid}
            if (group.policy == "affinity") != (hosts[other] == host):
                return False
    return True


def move(cloud: Snapshot, fabric: FabricMap, uuid: str, host: str) -> Snapshot | None:
    """The cloud after one move; None if the move is not possible."""
    (server,) = [each for each in cloud.servers if each.uuid == uuid]
    if server.host == host or not may_go(cloud, fabric, server, host):
        return None
    (flavor,) = [each for each in cloud.flavors if each.name == server.flavor]
    (target,) = [node for node in cloud.hosts if node.host == host]
    request = snapshot.request_of_flavor(flavor, cloud.hosts)
    choice = judge_node(target, flavor, request, Chooser(cloud.profile)).choice
    if choice is None:
        return None
    after = {
        server.host: lambda node: snapshot.release_from_node(node, server),
        host: lambda node: snapshot.take_from_node(node, choice.devices, request.cells, uuid),
    }
    return attrs.evolve(
        cloud,
        hosts=tuple(after.get(node.host, lambda node: node)(node) for node in cloud.hosts),
        servers=tuple(
            attrs.evolve(each, host=host, node=host) if each.uuid == uuid else each
            for each in cloud.servers
        ),
    )


def all_moves(cloud: Snapshot, fabric: FabricMap) -> Iterator[Snapshot]:
    """The cloud after each possible move."""
    for server in cloud.servers:
        for node in cloud.hosts:
            after = move(cloud, fabric, server.uuid, node.host)
            if after is not None:
                yield after


def fewest_moves(
    cloud: Snapshot, fabric: FabricMap, question: RoomQuestion, most: int
) -> int | None:
    """The least number of moves after which the request fits, by brute force; None if over *most*.

    An empty frontier before that is None, too.
    """
    states, seen = [cloud], {_key_of(cloud)}
    for count in range(most + 1):
        if any(fits(state, question) for state in states):
            return count
        following = []
        for state in states if count < most else ():
            for after in all_moves(state, fabric):
                if _key_of(after) not in seen:
                    seen.add(_key_of(after))
                    following.append(after)
        states = following
    return None


def _key_of(cloud: Snapshot) -> object:
    return tuple(
        tuple(use.server for use in device.used) for node in cloud.hosts for device in node.devices
    )
