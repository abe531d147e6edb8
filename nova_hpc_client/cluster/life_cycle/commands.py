# SPDX-License-Identifier: Apache-2.0
"""Commands of users for clusters: create, finish, scale, replace, delete.

Each command leaves the requested cluster, or the one before, or a cluster that is listed as
incomplete. ``create --resume`` finishes such a cluster, and ``delete`` deletes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import attrs

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import adoption, decide
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.decide import Terms
from nova_hpc_client.cluster.life_cycle.run import (
    ClusterCloud,
    ClusterCloudError,
    ClusterError,
    LostError,
    Pace,
)
from nova_hpc_client.cluster.life_cycle.steps import Stuck
from nova_hpc_client.cluster.members.model import (
    Cluster,
    ClusterMember,
    ClusterState,
    number_members,
)
from nova_hpc_client.cluster.members.server_state import CHANGEABLE
from nova_hpc_client.cluster.user_data import UserDataError
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish

#: Attempts to create a server group if answers are lost.
_TRIES: Final = 4
_PAUSE: Final = 1.0
#: States of a cluster that is complete, with members that do not run.
_RESTING: Final = (ClusterState.DEGRADED, ClusterState.STOPPED, ClusterState.SHELVED)


class Founder(ClusterCloud, Protocol):
    """A cloud in which clusters can be created."""

    def make_group(
        self, wish: ClusterWish, attempt: str, policy: str, max_per_host: int | None
    ) -> str:
        """Create the server group, and return its id.

        :param attempt: a text in the group's name; :meth:`groups_of` finds the group by it.
        """

    def groups_of(self, attempt: str) -> Sequence[str]:
        """Ids of the server groups that one attempt has created."""


@attrs.frozen
class Nearness:
    """The nearness that Nova's server group requires.

    :ivar policy: one of Nova's policies of server groups.
    :ivar max_per_host: only for anti-affinity.
    """

    policy: str = wishes.POLICIES[0]
    max_per_host: int | None = None


def create_cluster(
    cloud: Founder,
    wish: ClusterWish,
    secrets: Secrets,
    nearness: Nearness,
    attempt: str,
    pace: Pace,
    until_active: bool = True,
    settle: Callable[[Cluster], Cluster] | None = None,
) -> Cluster:
    """Create a cluster, or leave nothing.

    :param attempt: a text that identifies this creation, used by no other.
    :param until_active: False to return once Nova has accepted every member.
    :param settle: a further check of the new cluster; it returns the cluster in its final state.
    :raises ClusterError: with the reason, and with the command for the rest if undoing failed, too.
    """
    group = ""
    try:
        group = _create_server_group(cloud, wish, nearness, attempt, pace)
        made = life_cycle_run.fulfil_wish(
            cloud, group, wish, secrets, pace, until_active=until_active
        )
        return made if settle is None else settle(made)
    except ClusterError as error:
        try:
            for group_id in {group, *cloud.groups_of(attempt)} - {""}:
                life_cycle_run.end_cluster(cloud, group_id, attrs.evolve(pace, limit=0.0))
        except (ClusterError, ClusterCloudError) as second:
            raise ClusterError(
                f"{error}\nundoing it failed as well: {second}\n"
                f"{_format_cluster_command('delete', group or wish.name)} ends what is left"
            ) from error
        raise ClusterError(f"{error}\nnothing is left of the cluster") from error


def _create_server_group(
    cloud: Founder, wish: ClusterWish, nearness: Nearness, attempt: str, pace: Pace
) -> str:
    for _ in range(_TRIES):
        try:
            return cloud.make_group(wish, attempt, nearness.policy, nearness.max_per_host)
        except LostError as error:
            failure = error
        except ClusterCloudError as error:
            raise ClusterError(str(error)) from error
        pace.sleep(_PAUSE)
        with contextlib.suppress(LostError):
            group_ids = sorted(cloud.groups_of(attempt))
            for extra_id in group_ids[1:]:
                cloud.delete_group(extra_id)
            if group_ids:
                return group_ids[0]
    raise ClusterError(f"the cloud does not answer: {failure}")


def resume_cluster(
    cloud: ClusterCloud,
    cluster: Cluster,
    given_wish: ClusterWish | None,
    secrets: Secrets,
    pace: Pace,
    leave: Collection[str] = (),
) -> Cluster:
    """Finish a cluster that a client left incomplete.

    Servers that failed before they ever ran are deleted and created again. If the command fails,
    it deletes nothing else: the cluster may have worked before.

    :param given_wish: the options that the user gave again; None if there are none.
    :param leave: ids of servers in error that are left as they are.
    :raises ClusterError: it cannot be finished; the text contains the reason.
    """
    wish = _known_wish(cluster, given_wish)
    try:
        wishes.check_wish_secrets(wish, secrets)
    except WishError as error:
        # Only the creation of a missing server needs them.
        numbered = number_members(cluster)
        missing = wish.members - numbered.by_number.keys() or (wish.head and not numbered.head)
        if missing or decide.remakable_members_of(cluster):
            raise ClusterError(str(error)) from error
    terms = Terms(remake=decide.remakable_members_of(cluster), leave=frozenset(leave))
    if terms.remake:
        _check_user_data(wish, secrets)
    return life_cycle_run.fulfil_wish(cloud, cluster.id, wish, secrets, pace, terms)


def _known_wish(cluster: Cluster, given_wish: ClusterWish | None) -> ClusterWish:
    _refuse_unreadable(cluster)
    if cluster.wish is not None:
        if given_wish is not None and given_wish.digest != cluster.wish.digest:
            raise ClusterError(
                f"cluster {cluster.name} was created with other options; "
                "give none but those that no record gives back (--user-data, --volume)"
            )
        return cluster.wish
    label = cluster.group.label if cluster.group else None
    if label is None:
        raise ClusterError(f"no record says what cluster {cluster.name} was to be: delete it")
    if given_wish is None:
        raise ClusterError(
            f"cluster {cluster.name} has no member yet, and its description is too long for the "
            "name of its server group: give the options of create again, or delete it"
        )
    wish = attrs.evolve(given_wish, members=label.members)
    if wish.digest != label.digest:
        raise ClusterError(
            f"these are not the options with which cluster {cluster.name} was created"
        )
    return wish


def scale_cluster(
    cloud: ClusterCloud, cluster: Cluster, members: Collection[int], secrets: Secrets, pace: Pace
) -> Cluster:
    """Grow or shrink a cluster. A grown cluster runs in the end, or gets its old members back.

    :param members: numbers of the members that it should have.
    :raises ClusterError: nothing has changed, or the text describes the state.
    """
    before = refuse_half(cluster)
    wish = decide.change_wish_members(before, members)
    more = wish.members - before.members
    if more and before.members - wish.members:
        raise ClusterError("a cluster grows or shrinks, not both at once")
    if not wish.members:
        raise ClusterError(f"a cluster has at least one member: delete {cluster.name} instead")
    if before.volumes == cluster_wish.UNKNOWN:
        _check_same_secrets(before, secrets)
    if before.volumes:
        raise ClusterError(
            "members of this cluster boot from volumes that were there before, one each: "
            "its size is that of their list"
        )
    _refuse_locked(cluster, number_members(cluster).present)
    if more:
        _check_same_secrets(before, secrets)
        _check_user_data(wish, secrets)
        _refuse_resting(cluster, number_members(cluster).present)
    before_members = number_members(cluster).by_number
    # A renamed member may have the number of a leaving one, so ids identify the leaving ones.
    gone = frozenset(
        member.id for number, member in before_members.items() if number not in wish.members
    )
    terms = Terms(rest=not more, leaves=gone)
    try:
        return life_cycle_run.fulfil_wish(cloud, cluster.id, wish, secrets, pace, terms)
    except ClusterError as error:
        if not more:
            raise
        back = attrs.evolve(before, generation=wish.generation + 1)
        with contextlib.suppress(ClusterCloudError):
            new = {server.id for server in cloud.look(cluster.id).members}
            gone = frozenset(new - {server.id for server in cluster.members})
        terms = Terms(rest=True, leaves=gone)
        try:
            life_cycle_run.fulfil_wish(
                cloud, cluster.id, back, secrets, attrs.evolve(pace, limit=0.0), terms
            )
        except ClusterError as second:
            raise ClusterError(f"{error}\nundoing it failed as well: {second}") from error
        raise ClusterError(
            f"{error}\nthe cluster has its {len(before.members)} members as before"
        ) from error


def replace_members(
    cloud: ClusterCloud,
    cluster: Cluster,
    which: Sequence[int],
    secrets: Secrets,
    pace: Pace,
    head: bool = False,
    leave: Collection[str] = (),
) -> Cluster:
    """Delete members and create them again, with their names and ports.

    The other members stay, and so does the place of the cluster on the fabric.

    :param which: numbers of the members to replace.
    :param head: replace the head, too.
    :param leave: ids of servers in error that are left as they are; others are an error in the end.
    :raises ClusterError: with the reason; ``create --resume`` can create a missing member later.
        Nothing has changed if a member that stays does not run. This check is left out if all
        members to replace have failed, because no other command helps these.
    """
    wish = _known_wish(cluster, None)
    _check_same_secrets(wish, secrets)
    numbered = number_members(cluster)
    if numbered.unclear:
        raise ClusterError(decide.explain_unclear(cluster, numbered, wish.members))
    unknown = set(which) - numbered.by_number.keys()
    if unknown:
        names = ", ".join(
            wishes.member_name(wish, member_number) for member_number in sorted(unknown)
        )
        raise ClusterError(f"cluster {cluster.name} has no member {names}")
    old = [numbered.by_number[member_number] for member_number in which]
    if head:
        if numbered.head is None:
            raise ClusterError(f"cluster {cluster.name} has no {wishes.head_name(cluster.name)}")
        old.append(numbered.head)
    if not all(member.failed for member in old):
        stay = [member for member in numbered.present if member not in old and not member.failed]
        _refuse_resting(cluster, stay)
    others = [server for server in cluster.servers if server not in old]
    if not others and not _label_has(cluster, wish):
        raise ClusterError(
            "these are all members, and only they know what the cluster is to be: "
            "replace some of them first"
        )
    if others and not any(server.wish == wish or server.status in CHANGEABLE for server in others):
        # The newest record would go with the old servers.
        raise ClusterError(
            f"{others[0].shown} is {others[0].state_text}, and Nova changes no metadata then: "
            f"{decide.format_replace_command(cluster, others[0])}; nothing has changed"
        )
    _check_user_data(wish, secrets)
    told = [server for server in numbered.present if wish.hosts or server.wish != wish]
    _refuse_locked(cluster, [*old, *(server for server in told if server not in old)])
    if wish.adopted:
        adoption.keep_ports(
            cloud, cluster, wish, {at: numbered.by_number[at].id for at in which}, pace
        )
    life_cycle_run.remove_members(cloud, cluster.id, old, pace, wish)
    bear = frozenset(server.id for server in cluster.servers if server.failed)
    terms = Terms(bear=bear, leave=frozenset(leave))
    try:
        return life_cycle_run.fulfil_wish(cloud, cluster.id, wish, secrets, pace, terms)
    except ClusterError as error:
        tail = f"{_format_cluster_command('create', '--resume', cluster.id)} tries it again"
        with contextlib.suppress(ClusterCloudError):
            if cloud.look(cluster.id).state in _RESTING:
                # The error's text contains the command that starts the others.
                tail = "the new members are there"
        raise ClusterError(f"{error}\n{tail}") from error


def _label_has(cluster: Cluster, wish: ClusterWish) -> bool:
    """Whether the server group's name is enough to create all members again."""
    label = cluster.group.label if cluster.group else None
    if label is None or label.wish is None:
        return False
    # A healer's claim and count may be lost with the last member.
    same = attrs.evolve(wish, turn="", healed=(), generation=label.wish.generation)
    return label.wish == (same if wish.turn_verb in ("", cluster_wish.HEAL) else wish)


