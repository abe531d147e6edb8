# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a cluster: images of all members' disks, made while all members are stopped.

As with the other commands, the client stores nothing between two steps. ``ClusterWish.turn``
records that a snapshot is being made, and whether members are started again afterwards. The images
themselves show which members are done (:mod:`nova_hpc_client.cluster.snapshots`). So the same
command goes on after a killed one, and no member has two images in the end.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import attrs

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import commands, decide, verbs
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.run import (
    ClusterCloud,
    ClusterError,
    Pace,
    PatienceError,
    SilentError,
)
from nova_hpc_client.cluster.life_cycle.steps import (
    Act,
    AskServer,
    Done,
    Move,
    OwnStep,
    Step,
    Stuck,
    Wait,
)
from nova_hpc_client.cluster.members.model import (
    Cluster,
    ClusterMember,
    ClusterState,
    number_members,
)
from nova_hpc_client.cluster.members.server_state import RUNNING_TASKS, Standing
from nova_hpc_client.cluster.snapshots import ClusterSnapshot, MemberImage, SnapshotTurn
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.version import WireError

#: Readings of an image that is not active, with no task of its server, until the command gives up.
_IDLE_LOOKS: Final = 4


class SnapshotCloud(ClusterCloud, Protocol):
    """A cloud that makes images of members."""

    def snapshot_images(self, snapshot: str) -> Sequence[MemberImage]:
        """The images of a snapshot, whatever their status."""

    def make_image(self, server: str, name: str, properties: Mapping[str, str]) -> None:
        """Request an image of a server's disk; it has the properties from its first moment."""

    def delete_image(self, image: str) -> None:
        """Delete an image; ignore one that is gone."""

    def tag_image(self, image: str, tag: str) -> None:
        """Give an image a tag."""

    def actions_of(self, server: str) -> Sequence[tuple[str, str]]:
        """Names and start times of the actions that Nova has recorded for a server."""


