# SPDX-License-Identifier: Apache-2.0
"""Why Placement has no candidate: the wishes that no host meets together. Data only.

Placement answers whether there are candidates, but never why there are none. This module
has, for each single wish of a request, the hosts that meet it. The cause is a set of wishes
that no host meets together, and each of them is needed for that. So a sentence that names the
cause is true, and names no wish that is met. :mod:`nova_hpc.placement.user_reasons` makes the
sentence for users from the same data.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import attrs

from nova_hpc.placement.withheld import format_free_of_short


class WishSign(enum.IntEnum):
    """The kind of a requirement in a request to Placement. Of two possible causes a message names
    the later kind.
    """

    GROUP = 0  # resources of a request group of its own: of a port, of the flavor
    AMOUNT = 1  # CPUs, memory, disk
    TRAIT = 2  # a trait that the host must have
    BANNED = 3  # a trait that the host must not have
    CLOSED = 4  # its nova-compute is disabled
    RULE = 5  # the operator reserves it for others: aggregates
    ZONE = 6  # it is in the availability zone
    HOST = 7  # it is the requested host
    DEVICES = 8


class WishSource(enum.Enum):
    """The origin of a required trait: the flavor, the image, the threads policy or Nova itself."""

    FLAVOR = "flavor"
    IMAGE = "image"
    #: ``hw:cpu_thread_policy``, or the image's property.
    THREADS = "threads"
    #: Nova itself, for a setting of the flavor or the image.
    NOVA = "nova"


@attrs.frozen
class HostWish:
    """One requirement of a request to Placement, with the hosts that meet it."""

    sign: WishSign
    #: An alias, a resource class, a trait, a zone.
    name: str
    #: Hosts that meet it; with *inverted*, the only ones that do not.
    hosts: frozenset[str]
    inverted: bool = False
    #: Number of devices, or amount of a resource.
    amount: int = 0
    #: Devices: the resource class.
    resource_class: str = ""
    source: WishSource = WishSource.NOVA
    #: For devices: the aliases that request them; *name* is made of these.
    aliases: tuple[str, ...] = ()
    #: Host -> number of free devices.
    free: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def met(self, host: str) -> bool:
        """Return whether *host* (UUID of its root provider) meets this requirement."""
        return (host in self.hosts) is not self.inverted

    @property
    def by_nova(self) -> bool:
        """Whether Nova itself adds this requirement to its requests, for example a status trait."""
        traits = (WishSign.TRAIT, WishSign.BANNED, WishSign.CLOSED)
        return self.sign in traits and self.source is WishSource.NOVA

    def __str__(self) -> str:
        """Text for operators: ``4 gpu (CUSTOM_HPC_GPU)``, ``8 PCPU``, ``no trait X``."""
        if self.sign is WishSign.DEVICES:
            return f"{self.amount} {self.name} ({self.resource_class})"
        if self.amount:
            return f"{self.amount} {self.name}"
        return f"{_WORDS.get(self.sign, '')}{self.name}"


_WORDS = {
    WishSign.TRAIT: "trait ",
    WishSign.BANNED: "no trait ",
    WishSign.CLOSED: "no trait ",
    WishSign.RULE: "one of the aggregates ",
    WishSign.ZONE: "availability zone ",
    WishSign.HOST: "host ",
}


@attrs.frozen
class Shortage:
    """A request that has no candidate in Placement: its requirements, and the hosts for each."""

    wishes: tuple[HostWish, ...]
    #: No two groups may come from one provider.
    isolated: bool = False

    @property
    def devices(self) -> tuple[HostWish, ...]:
        """The requirements for devices, one for each alias of the flavor."""
        return tuple(wish for wish in self.wishes if wish.sign is WishSign.DEVICES)

    @property
    def fitting(self) -> frozenset[str]:
        """Hosts that meet each requirement by itself; together they may still not fit."""
        return hosts_meeting_all(self.wishes) or frozenset()

    @property
    def causes(self) -> tuple[tuple[HostWish, ...], ...]:
        """Sets of requirements that no host meets together; () if some host lacks nothing.

        Each set is minimal, and no requirement is in two sets. If there are several sets, no change
        of a single requirement helps.
        """
        left = sorted(self.wishes, key=lambda wish: wish.sign)
        causes = []
        while hosts_meeting_all(left) == frozenset():
            cause = list(left)
            for wish in left:
                others = [other_wish for other_wish in cause if other_wish is not wish]
                if hosts_meeting_all(others) == frozenset():
                    cause = others
            causes.append(tuple(cause))
            left = [wish for wish in left if not any(wish is member for member in cause)]
        return tuple(causes)

    @property
    def nearest(self) -> str | None:
        """Name of the host that misses fewest requirements; None if there is no host.

        Of equal hosts it is the one with more devices. If the request names a host, it is that one.
        """
        for wish in self.wishes:
            if wish.sign is WishSign.HOST:
                return min(wish.hosts, default=None)
        hosts = {host for wish in self.wishes if not wish.inverted for host in wish.hosts}
        hosts |= {host for wish in self.devices for host in wish.free}
        return max(
            sorted(hosts),
            key=lambda host: (
                any(wish.free.get(host) for wish in self.devices),
                -len(self.lacking(host)),
                sum(min(wish.free.get(host, 0), wish.amount) for wish in self.devices),
            ),
            default=None,
        )

    def lacking(self, host: str) -> tuple[HostWish, ...]:
        """Return the requirements that *host* does not meet."""
        return tuple(wish for wish in self.wishes if not wish.met(host))

    def helps(self, wish: HostWish) -> bool:
        """Whether a change of only *wish* could be enough, by the present free devices."""
        others = [other_wish for other_wish in self.wishes if other_wish is not wish]
        if wish.sign is WishSign.DEVICES:
            return any(all(other_wish.met(host) for other_wish in others) for host in wish.free)
        return hosts_meeting_all(others) != frozenset()

    def asked(self) -> str:
        """Format the requirements, such as ``4 gpu (CUSTOM_HPC_GPU), 8 PCPU, 4096 MEMORY_MB``."""
        wishes = [wish for wish in self.wishes if not wish.by_nova]
        return ", ".join(map(str, sorted(wishes, key=lambda wish: -wish.sign)))

    def have(self) -> str:
        """Format the free devices of all hosts as a text, such as ``5 gpu on 3 hosts``."""
        parts = []
        for wish in self.devices:
            total, hosts = sum(wish.free.values()), len(wish.free)
            where = f" on {hosts} host{'s'[: hosts != 1]}" * bool(hosts)
            parts.append(f"{total} {wish.name}{where}")
        return ", ".join(parts) or "no devices"

    def short_of(self, host: str, counted: Mapping[str, int]) -> str:
        """Format the devices that a host lacks: ``7 of 8 gpu, one is withheld``; "" if none.

        :param counted: alias -> number of suitable devices that the host's node withholds.
        """
        short = [wish for wish in self.lacking(host) if wish.sign is WishSign.DEVICES]
        # A wish of several aliases of one kind counts the devices of each.
        counts = {wish.name: counted.get(wish.aliases[0], 0) for wish in short if wish.aliases}
        lacks = [(wish.name, wish.free.get(host, 0), wish.amount) for wish in short]
        return format_free_of_short(lacks, counts)

    def why(
        self,
        name: str,
        withheld: Mapping[str, str] | None = None,
        counted: Mapping[str, int] | None = None,
    ) -> str:
        """Return the reason why Placement has no candidate, as a text for operators.

        :param name: the name of the nearest host for the text.
        :param withheld: PCI address -> why that host's node does not offer it.
        :param counted: as for :meth:`short_of`.
        """
        host = self.nearest
        if host is None:
            return "no host has any of these devices free"
        causes = self.causes
        text = "; ".join(
            f"no host has {', '.join(map(str, cause[::-1]))}{' together' * (len(cause) > 1)}"
            for cause in causes
        )
        if not causes:
            return (
                f"{name} has each of these: check its providers one by one, the resources of "
                f"ports and group_policy{' isolate' * self.isolated}"
            )
        lacks = self.lacking(host)
        short = self.short_of(host, counted or {})
        text += f"; the nearest is {name}"
        if short:
            text += f" with {short}"
        others = [wish for wish in lacks if wish.sign is not WishSign.DEVICES]
        missing = [str(wish) for wish in others if not wish.inverted]
        texts = [f"not {', '.join(missing)}"] if missing else []
        texts += [f"is not one with {wish}" for wish in others if wish.inverted]
        if texts:
            text += f", {'and' if short else 'which has the devices, but'} {', '.join(texts)}"
        return text + _describe_withheld(withheld or {}, bool(counted))


def _describe_withheld(withheld: Mapping[str, str], counted: bool) -> str:
    if not withheld:
        return ""
    shown = [f"{address} ({reason})" for address, reason in sorted(withheld.items())][:4]
    if counted:
        more = f", and {len(withheld) - len(shown)} more" * (len(withheld) > len(shown))
        return f"; withheld by the node: {', '.join(shown)}{more}"
    verb = "is" if len(withheld) == 1 else "are"
    return f", {len(withheld)} {verb} withheld by the node: {', '.join(shown)}"


def hosts_meeting_all(wishes: Iterable[HostWish]) -> frozenset[str] | None:
    """Return the hosts that meet all of *wishes*.

    None if every requirement only excludes hosts, so that the set has no upper bound.
    """
    listed: Sequence[HostWish] = tuple(wishes)
    hosts: frozenset[str] | None = None
    for wish in listed:
        if not wish.inverted:
            hosts = wish.hosts if hosts is None else hosts & wish.hosts
    if hosts is None:
        return None
    for wish in listed:
        if wish.inverted:
            hosts -= wish.hosts
    return hosts
