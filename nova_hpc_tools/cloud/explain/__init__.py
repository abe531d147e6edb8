# SPDX-License-Identifier: Apache-2.0
"""The reasons for the devices that a server would get, or for none.

Pure: a snapshot and a question in, a report out. The verdict on each host comes from
choose_device_sets(), which the scheduler calls with the same arguments. Every remedy in the
report is judged in the same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import attrs

from nova_hpc.placement import withheld
from nova_hpc.placement.flavor import PREFIX, has_fabric_keys, has_hpc_keys
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Request, Unmet
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import remedies as explain_remedies
from nova_hpc_tools.cloud.explain.model import (
    FlavorQuestion,
    FlavorReport,
    NodeChoice,
    NodeVerdict,
    PlacedServer,
    Remedy,
)
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.snapshot import Flavor, Snapshot, SnapshotError, SnapshotNode
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest

#: Withheld and unusable devices that one line of a host names.
_SHOWN = 4


def explain_flavor(cloud: Snapshot, question: FlavorQuestion) -> FlavorReport:
    """Explain where servers of a flavor would go in *cloud*.

    :raises SnapshotError: the question cannot be answered: a flavor, image or host does not exist,
        or no server can be created from the flavor.
    """
    flavor = find_flavor(cloud, question.flavor, question.image)
    flavor = snapshot.flavor_with_ports(cloud, flavor, question.ports)
    nodes = find_nodes(cloud, question.host)
    try:
        request = snapshot.request_of_flavor(flavor, cloud.hosts)
    except FlavorError as error:
        raise SnapshotError(f"flavor {flavor.name}: {error}") from error
    chooser = Chooser(cloud.profile)
    verdicts = {node.name: judge_node(node, flavor, request, chooser) for node in nodes}
    placed = place_servers(nodes, verdicts, flavor, request, question.count, chooser)
    remedies: tuple[Remedy, ...] = ()
    if len(placed) < question.count:
        # The remedies are for the server after the last one that fits.
        left = _nodes_after_placing(nodes, placed)
        remedies = explain_remedies.find_remedies(cloud, left, flavor, request, chooser)
    return FlavorReport(
        question=question,
        flavor=flavor,
        request=request,
        verdicts=tuple(verdicts.values()),
        placed=placed,
        remedies=remedies,
        problems=cloud.problems,
        names={server.uuid: server.name for server in cloud.servers},
    )


def explain_asked(cloud: Snapshot, asked: UnplacedRequest) -> FlavorReport:
    """Decide whether servers that found no host would find one now.

    :param asked: its flavor counts, even if the cloud's flavor of that name has changed.
    :raises SnapshotError: as :func:`explain_flavor`.
    """
    current_cloud = attrs.evolve(cloud, flavors=(asked.flavor,))
    # A port is of one server; Nova makes several only if each gets ports of its own.
    question = FlavorQuestion(
        asked.flavor.name, asked.flavor.image, count=len(asked.servers), ports=asked.ports
    )
    return attrs.evolve(explain_flavor(current_cloud, question), asked=asked)


def find_flavor(cloud: Snapshot, name: str, image: str | None = None) -> Flavor:
    """Find the flavor with this name or id.

    :raises SnapshotError: there is none, or it has nothing to explain.
    """
    matches = [flavor for flavor in cloud.flavors if name in (flavor.name, flavor.id)]
    if not matches:
        raise SnapshotError(
            f"there is no flavor "
            f"{name!r}{_suggest_names(name, [flavor.name for flavor in cloud.flavors])}"
        )
    flavors = [flavor for flavor in matches if flavor.image == image]
    if not flavors:
        images = ", ".join(sorted(flavor.image for flavor in matches if flavor.image)) or "none"
        raise SnapshotError(
            f"flavor {name!r} was not read with image {image!r} (images that were: {images}); "
            "take the snapshot with that --image, or use the running cloud"
        )
    flavor = flavors[0]
    if flavor.problem is not None:
        raise SnapshotError(f"flavor {flavor.name}: Nova refuses it: {flavor.problem}")
    if not has_hpc_keys(flavor.extra_specs) and has_fabric_keys(flavor.extra_specs):
        raise SnapshotError(
            f"flavor {flavor.name} takes no devices, so Placement alone counts how many of its "
            "servers fit on a host; nova-scheduler logs it"
        )
    if not has_hpc_keys(flavor.extra_specs):
        raise SnapshotError(
            f"flavor {flavor.name} has no {PREFIX} keys, so Nova alone decides about its "
            "servers; give it hpc:affinity, or name a flavor that has it"
        )
    return flavor


def find_nodes(cloud: Snapshot, host: str | None) -> tuple[SnapshotNode, ...]:
    """Find all nodes, or the nodes of one host (or the one node) with this name.

    :raises SnapshotError: no host or node has the name.
    """
    if not cloud.hosts:
        raise SnapshotError("there are no hosts; add them with: nova-manage cell_v2 discover_hosts")
    if host is None:
        return tuple(sorted(cloud.hosts, key=lambda node: (node.host, node.node)))
    matches = tuple(node for node in cloud.hosts if host in (node.host, node.node))
    if not matches:
        names = [node.host for node in cloud.hosts]
        raise SnapshotError(f"there is no host {host!r}{_suggest_names(host, names)}")
    return matches


def judge_node(
    node: SnapshotNode, flavor: Flavor, request: Request, chooser: Chooser
) -> NodeVerdict:
    """Make the scheduler's choice of devices on one node, or explain why there is none."""
    if node.out is not None:
        return NodeVerdict(node=node, reason=node.out)
    answer = chooser.choose(request, flavor, node)
    notes = _notes_on_devices(node)
    if not answer.sets:
        wanted = {want.name for want in request.wants}
        wanted_counts = {name: count for name, count in node.withheld_of.items() if name in wanted}
        miss = withheld.count_withheld_in_miss(answer.miss, wanted_counts) if answer.miss else None
        reason = miss.operator if miss else "no suitable set of devices is free"
        unmet = miss.unmet if miss else Unmet.OTHER
        lacking = sum(need - free for _, free, need in miss.short) if miss else 0
        return NodeVerdict(node=node, reason=reason, notes=notes, unmet=unmet, lacking=lacking)
    best = answer.sets[0]
    return NodeVerdict(node=node, choice=NodeChoice(best), reason=best.reason, notes=notes)