@attrs.frozen
class _Work:
    """A snapshot that is being made.

    :ivar wish: the cluster's ``ClusterWish`` with the turn.
    :ivar accepted: steps that the cloud has accepted.
    :ivar idle: id of an image -> readings at which Nova did not work on it.
    :ivar imaged: ids of servers whose image is active.
    :ivar replaced: ids of members' servers that have no image in a whole snapshot.
    """

    cloud: SnapshotCloud
    wish: ClusterWish
    turn: SnapshotTurn
    accepted: set[Step] = attrs.Factory(set)
    idle: collections.Counter[str] = attrs.Factory(collections.Counter)
    imaged: set[str] = attrs.Factory(set)
    replaced: set[str] = attrs.Factory(set)

    def plan(self, current: Cluster) -> Move:
        """The next steps until the snapshot is whole and the members run as before.

        The phases, in this order: write the turn, stop all members, make their images, tag the
        first image, start the members. The head runs no jobs: it gets no image and is not stopped.
        """
        images = self.cloud.snapshot_images(self.turn.id)
        servers = {at: member.id for at, member in number_members(current).by_number.items()}
        chosen = snapshots.choose_images(images, servers)
        self.imaged.clear()
        self.imaged.update(
            servers[at] for at, own in chosen.items() if own and own[0].status == "active"
        )
        if not ClusterSnapshot(self.turn.id, tuple(images)).problem:
            self.replaced.clear()
            self.replaced.update(server for server in servers.values() if server not in self.imaged)
            # Another client that makes the same snapshot may have ended the turn.
            ours = snapshots.read_turn(current.wish) == self.turn
            return _plan_starts(current, self.accepted) if ours and self.turn.runs else Done()
        if current.wish is not None and current.wish.order > self.wish.order:
            return Stuck("another client has changed this cluster meanwhile")
        numbered = number_members(current)
        if current.group is None or numbered.surplus or current.wanted - servers.keys():
            return Stuck(f"cluster {current.name} is {current.state.value}: {current.reason}")
        numbers = {server: at for at, server in servers.items()}
        move = verbs.plan_some(
            current,
            tuple(numbered.by_number.values()),
            lambda cluster, member: self._judge_member(
                cluster, member, numbers[member.id], chosen[numbers[member.id]], bool(images)
            ),
            _order_rested,
            self.accepted,
        )
        if isinstance(move, Stuck):
            return move
        stale = verbs.find_stale(current, self.wish, head=False)
        if stale:
            # The turn is recorded before the first member stops: the first copy of the record
            # already commits every client to it.
            return Act(stale)
        return move if not isinstance(move, Done) else self._plan_end(current, images, chosen)

    def _judge_member(
        self,
        cluster: Cluster,
        member: ClusterMember,
        number: int,
        images: Sequence[MemberImage],
        begun: bool,
    ) -> verbs.Need:
        """The next need of a member until its image is active.

        :param images: its own images, in order of preference.
        :param begun: some member has an image already, so no member may run any more.
        """
        if member.failed:
            return verbs.explain_failure(cluster, member)
        if member.task:
            return verbs.wait_for(member)
        if member.standing is Standing.RUNS:
            if begun:
                return Stuck(f"{member.shown} runs, although images are made of members at rest")
            return AskServer(member.id, member.name, "os-stop")
        if member.status != "SHUTOFF":
            return verbs.wait_or_refuse(cluster, member)
        if not images:
            return self._plan_image(cluster, member, number)
        first = images[0]
        if first.wish != self.wish:
            return Stuck(f"cluster {cluster.name} has changed since the first image was made")
        if first.status == "active":
            return Done()
        self.idle[first.id] += 1
        status = printable_text(first.status)
        if first.status not in snapshots.COMING or self.idle[first.id] > _IDLE_LOOKS:
            show = shell_command("openstack", "image", "show", first.id)
            return Stuck(f"the image of {member.shown} is {status}, not active: {show}")
        return Wait(f"the image of {member.shown} is {status}")

    def _plan_image(self, cluster: Cluster, member: ClusterMember, number: int) -> verbs.Need:
        name = snapshots.image_name(wishes.member_name(self.wish, number), self.turn.id)
        properties = snapshots.build_properties(self.wish, cluster.id, self.turn, number, member.id)
        step = OwnStep(
            "making images",
            "image",
            member.id,
            send=lambda: self.cloud.make_image(member.id, name, properties),
        )
        if step in self.accepted:
            server = decide.server_in_command(cluster, member)
            events = shell_command("openstack", "server", "event", "list", server)
            return Stuck(f"the image of {member.shown} failed, or was deleted: {events}")
        return step

    def _plan_end(
        self,
        cluster: Cluster,
        images: Sequence[MemberImage],
        chosen: Mapping[int, Sequence[MemberImage]],
    ) -> Move:
        """The steps when the images of all members are active.

        Delete surplus images; then check that no member ran since the first image, and tag it.

        :param chosen: number of a member -> its images, in order of preference.
        """
        kept = {own[0].id for own in chosen.values()}
        surplus = [image for image in images if image.id not in kept]
        if surplus:
            # Two clients have made images of the same member.
            return _plan_deletes(self.cloud, surplus, self.accepted)
        since = min(image.created for image in images)
        for member in number_members(cluster).by_number.values():
            action = snapshots.find_disturbance(self.cloud.actions_of(member.id), since)
            if action:
                return Stuck(
                    f"{member.shown} did not rest while images were made: Nova has recorded "
                    f"{printable_text(action)}"
                )
        first = chosen[min(chosen)][0]
        tag = lambda: self.cloud.tag_image(first.id, snapshots.TAG)  # noqa: E731
        step = OwnStep("writing down that the snapshot is whole", f"tag {first.id}", send=tag)
        return (
            Stuck(f"Glance keeps no tag of image {first.id}")
            if step in self.accepted
            else Act((step,))
        )


