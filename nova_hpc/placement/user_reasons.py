# SPDX-License-Identifier: Apache-2.0
"""The reason for the user of a refused server: the unmet requirement, and possible remedies.

Nova's scheduler keeps the reason from users on purpose ("we don't want to give away too
much information about our actual environment", scheduler/manager.py:538-540 of release
34). These sentences repeat the request of the flavor and name the requirement that no host
meets. They do not contain how much there is, or where.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.placement.flavor import (
    AFFINITY,
    AFFINITY_POLICY,
    GROUP,
    GUEST_TOPOLOGY,
    NUMA_POLICY,
    NVLINK,
    is_numa_policy_compatible,
    numa_policies,
)
from nova_hpc.placement.group_isolation import GROUP_POLICY
from nova_hpc.placement.model import DeviceMiss, Request, Unmet, Want
from nova_hpc.placement.shortage import HostWish, Shortage, WishSign, WishSource
from nova_hpc.placement.solver.operator_reasons import PLACES
from nova_hpc_common.level import AffinityPolicy, Level

#: The next level that differs for most hosts.
_WIDER: Final = {
    Level.SWITCH: Level.NUMA,
    Level.ROOT: Level.NUMA,
    Level.NUMA: Level.SOCKET,
    Level.SOCKET: Level.HOST,
}


#: The sentence if no host can be searched for devices.
UNUSABLE: Final = (
    "No host with such devices can be used at this moment; contact the cloud's operator"
)


def nearest_unmet_wish(misses: Iterable[DeviceMiss]) -> Unmet:
    """Return the requirement that the nearest of the hosts does not meet.

    Later members of :class:`Unmet` are nearer misses.
    """
    return max((miss.unmet for miss in misses), default=Unmet.OTHER)


@attrs.frozen
class AskedHosts:
    """The set of hosts that a refusal is about, for the subject of its sentence."""

    #: Some cannot be used, whatever their devices.
    unusable: bool = False
    #: Placement's limit cut its answer off: there may be more hosts.
    cut: bool = False
    #: The server may not go to some: its own host, or one that was already tried.
    left_out: bool = False

    def subject(self, qualities: str = "") -> str:
        """Return the beginning of a refusal: ``No host``, or the words for a limited set of hosts.

        :param qualities: e.g. `` with 4 gpu free``.
        """
        usable = " that can be used" if self.unusable else ""
        but = " but its own or one already tried" if self.left_out else ""
        if self.cut:
            return f"None of the hosts looked at{but}{qualities}{usable}"
        return f"No host{but}{qualities}{usable}"


#: Every host in the cloud.
ALL: Final = AskedHosts()


def refusal_sentence(request: Request, unmet: Unmet, asked: AskedHosts = ALL) -> str:
    """Return the refusal for the user if hosts were searched and none fits.

    E.g. ``No host has 4 gpu under one switch; hpc:affinity numa may help``.
    """
    if unmet is Unmet.OTHER:
        return UNUSABLE
    cure = f"{' or '.join(_list_cures(request, unmet))} may help"
    if unmet is Unmet.KNOWN:
        devices = _describe_devices(request.wants)
        says = asked.subject(f" with {devices} free")
        return f"{says} reports on which NUMA node they are; {cure}"
    return f"{asked.subject()} has {_describe_unmet_wish(request, unmet)}; {cure}"


def explain_unplaced(shortage: Shortage | None, wants: Iterable[Want]) -> str:
    """Return the refusal for the user if Placement has no host with everything that is requested.

    It names wishes that no host meets together, and no other.

    :param shortage: None if Placement's data could not be read.
    """
    devices = _describe_devices(wants)
    if shortage is None:
        return (
            f"No host has {devices} free together with everything else that is requested{_OPERATOR}"
        )
    causes = shortage.causes
    if not causes and shortage.isolated:
        return (
            f"No host has {devices} free and everything else that is requested, each from a "
            f"device of its own; {GROUP_POLICY} none may help"
        )
    if not causes:
        return (
            f"No host has {devices} free and everything else that is requested at once{_OPERATOR}"
        )
    text = "; ".join(map(_describe_cause, causes))
    if len(causes) > 1:
        # No change of a single wish helps.
        return text
    helping = [wish for wish in sorted(causes[0], key=_sort_key_of_wish) if shortage.helps(wish)]
    cures = dict.fromkeys(cure for wish in helping if (cure := _cure_for_wish(wish)))
    return f"{text}; {' or '.join([*cures][:3])} may help" if cures else f"{text}{_OPERATOR}"


def explain_all_left_out(wants: Iterable[Want]) -> str:
    """Return the refusal for the user if Placement has only hosts that the server may not go to."""
    asked = AskedHosts(left_out=True).subject()
    return (
        f"{asked} has {_describe_devices(wants)} free together with everything else that is "
        f"requested{_OPERATOR}"
    )


def explain_other_rules(wants: Iterable[Want]) -> str:
    """Return the refusal for the user if devices are free, but another filter leaves no host."""
    return (
        f"The cloud's other rules (state of the hosts, server group, image) leave no host with "
        f"{_describe_devices(wants)} for it{_OPERATOR}"
    )


_OPERATOR: Final = "; contact the cloud's operator"

#: Resource class -> a user's words for an amount of it, and for less of it.
_RESOURCES: Final = {
    "VCPU": ("{} CPUs", "fewer CPUs"),
    "PCPU": ("{} dedicated CPUs", "fewer CPUs"),
    "MEMORY_MB": ("{} MiB of memory", "less memory"),
    "DISK_GB": ("{} GiB of disk", "less disk"),
}


def _sort_key_of_wish(wish: HostWish) -> int:
    return -wish.sign


def _describe_cause(cause: Iterable[HostWish]) -> str:
    """Describe a set of wishes that no host meets together.

    E.g. ``No host in availability zone az2 has 4 gpu and 8 CPUs free``.
    """
    wishes = sorted(cause, key=_sort_key_of_wish)
    things = [_describe_amount(wish) for wish in wishes if wish.sign in _THINGS]
    rest = [wish for wish in wishes if wish.sign not in _THINGS]
    joined = " and ".join([", ".join(things[:-1]), things[-1]] if things[1:] else things)
    barring = [wish for wish in rest if wish.inverted or wish.sign is WishSign.RULE]
    if things and not barring:
        predicate = f"has {joined} free{' together' * (len(things) > 1)}"
    else:
        # The barring wish is the cause, and the other qualities of the hosts are not.
        last = barring[-1] if barring else rest[-1]
        rest.remove(last)
        predicate = _predicate_of_wish(last)
    with_things = f" with {joined} free" * bool(things and barring)
    return f"No host{''.join(map(_quality_of_hosts, rest))}{with_things} {predicate}"


_THINGS: Final = (WishSign.DEVICES, WishSign.AMOUNT, WishSign.GROUP)


def _describe_amount(wish: HostWish) -> str:
    if wish.name in _RESOURCES:
        return _RESOURCES[wish.name][0].format(wish.amount)
    return f"{wish.amount} {wish.name}" if wish.amount else wish.name


def _quality_of_hosts(wish: HostWish) -> str:
    """Return the words after ``host`` that describe a required or forbidden trait, rule or zone."""
    if wish.source is WishSource.THREADS:
        return f" {'without' if wish.inverted else 'with'} hyper-threads"
    return {
        WishSign.TRAIT: f" with trait {wish.name}",
        WishSign.BANNED: f" without trait {wish.name}",
        WishSign.CLOSED: " in service",
        WishSign.RULE: " that this project and flavor may use",
        WishSign.ZONE: f" of availability zone {wish.name}",
        WishSign.HOST: " that was requested",
    }[wish.sign]


def _predicate_of_wish(wish: HostWish) -> str:
    """Return the words after ``No host`` for a wish that is the only cause."""
    if wish.source is WishSource.THREADS:
        policy = "isolate" if wish.inverted else "require"
        threads = "no hyper-threads" if wish.inverted else "hyper-threads"
        return f"has {threads}, for hw:cpu_thread_policy {policy}"
    if wish.sign is WishSign.TRAIT:
        return f"has trait {wish.name}, which {_WHO[wish.source]}"
    if wish.sign is WishSign.BANNED:
        return f"is without trait {wish.name}, which the request forbids"
    return {
        WishSign.CLOSED: "is in service",
        WishSign.RULE: "may be used by this project and flavor",
        WishSign.ZONE: f"is in availability zone {wish.name}",
        WishSign.HOST: "is the one that was requested",
    }[wish.sign]


_WHO: Final = {
    WishSource.FLAVOR: "the flavor requires",
    WishSource.IMAGE: "the image requires",
    WishSource.NOVA: "Nova requires for this flavor and image",
}


def _cure_for_wish(wish: HostWish) -> str | None:
    """Return a request that the user can make instead; None if only the operator can help."""
    if wish.sign is WishSign.DEVICES:
        return "fewer devices"
    if wish.sign is WishSign.AMOUNT:
        return _RESOURCES.get(wish.name, ("", f"less {wish.name}"))[1]
    if wish.source is WishSource.THREADS:
        return "hw:cpu_thread_policy prefer"
    if wish.sign is WishSign.TRAIT:
        # Nova adds some traits for settings that only the operator can identify.
        return {
            WishSource.FLAVOR: "a flavor without that trait",
            WishSource.IMAGE: "an image without that trait",
        }.get(wish.source)
    if wish.sign is WishSign.BANNED:
        return "a flavor that allows that trait"
    return {WishSign.ZONE: "another zone", WishSign.HOST: "another host"}.get(wish.sign)


def _describe_unmet_wish(request: Request, unmet: Unmet) -> str:
    if unmet is Unmet.DEVICES:
        return f"{_describe_devices(request.wants)} free"
    names = {want.key: want.name for want in request.wants}
    counts: dict[str, int] = {}
    for key, count in request.groups[0].counts.items():
        counts[names[key]] = counts.get(names[key], 0) + count
    # A flavor without devices has groups that consist of ports.
    text = " and ".join(f"{count} {name}" for name, count in counts.items()) or "room"
    several = len(request.groups) > 1
    if several:
        text = f"{len(request.groups)} groups of {text}"
    level = request.level if request.policy is AffinityPolicy.REQUIRED else Level.HOST
    if request.on_cells:
        level = min(level, Level.NUMA)
    text += f", each {PLACES[level]}" if several else f" {PLACES[level]}"
    if unmet is Unmet.PORTS:
        text += " with an adapter's function for each of its ports"
    if unmet is Unmet.NVLINK:
        text += f", {'each ' if several else ''}a whole NVLink set"
    if unmet is Unmet.BESIDE:
        pages = " pages" if any(cell.page_kib for cell in request.cells) else ""
        text += f"{',' if several else ''} beside free CPUs and memory{pages}"
    return text


def _describe_devices(wants: Iterable[Want]) -> str:
    totals: dict[str, int] = {}
    for want in wants:
        totals[want.name] = totals.get(want.name, 0) + want.count
    return " and ".join(f"{count} {name}" for name, count in totals.items())


def _list_cures(request: Request, unmet: Unmet) -> list[str]:
    """List requests that the user can make instead, the least change first."""
    if unmet is Unmet.DEVICES:
        return ["fewer devices", *([f"{GROUP_POLICY} none"] if request.apart else [])]
    cures = [f"{GROUP_POLICY} none"] if request.apart else []
    if unmet is Unmet.KNOWN:
        # A wider level is not met either, as long as the places of the devices are unknown.
        return [_cure_with_preferred(request), *cures]
    if unmet is Unmet.NVLINK:
        cures.append(f"{NVLINK} preferred")
    if request.policy is AffinityPolicy.REQUIRED and request.level in _WIDER:
        wider = _WIDER[request.level]
        cures.append(_cure_with_change(request, f"{AFFINITY} {wider.word}", wider, request.policy))
        cures.append(_cure_with_preferred(request))
    elif request.on_cells:
        cures.append(f"{NUMA_POLICY} preferred")
    if unmet is Unmet.TOGETHER and len(request.groups) == 1 and request.groups[0].size > 1:
        cures.append(f"smaller groups ({GROUP})")
    if unmet is Unmet.BESIDE:
        cures.append("fewer CPUs")
    return cures[:3] or ["fewer devices"]


def _cure_with_preferred(request: Request) -> str:
    return _cure_with_change(
        request, f"{AFFINITY_POLICY} preferred", request.level, AffinityPolicy.PREFERRED
    )


def _cure_with_change(request: Request, change: str, level: Level, policy: AffinityPolicy) -> str:
    """Return the change of one key, with the changes of other keys that it then needs."""
    more = []
    effective = request.numa_policy
    if effective is not None and not is_numa_policy_compatible(
        level, policy, effective, bool(request.cells)
    ):
        more.append(f"{NUMA_POLICY} {numa_policies(level, policy)[0][0]}")
    off_cells = policy is AffinityPolicy.PREFERRED or level > Level.NUMA
    if request.mirror and request.cells and off_cells:
        more.append(f"{GUEST_TOPOLOGY} numa")
    return f"{change} with {' and '.join(more)}" if more else change