def delete_cluster(cloud: ClusterCloud, cluster: Cluster, pace: Pace) -> None:
    """Delete a cluster: servers, ports, server group.

    The server group of an adopted cluster stays, and so do ports that the client did not make.

    :raises ClusterError: the group has servers of other owners, or a part cannot be deleted.
    """
    check_deletion(cluster)
    life_cycle_run.end_cluster(cloud, cluster.id, pace)


def check_deletion(cluster: Cluster) -> None:
    """Check that nothing prevents the deletion of a cluster.

    :raises ClusterError: the group has a server outside the cluster, or a server is locked.
    """
    _refuse_locked(cluster, [server for server in cluster.servers if not server.going])
    if cluster.strangers:
        names = ", ".join(map(printable_text, cluster.strangers))
        if cluster.adopted:
            raise ClusterError(
                f"servers in the group of cluster {cluster.name} were not adopted: {names}; "
                f"{_format_cluster_command('adopt', cluster.id)} takes them in, "
                f"{_format_cluster_command('adopt', '--undo', cluster.id)} lets all go"
            )
        raise ClusterError(
            f"servers are in the group of cluster {cluster.name} that are not the cluster's: "
            f"{names}; delete them first"
        )


def _format_cluster_command(*words: str) -> str:
    return shell_command("openstack", "hpc", "cluster", *words)