def snapshot_cluster(
    cloud: SnapshotCloud,
    cluster: Cluster,
    pace: Pace,
    imaged: set[str] | None = None,
) -> ClusterSnapshot:
    """Make images of all members while all of them are stopped, or finish an interrupted snapshot.

    Members that ran before run again in the end.

    :param imaged: receives the ids of the servers whose image is active, for the progress display.
    :raises ClusterError: there is no snapshot, and the text names the remaining parts; or the
        snapshot is whole, but members do not run again, or were created after it.
    """
    before = commands.refuse_half(cluster)
    try:
        wish, turn = _begin_snapshot(cloud, cluster, before)
    except life_cycle_run.ClusterCloudError as error:
        raise ClusterError(f"{error}\nnothing has changed") from error
    work = _Work(cloud, wish, turn, imaged=set() if imaged is None else imaged)
    try:
        _end_turn(work, _run(work, cluster.id, pace, work.plan), pace)
        whole = ClusterSnapshot(turn.id, tuple(cloud.snapshot_images(turn.id)))
    except life_cycle_run.ClusterCloudError as error:
        raise ClusterError(f"{error}\n{format_ways(cluster, turn.id)}") from error
    except ClusterError as error:
        if wish is not before and not work.accepted:
            raise ClusterError(f"{error}\nnothing has changed") from error
        if isinstance(error, (PatienceError, SilentError)) or _is_whole(cloud, turn):
            raise ClusterError(f"{error}\n{format_ways(cluster, turn.id)}") from error
        try:
            withdraw_snapshot(cloud, cluster, turn, pace)
        except ClusterError as second:
            ways = format_ways(cluster, turn.id)
            raise ClusterError(f"{error}\nundoing it failed as well: {second}\n{ways}") from error
        raise ClusterError(f"{error}\nnothing is left of the snapshot") from error
    if work.replaced:
        again = shell_command("openstack", "hpc", "cluster", snapshots.SNAPSHOT, cluster.name)
        raise ClusterError(
            f"snapshot {turn.id} is whole, but has no image of members that came after it: {again} "
            "makes one of the present members"
        )
    return whole


def _is_whole(cloud: SnapshotCloud, turn: SnapshotTurn) -> bool:
    """Whether a snapshot is whole, or may be because the cloud does not answer."""
    try:
        return not ClusterSnapshot(turn.id, tuple(cloud.snapshot_images(turn.id))).problem
    except life_cycle_run.ClusterCloudError:
        return True


def _begin_snapshot(
    cloud: SnapshotCloud, cluster: Cluster, before: ClusterWish
) -> tuple[ClusterWish, SnapshotTurn]:
    """The ``ClusterWish`` with a snapshot as its turn: a new one, or the unfinished one.

    :raises ClusterError: another turn is unfinished, or the members cannot have this one.
    :raises ClusterCloudError: the cloud does not list the images of a snapshot.
    """
    turn = snapshots.read_turn(before)
    if turn is not None:
        return before, turn
    if before.turn:
        raise ClusterError(
            f"the {before.turn_verb} of cluster {cluster.name} is not finished; first "
            f"{verbs.format_turn_ways(cluster, before)}"
        )
    if before.boot_gib or not before.image:
        raise ClusterError(
            f"members of cluster {cluster.name} boot from volumes, which have no images: "
            "openstack volume snapshot create makes a snapshot of a volume"
        )
    members = number_members(cluster).by_number.values()
    runs = all(member.standing is Standing.RUNS for member in members)
    rests = all(member.status == "SHUTOFF" and not member.task for member in members)
    if not runs and not rests:
        raise ClusterError(
            f"cluster {cluster.name} is {cluster.state.value}: {cluster.reason}; before a snapshot "
            "all members run, or all are stopped: "
            f"{decide.format_finish_commands(cluster)}\nnothing has changed"
        )
    generation = before.generation + 1
    servers = [member.id for member in members]
    turns = (
        snapshots.new_turn(cluster.id, generation, servers, runs, taken)
        for taken in itertools.count()
    )
    # Existing images show another moment, so an id with images is not used again.
    turn = next(turn for turn in turns if not cloud.snapshot_images(turn.id))
    wish = attrs.evolve(before, turn=turn.write(generation), generation=generation)
    try:
        cluster_wish.from_metadata(cluster_wish.to_metadata(wish, cluster.id))
    except WireError as error:
        raise ClusterError(str(error)) from error
    return wish, turn


def _order_rested(members: Sequence[ClusterMember], steps: list[Step]) -> list[Step]:
    """Stops first; images when all members are stopped."""
    stops: list[Step] = [step for step in steps if isinstance(step, AskServer)]
    resting = all(
        member.status == "SHUTOFF" and member.task in ("", *RUNNING_TASKS) for member in members
    )
    return stops or (steps if resting else [])


