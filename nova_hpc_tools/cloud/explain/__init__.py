# SPDX-License-Identifier: Apache-2.0
"""Why a server would get the devices that it would get, or none.

Pure: a snapshot and a question in, a report out. The answer for each host is
that of choose(), which the scheduler calls with the same words; so is every
remedy that the report names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import attrs

from nova_hpc.placement import withheld
from nova_hpc.placement.flavor import PREFIX, has_fabric_keys, has_hpc_keys
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Request
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import remedies as explain_remedies
from nova_hpc_tools.cloud.explain.model import Choice, Placed, Question, Remedy, Report, Verdict
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.snapshot import Flavor, Node, Snapshot, SnapshotError
from nova_hpc_tools.snapshot.unplaced_requests import Asked

#: Withheld and unusable devices that one line of a host names.
_SHOWN = 4


def explain(cloud: Snapshot, question: Question) -> Report:
    """Answer *question* about *cloud*.

    :raises SnapshotError: the question cannot be answered: a flavor, image or
        host that is not there, or a flavor that nobody can create servers of.
    """
    flavor = find_flavor(cloud, question.flavor, question.image)
    flavor = snapshot.with_ports(cloud, flavor, question.ports)
    nodes = find_nodes(cloud, question.host)
    try:
        request = snapshot.request(flavor, cloud.hosts)
    except FlavorError as error:
        raise SnapshotError(f"flavor {flavor.name}: {error}") from error
    chooser = Chooser(cloud.profile)
    verdicts = {node.name: verdict(node, flavor, request, chooser) for node in nodes}
    placed = place(nodes, verdicts, flavor, request, question.count, chooser)
    remedies: tuple[Remedy, ...] = ()
    if len(placed) < question.count:
        # What is missing is the server after the last one that fits.
        left = _after(nodes, placed)
        remedies = explain_remedies.find(cloud, left, flavor, request, chooser)
    return Report(
        question=question,
        flavor=flavor,
        request=request,
        verdicts=tuple(verdicts.values()),
        placed=placed,
        remedies=remedies,
        problems=cloud.problems,
        names={server.uuid: server.name for server in cloud.servers},
    )


def explain_asked(cloud: Snapshot, asked: Asked) -> Report:
    """Whether servers that found no host would find one now.

    :param asked: its flavor counts, whatever the cloud's flavor of that name is now.
    :raises SnapshotError: as :func:`explain`.
    """
    now = attrs.evolve(cloud, flavors=(asked.flavor,))
    # A port is of one server; Nova makes several only where each gets ports of its own.
    question = Question(
        asked.flavor.name, asked.flavor.image, count=len(asked.servers), ports=asked.ports
    )
    return attrs.evolve(explain(now, question), asked=asked)


def find_flavor(cloud: Snapshot, name: str, image: str | None = None) -> Flavor:
    """The flavor with this name or id.

    :raises SnapshotError: there is none, or it has nothing to explain.
    """
    found = [each for each in cloud.flavors if name in (each.name, each.id)]
    if not found:
        raise SnapshotError(
            f"there is no flavor {name!r}{_like(name, [each.name for each in cloud.flavors])}"
        )
    mine = [each for each in found if each.image == image]
    if not mine:
        known = ", ".join(sorted(each.image for each in found if each.image)) or "none"
        raise SnapshotError(
            f"flavor {name!r} was not read with image {image!r} (images that were: {known}); "
            "take the snapshot with that --image, or ask the cloud itself"
        )
    flavor = mine[0]
    if flavor.problem is not None:
        raise SnapshotError(f"flavor {flavor.name}: Nova refuses it: {flavor.problem}")
    if not has_hpc_keys(flavor.extra_specs) and has_fabric_keys(flavor.extra_specs):
        raise SnapshotError(
            f"flavor {flavor.name} takes no devices, so how many of its servers fit on a host "
            "only Placement knows: nova-scheduler logs it, and nova-hpc fabric plan answers for "
            "a list of hosts"
        )
    if not has_hpc_keys(flavor.extra_specs):
        raise SnapshotError(
            f"flavor {flavor.name} has no {PREFIX} keys, so Nova alone decides about its servers; "
            "give it hpc:affinity, or ask about a flavor that has it"
        )
    return flavor


def find_nodes(cloud: Snapshot, host: str | None) -> tuple[Node, ...]:
    """All nodes, or those of one host (or the one node) with this name.

    :raises SnapshotError: there is none.
    """
    if not cloud.hosts:
        raise SnapshotError("there are no hosts; add them with: nova-manage cell_v2 discover_hosts")
    if host is None:
        return tuple(sorted(cloud.hosts, key=lambda each: (each.host, each.node)))
    found = tuple(each for each in cloud.hosts if host in (each.host, each.node))
    if not found:
        names = [each.host for each in cloud.hosts]
        raise SnapshotError(f"there is no host {host!r}{_like(host, names)}")
    return found


def verdict(node: Node, flavor: Flavor, request: Request, chooser: Chooser) -> Verdict:
    """What the scheduler would choose on one node, or why nothing."""
    if node.out is not None:
        return Verdict(node=node, reason=node.out)
    answer = chooser.choose(request, flavor, node)
    notes = _notes(node)
    if not answer.sets:
        wanted = {want.name for want in request.wants}
        mine = {name: count for name, count in node.withheld_of.items() if name in wanted}
        miss = withheld.counted(answer.miss, mine) if answer.miss else None
        reason = miss.operator if miss else "no suitable set of devices is free"
        return Verdict(node=node, reason=reason, notes=notes)
    best = answer.sets[0]
    return Verdict(node=node, choice=Choice(best), reason=best.reason, notes=notes)


def place(
    nodes: Iterable[Node],
    verdicts: dict[str, Verdict],
    flavor: Flavor,
    request: Request,
    count: int,
    chooser: Chooser,
) -> tuple[Placed, ...]:
    """Place *count* servers one after the other; fewer where no more fit.

    Each goes to the best host, as HpcPackingWeigher ranks them;
    of equal hosts to the first by name, where Nova takes any.
    """
    state = {node.name: node for node in nodes}
    now = dict(verdicts)
    placed: list[Placed] = []
    while len(placed) < count:
        fits = [(each.choice, name) for name, each in now.items() if each.choice is not None]
        if not fits:
            break
        ranked = (
            (chooser.rank(request, choice.devices, state[name]), name, choice)
            for choice, name in fits
        )
        _, name, choice = min(ranked, key=lambda each: each[:2])
        after = snapshot.take(
            state[name], choice.devices, request.cells, f"new server {len(placed) + 1}"
        )
        placed.append(Placed(before=state[name], choice=choice, after=after))
        state[name] = after
        now[name] = verdict(after, flavor, request, chooser)
    return tuple(placed)


def _after(nodes: Iterable[Node], placed: Sequence[Placed]) -> tuple[Node, ...]:
    state = {node.name: node for node in nodes}
    state |= {each.after.name: each.after for each in placed}
    return tuple(state.values())


def _notes(node: Node) -> tuple[str, ...]:
    """What is wrong with devices of the node, which may be why it misses."""
    notes = [f"{text}" for text in node.unusable[:_SHOWN]]
    if len(node.unusable) > _SHOWN:
        notes.append(f"{len(node.unusable) - _SHOWN} more devices are not usable")
    notes += [
        f"{address} is withheld: {why}" for address, why in list(node.withheld.items())[:_SHOWN]
    ]
    if len(node.withheld) > _SHOWN:
        notes.append(f"{len(node.withheld) - _SHOWN} more devices are withheld")
    return tuple(notes)


def _like(name: str, names: Iterable[str]) -> str:
    """Names that somebody may have meant."""
    known = sorted(set(names))
    close = difflib.get_close_matches(name, known, n=3) or known[:5]
    if not close:
        return "; there are none at all"
    return f"; there is: {', '.join(close)}" + (" ..." if len(known) > len(close) else "")