def _refuse_unreadable(cluster: Cluster) -> None:
    if cluster.state in (ClusterState.UNKNOWN, ClusterState.NO_GROUP):
        if cluster.adopted:
            command = decide.format_finish_commands(cluster)
            raise ClusterError(f"cluster {cluster.name}: {cluster.reason}; first {command}")
        raise ClusterError(f"cluster {cluster.name}: {cluster.reason}; it can only be deleted")


def refuse_half(cluster: Cluster) -> ClusterWish:
    """Return the ``ClusterWish`` of a complete cluster, and refuse any other.

    :raises ClusterError: the cluster is incomplete or building, with the command that finishes it;
        or it is unreadable, with the reason.
    """
    _refuse_unreadable(cluster)
    if cluster.wish is None or cluster.state in (ClusterState.INCOMPLETE, ClusterState.BUILDING):
        raise ClusterError(
            f"cluster {cluster.name} is {cluster.state.value}: {cluster.reason}; first "
            f"{decide.format_finish_commands(cluster)}"
        )
    return cluster.wish


def _refuse_resting(cluster: Cluster, members: Collection[ClusterMember]) -> None:
    """Check that the members that stay run, so that the whole cluster can run afterwards.

    :param members: the members that stay.
    :raises ClusterError: one does not run; the text contains the command that helps.
    """
    move = decide.plan_running(cluster, members)
    if isinstance(move, Stuck):
        raise ClusterError(f"{move.reason}; nothing has changed")


def _refuse_locked(cluster: Cluster, members: Collection[ClusterMember]) -> None:
    """Check that none of these members is locked.

    :raises ClusterError: one is; the text contains the command that unlocks it.
    """
    locked = decide.explain_locks(cluster, members)
    if locked:
        raise ClusterError(f"{locked}; nothing has changed")


def _check_user_data(wish: ClusterWish, secrets: Secrets) -> None:
    """Check that Nova accepts the user data of new members, before an old one is deleted.

    :raises ClusterError: the user data is too long.
    """
    try:
        wishes.build_user_data(wish, secrets)
    except UserDataError as error:
        raise ClusterError(f"{error}; nothing has changed") from error


def _check_same_secrets(wish: ClusterWish, secrets: Secrets) -> None:
    try:
        wishes.check_wish_secrets(wish, secrets)
    except WishError as error:
        raise ClusterError(str(error)) from error