def withdraw_snapshot(
    cloud: SnapshotCloud, cluster: Cluster, turn: SnapshotTurn, pace: Pace
) -> None:
    """Delete the images of a snapshot, and start the members that ran before it.

    :param turn: the snapshot's turn; if the cluster has another one by now, only images are
        deleted.
    :raises ClusterError: an image cannot be deleted.
    """
    accepted: set[Step] = set()

    def plan(current: Cluster) -> Move:
        images = cloud.snapshot_images(turn.id)
        if images:
            return _plan_deletes(cloud, images, accepted)
        if not turn.runs or snapshots.read_turn(current.wish) != turn:
            return Done()
        move = _plan_starts(current, accepted)
        # The list of clusters shows a member that cannot start, with the command that helps.
        return Done() if isinstance(move, Stuck) else move

    work = _Work(cloud, life_cycle_run.NO_WISH, turn, accepted)
    _end_turn(work, _run(work, cluster.id, pace, plan), pace)


def _plan_starts(cluster: Cluster, accepted: set[Step]) -> Move:
    """The steps that start all members that can start; then a wait, or the reason of the others."""
    members = tuple(number_members(cluster).by_number.values())
    starts = [
        AskServer(member.id, member.name, "os-start")
        for member in members
        if member.status == "SHUTOFF" and not member.task and not member.locked
    ]
    steps = tuple(step for step in starts if step not in accepted)
    if steps:
        return Act(steps)
    busy = [member for member in members if member.standing is Standing.CHANGES]
    if busy:
        return verbs.wait_for(busy[0])
    start = lambda current, member: verbs.lead_on(current, member, verbs.START)  # noqa: E731
    return verbs.plan_some(cluster, members, start, lambda members, steps: steps, accepted)


def _end_turn(work: _Work, left: Cluster, pace: Pace) -> None:
    """Remove the turn from the cluster's ``ClusterWish``, unless another client has done so."""
    if left.wish is None or snapshots.read_turn(left.wish) != work.turn:
        return
    after = attrs.evolve(left.wish, turn="", generation=left.wish.generation + 1)

    def plan(current: Cluster) -> Move:
        stale = verbs.find_stale(current, after, head=False)
        return Act(stale) if stale else Done()

    _run(attrs.evolve(work, wish=after, accepted=set()), left.id, pace, plan)


def refuse_needed(clusters: Iterable[Cluster], snapshot: str) -> None:
    """Check that no incomplete cluster needs a snapshot for its missing members.

    :raises ClusterError: one does; it could not be finished without the snapshot.
    """
    for cluster in clusters:
        image = cluster.wish.image if cluster.wish is not None else ""
        half = cluster.state in (ClusterState.INCOMPLETE, ClusterState.BUILDING)
        if half and snapshots.snapshot_of_image(image) == snapshot:
            raise ClusterError(
                f"cluster {cluster.name} is {cluster.state.value}, and its members boot from "
                f"snapshot {snapshot}: first {decide.format_finish_commands(cluster)}"
            )


def _plan_deletes(cloud: SnapshotCloud, images: Sequence[MemberImage], accepted: set[Step]) -> Move:
    def delete(image: MemberImage) -> Callable[[], None]:
        return lambda: cloud.delete_image(image.id)

    steps = [
        OwnStep("deleting images", f"delete {image.id}", send=delete(image)) for image in images
    ]
    left = tuple(step for step in steps if step not in accepted)
    return Act(left) if left else Wait(f"{len(images)} images are being deleted")


def _run(work: _Work, group: str, pace: Pace, plan: Callable[[Cluster], Move]) -> Cluster:
    return life_cycle_run.run_until_done(
        work.cloud, group, work.wish, Secrets(), pace, plan, work.accepted
    )


def format_ways(cluster: Cluster, snapshot: str) -> str:
    """The sentence with the commands that continue and that undo an unfinished snapshot."""
    undo = shell_command("openstack", "hpc", "snapshot", "delete", snapshot)
    return f"{verbs.format_ways(cluster, snapshots.SNAPSHOT)}, {undo} undoes it"