def place_servers(
    nodes: Iterable[SnapshotNode],
    verdicts: dict[str, NodeVerdict],
    flavor: Flavor,
    request: Request,
    count: int,
    chooser: Chooser,
) -> tuple[PlacedServer, ...]:
    """Place *count* servers one after the other; fewer if no more fit.

    Each goes to the best host, as HpcPackingWeigher ranks them; of equal hosts to the first by
    name, while Nova takes any.

    :param verdicts: host -> the choice for the first server.
    """
    state = {node.name: node for node in nodes}
    current_verdicts = dict(verdicts)
    placed: list[PlacedServer] = []
    while len(placed) < count:
        fits = [
            (verdict.choice, name)
            for name, verdict in current_verdicts.items()
            if verdict.choice is not None
        ]
        if not fits:
            break
        ranked = (
            (chooser.rank(request, choice.devices, state[name]), name, choice)
            for choice, name in fits
        )
        _, name, choice = min(ranked, key=lambda candidate: candidate[:2])
        after = snapshot.take_from_node(
            state[name], choice.devices, request.cells, f"new server {len(placed) + 1}"
        )
        placed.append(PlacedServer(before=state[name], choice=choice, after=after))
        state[name] = after
        current_verdicts[name] = judge_node(after, flavor, request, chooser)
    return tuple(placed)


def _nodes_after_placing(
    nodes: Iterable[SnapshotNode], placed: Sequence[PlacedServer]
) -> tuple[SnapshotNode, ...]:
    state = {node.name: node for node in nodes}
    state |= {placement.after.name: placement.after for placement in placed}
    return tuple(state.values())


def _notes_on_devices(node: SnapshotNode) -> tuple[str, ...]:
    """Return texts about unusable and withheld devices of the node, which may be why it misses."""
    notes = [f"{text}" for text in node.unusable[:_SHOWN]]
    if len(node.unusable) > _SHOWN:
        notes.append(f"{len(node.unusable) - _SHOWN} more devices are not usable")
    notes += [
        f"{address} is withheld: {reason}"
        for address, reason in list(node.withheld.items())[:_SHOWN]
    ]
    if len(node.withheld) > _SHOWN:
        notes.append(f"{len(node.withheld) - _SHOWN} more devices are withheld")
    return tuple(notes)


def _suggest_names(name: str, names: Iterable[str]) -> str:
    """Return the end of a message with existing names that are close to *name*."""
    candidates = sorted(set(names))
    close = difflib.get_close_matches(name, candidates, n=3) or candidates[:5]
    if not close:
        return "; there are none at all"
    return f"; there is: {', '.join(close)}" + (" ..." if len(candidates) > len(close) else "")
