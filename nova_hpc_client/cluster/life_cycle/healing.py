# SPDX-License-Identifier: Apache-2.0
"""Decides which faulty members of a cluster a healer replaces now. Pure.

A healer looks at the cluster again and again. Between two looks it keeps only when it saw a fault
for the first time; all other facts are in the records of Nova. Two of them are in the cluster's
``ClusterWish``, which each member has in its metadata:

- *The claim*. ``ClusterWish.turn`` names the healer that replaces members. Of two healers that
  write their claims at the same moment, each client takes the one with the greater order. A claim
  stays until the cluster is whole. Another healer takes it over if nothing has changed for a while.
- *The count*. ``ClusterWish.healed`` has the time of each replacement, and it is written before the
  old server is deleted. So all healers agree on the number of the last hour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import attrs

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import decide
from nova_hpc_client.cluster.members.model import (
    Cluster,
    ClusterMember,
    ClusterState,
    Numbered,
    number_members,
)
from nova_hpc_client.cluster.members.server_state import CHANGEABLE, Standing
from nova_hpc_common.outside.text import shell_command
from nova_hpc_common.wire.cluster_wish import HEAL, ClusterWish
from nova_hpc_common.wire.server_faults import FaultWord
from nova_hpc_guest.host_list import HEAD

#: Faults that a replacement of the member ends.
WORDS: Final = tuple(word for word in FaultWord if word.needs_other_devices)
#: Seconds in which replacements are counted.
HOUR: Final = 3600
#: Most replacements in an hour that can be allowed: the times are in the metadata of each member.
MOST_PER_HOUR: Final = 30
#: Times within an hour that a guest may end by itself and be started again.
MOST_ENDINGS: Final = 3
#: Looks without a change after which a claim, or a half cluster, is left behind.
_IDLE_LOOKS: Final = 4


@attrs.frozen
class HealTerms:
    """The limits of a healer.

    :ivar healer: its name in claims, used by no other healer.
    :ivar interval: seconds between two looks, and for which a fault has to last.
    :ivar most_per_hour: replacements in any hour, of all healers together.
    :ivar at_once: members that are replaced at the same time.
    :ivar drains: a program drains members before they are replaced.
    :ivar undrains: a program makes members without a fault take jobs again.
    :ivar force: members are replaced even if jobs may run on them.
    :ivar named: numbers of the members to heal, and HEAD for the head; empty for all members.
    :ivar words: the faults that make the healer replace a member.
    """

    healer: str
    interval: float
    most_per_hour: int = 4
    at_once: int = 1
    drains: bool = False
    undrains: bool = False
    force: bool = False
    named: frozenset[int] = frozenset()
    words: frozenset[FaultWord] = frozenset(WORDS)


@attrs.frozen
class HealMemory:
    """The looks of a healer so far.

    :ivar seen: id of a server -> when the healer saw its fault first; no look since was without.
    :ivar scene: the state of the whole cluster at the last look.
    :ivar unchanged: when the healer saw this scene first.
    :ivar free: ids of servers that the drain program has drained since the last pause.
    :ivar busy: ids of servers that it could not drain.
    :ivar refused: ids of servers whose replacement was refused since the last pause.
    :ivar serving: ids of servers that the undrain program has had since their last fault.
    :ivar stuck: ids of servers that it could not undrain, or that did not start, since the last
        pause.
    :ivar unfit: ids of new servers that were not accepted.
    :ivar endings: id of a server that is off -> how often its guest has ended by itself or has not
        started within an hour; 0 if its owner has stopped it. It is read once between two pauses.
    :ivar started: ids of servers that this healer has started since the last pause.
    :ivar owes: this healer has deleted a server, and the cluster has not been whole since.
    """

    seen: Mapping[str, float] = attrs.Factory(dict)
    scene: tuple[object, ...] = ()
    unchanged: float = 0.0
    free: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    serving: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()
    endings: Mapping[str, int] = attrs.Factory(dict)
    started: frozenset[str] = frozenset()
    owes: bool = False

    def remember(self, cluster: Cluster, moment: float) -> HealMemory:
        """The memory after one more look.

        :param moment: time of the look, in seconds of any clock that only grows.
        """
        faulty = [server.id for server in cluster.servers if is_faulty(server)]
        scene = (
            cluster.wish,
            tuple(
                sorted(
                    (server.id, server.status, server.task, server.going)
                    for server in cluster.servers
                )
            ),
            tuple(sorted((port.id, port.server) for port in (*cluster.ports, *cluster.kept))),
        )
        return attrs.evolve(
            self,
            seen={server: self.seen.get(server, moment) for server in faulty},
            scene=scene,
            unchanged=self.unchanged if scene == self.scene else moment,
            serving=self.serving.difference(faulty),
            unfit=self.unfit.intersection(server.id for server in cluster.servers),
            endings={
                server.id: self.endings[server.id]
                for server in cluster.servers
                if server.off and server.id in self.endings
            },
            owes=self.owes and bool(cluster.wanted - number_members(cluster).by_number.keys()),
        )


@attrs.frozen
class Replace:
    """Claim the cluster and replace these members; HEAD stands for the head.

    :ivar wish: the ``ClusterWish`` with claim and count.
    """

    numbers: tuple[int, ...]
    wish: ClusterWish


@attrs.frozen
class DrainFirst:
    """Run the drain program for these members."""

    numbers: tuple[int, ...]


@attrs.frozen
class Undrain:
    """Run the undrain program for these members, which have no fault."""

    numbers: tuple[int, ...]


@attrs.frozen
class StartAgain:
    """Start these members, whose guests have ended by themselves."""

    numbers: tuple[int, ...]


@attrs.frozen
class Finish:
    """Claim the cluster, which a healer has left half, and create its missing members.

    :ivar wish: the ``ClusterWish`` with claim and count.
    """

    wish: ClusterWish


@attrs.frozen
class Release:
    """End a claim on a whole cluster.

    :ivar wish: the ``ClusterWish`` without claim.
    """

    wish: ClusterWish


@attrs.frozen
class HoldBack:
    """Look again later; nothing can be done now.

    :ivar passes: time alone may end it, so that a single round waits for it.
    """

    reason: str
    passes: bool = False


@attrs.frozen
class Healthy:
    """No member has a fault that makes the healer replace it."""


HealMove = Replace | DrainFirst | StartAgain | Undrain | Finish | Release | HoldBack | Healthy


def keep_faults(cluster: Cluster, terms: HealTerms) -> Cluster:
    """Return the cluster without the faults that this healer leaves alone."""

    def keep(server: ClusterMember) -> ClusterMember:
        kept = (word for word in server.faults if word in terms.words)
        return attrs.evolve(server, faults=tuple(kept))

    return attrs.evolve(
        cluster,
        members=tuple(map(keep, cluster.members)),
        heads=tuple(map(keep, cluster.heads)),
    )


def is_faulty(server: ClusterMember) -> bool:
    """Whether a server works again only as another one."""
    return server.failed or any(word.needs_other_devices for word in server.faults)


def faulty_numbers(cluster: Cluster, named: Collection[int] = ()) -> tuple[int, ...]:
    """Numbers of the faulty members; the head only if it is named.

    :param named: numbers to which the answer is limited; empty for all members.
    """
    return tuple(
        number
        for number, member in _servers_of(number_members(cluster)).items()
        if is_faulty(member) and (number in named if named else number != HEAD)
    )


def plan_healing(
    cluster: Cluster, memory: HealMemory, terms: HealTerms, moment: float, date: float
) -> HealMove:
    """The next action of a healer.

    The phases, in this order: a cluster that cannot be read; one in change, which is waited for; a
    half one, which is finished if a healer has left it; a claim that is not needed any more;
    members whose guests have ended; members that may still be drained; then the faulty members.

    :param memory: the looks so far, with this one.
    :param moment: time of this look, in seconds of the memory's clock.
    :param date: the same, in seconds since 1970.
    """
    wish = cluster.wish
    if wish is None or cluster.state in (ClusterState.NO_GROUP, ClusterState.UNKNOWN):
        return _hold_with_command(cluster, cluster.reason)
    numbered = number_members(cluster)
    idle = moment - memory.unchanged >= _IDLE_LOOKS * terms.interval
    claimed = wish.turn_verb == HEAL
    ours = claimed and wish.turn.endswith(f"-{terms.healer}")
    changing = _explain_change(numbered)
    if changing:
        return HoldBack(changing, passes=True)
    half = _explain_half(cluster, numbered, claimed)
    if wish.turn and not claimed:
        half = half or f"its {wish.turn_verb} is not finished"
    if half and not claimed and not memory.owes:
        return _hold_with_command(cluster, half) if idle else HoldBack(half, passes=True)
    if claimed and not ours and not idle:
        return HoldBack("another healer is at work", passes=True)
    if half and numbered.unclear:
        return _hold_with_command(cluster, half)
    # A healer that is only slow may still delete a server, until it sees that its claim is gone.
    if half or (claimed and not ours):
        return Finish(_build_claim(wish, terms, date, 0))
    unborn = decide.remakable_members_of(cluster)
    if claimed and not unborn:
        return Release(attrs.evolve(wish, turn="", generation=wish.generation + 1))
    ended = _find_ended(numbered, memory, terms)
    if ended:
        return StartAgain(ended)
    starting = [server for server in cluster.servers if server.off and server.id in memory.started]
    if starting:
        return HoldBack(f"{starting[0].shown} does not run yet", passes=True)
    drained = _find_drained(numbered, memory, terms)
    if drained:
        return Undrain(drained)
    return _plan_faulty(cluster, numbered, memory, terms, moment, date)


def _plan_faulty(
    cluster: Cluster,
    numbered: Numbered,
    memory: HealMemory,
    terms: HealTerms,
    moment: float,
    date: float,
) -> HealMove:
    """The action for the faulty members of a whole cluster at rest."""
    assert cluster.wish is not None
    wish, servers = cluster.wish, _servers_of(numbered)
    faulty = faulty_numbers(cluster, terms.named)
    ends = [member for member in servers.values() if memory.endings.get(member.id, 0)]
    if not faulty and ends:
        times = memory.endings[ends[0].id]
        return HoldBack(
            f"{ends[0].shown} is off: its guest has ended or not started {times} times within an "
            f"hour: {decide.format_replace_command(cluster, ends[0])}"
        )
    if not faulty:
        return Healthy()
    ill = len(faulty_numbers(cluster))
    if len(numbered.by_number) == 1:
        # One member alone shows nothing of a switch or of the power.
        (number,) = numbered.by_number
        if number in faulty and not terms.named:
            name = wishes.member_name(wish, number)
            command = shell_command("openstack", "hpc", "cluster", "heal", cluster.name, name)
            return HoldBack(f"the only member is replaced only if it is named: {command}")
    elif 2 * ill > len(numbered.by_number):
        return HoldBack(
            f"{ill} of {len(numbered.by_number)} members are faulty, and none is replaced: a "
            "switch or the power may have failed"
        )
    settled = (Standing.RUNS, Standing.FAILED)
    resting = [
        member
        for member in servers.values()
        if member.standing not in settled
        and not (is_faulty(member) and (member.halted or member in ends))
    ]
    if resting:
        # Beside members at rest, only those are replaced that no other command helps.
        faulty = tuple(number for number in faulty if servers[number].failed)
    if any(member.status not in CHANGEABLE for member in resting) or not faulty:
        return _hold_with_command(cluster, f"{resting[0].shown} is {resting[0].state_text}")
    ripe = [
        number for number in faulty if moment - memory.seen[servers[number].id] >= terms.interval
    ]
    left = memory.refused | (frozenset() if terms.force else memory.busy)
    idle = [number for number in ripe if servers[number].id not in left]
    room = terms.most_per_hour - len(_recent_times(wish, date))
    if idle and room <= 0:
        return HoldBack(
            f"{terms.most_per_hour} members were replaced within an hour, which is the most"
        )
    # The worst first: those that do not run, then in the order of the words.
    idle.sort(
        key=lambda number: (not servers[number].failed, _rank_of_fault(servers[number]), number)
    )
    chosen = tuple(idle[: min(room, terms.at_once)])
    asked = memory.free | memory.busy
    undrained = tuple(number for number in chosen if servers[number].id not in asked)
    if terms.drains and undrained:
        return DrainFirst(undrained)
    if not terms.drains and not terms.force:
        chosen = tuple(number for number in chosen if servers[number].failed)
    if chosen:
        return Replace(chosen, _build_claim(wish, terms, date, len(chosen)))
    if len(ripe) < len(faulty):
        return HoldBack("a fault has to last", passes=True)
    names = ", ".join(servers[number].shown for number in ripe)
    if terms.drains or not idle:
        return HoldBack(f"not replaced: {names}")
    return HoldBack(f"{names} may have jobs: --drain PROGRAM drains it before, --force ends them")


def _find_ended(numbered: Numbered, memory: HealMemory, terms: HealTerms) -> tuple[int, ...]:
    """Numbers of members that are off because their guests have ended, and not too often."""
    return tuple(
        number
        for number, member in _servers_of(numbered).items()
        if (number in terms.named if terms.named else number != HEAD)
        and not is_faulty(member)
        and member.id not in memory.stuck | memory.started
        and 0 < memory.endings.get(member.id, 0) <= MOST_ENDINGS
    )


def _find_drained(numbered: Numbered, memory: HealMemory, terms: HealTerms) -> tuple[int, ...]:
    """Numbers of members without a fault that may be drained.

    No record of the cloud shows which members a healer has drained. That healer may have died, or
    a fault may be gone. So each healer begins with all members.
    """
    if not terms.undrains:
        return ()
    done = memory.serving | memory.stuck | memory.unfit
    return tuple(
        number
        for number, member in _servers_of(numbered).items()
        if (number in terms.named if terms.named else number != HEAD)
        and member.standing is Standing.RUNS
        and member.id not in done
        and not is_faulty(member)
    )


def _servers_of(numbered: Numbered) -> Mapping[int, ClusterMember]:
    head = {HEAD: numbered.head} if numbered.head else {}
    return {**numbered.by_number, **head}


def _rank_of_fault(member: ClusterMember) -> int:
    order = list(type(member.faults[0])) if member.faults else []
    return order.index(member.faults[0]) if order else 0


def _recent_times(wish: ClusterWish, date: float) -> tuple[int, ...]:
    return tuple(at for at in wish.healed if at > date - HOUR)


def _build_claim(wish: ClusterWish, terms: HealTerms, date: float, more: int) -> ClusterWish:
    """The ``ClusterWish`` with a claim of this healer.

    :param more: the number of replacements to add to the count.
    """
    generation = wish.generation + 1
    return attrs.evolve(
        wish,
        turn=f"{HEAL}-{generation}-{terms.healer}",
        healed=(*_recent_times(wish, date), *([int(date)] * more)),
        generation=generation,
    )


def _explain_change(numbered: Numbered) -> str:
    """The first server at which Nova is at work; empty if there is none."""
    if numbered.going:
        return f"{numbered.going[0].shown} is being deleted"
    servers = (*numbered.present, *numbered.surplus)
    changing = (Standing.ARRIVES, Standing.CHANGES)
    return next(
        (
            f"{server.shown} is {server.state_text}"
            for server in servers
            if server.standing in changing
        ),
        "",
    )


def _explain_half(cluster: Cluster, numbered: Numbered, claimed: bool) -> str:
    """The reason why a cluster does not have exactly its servers; empty if it has.

    :param claimed: a healer was at work, whose last step writes host lists.
    """
    missing = [
        wishes.member_name(cluster.wish, number)
        for number in sorted(cluster.wanted - numbered.by_number.keys())
        if cluster.wish is not None
    ]
    if cluster.wants_head and numbered.head is None:
        missing.append(wishes.head_name(cluster.name))
    if missing:
        return f"{missing[0]} is missing"
    if numbered.surplus:
        return f"{numbered.surplus[0].shown} is too many"
    untold = [member for member in cluster.untold if claimed and member.standing is Standing.RUNS]
    return f"{untold[0].shown} does not have the newest host list" if untold else ""


def _hold_with_command(cluster: Cluster, reason: str) -> HoldBack:
    command = decide.format_finish_commands(cluster)
    return HoldBack(f"{reason}: {command}" if command else reason)
