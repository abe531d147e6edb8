# SPDX-License-Identifier: Apache-2.0
"""Why Placement has no candidate at all: the wishes that no host meets together. Data only.

Placement answers whether there are candidates, and never why not. Here is which hosts meet
each single wish of a request. A set of wishes that no host meets, and of which each is needed
for that, is the cause: a sentence that names it is true, and names nothing that is in nobody's
way. :mod:`nova_hpc.placement.user_reasons` makes the sentence for users of the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import attrs

from nova_hpc.placement.withheld import free_of


class Sign(enum.IntEnum):
    """What a wish is about. Of two that would do, the later is named as the cause."""

    GROUP = 0  # resources of a request group of its own: of a port, of the flavor
    AMOUNT = 1  # CPUs, memory, disk
    TRAIT = 2  # a trait that the host has to have
    BANNED = 3  # one that it must not have
    CLOSED = 4  # its nova-compute is disabled
    RULE = 5  # the operator keeps it for others: aggregates
    ZONE = 6  # it is in the availability zone
    HOST = 7  # it is the host that was asked for
    DEVICES = 8


class Source(enum.Enum):
    """Who wants a trait."""

    FLAVOR = "flavor"
    IMAGE = "image"
    #: ``hw:cpu_thread_policy``, or the image's.
    THREADS = "threads"
    #: Nova itself, for something that flavor or image ask for.
    NOVA = "nova"


@attrs.frozen
class Wish:
    """One of the things that a host has to meet."""

    sign: Sign
    #: An alias, a resource class, a trait, a zone.
    name: str
    #: Hosts that meet it; with *inverted*, the only ones that do not.
    hosts: frozenset[str]
    inverted: bool = False
    #: Of devices and resources.
    amount: int = 0
    #: Devices: the resource class.
    resource_class: str = ""
    source: Source = Source.NOVA
    #: Of devices: the aliases that ask for them; *name* is made of these.
    aliases: tuple[str, ...] = ()
    #: Host -> so many of the devices are free.
    free: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def met(self, host: str) -> bool:
        """Whether a host meets it."""
        return (host in self.hosts) is not self.inverted

    @property
    def by_nova(self) -> bool:
        """Whether Nova adds it to requests by itself."""
        traits = (Sign.TRAIT, Sign.BANNED, Sign.CLOSED)
        return self.sign in traits and self.source is Source.NOVA

    def __str__(self) -> str:
        """As operators read it: ``4 gpu (CUSTOM_HPC_GPU)``, ``8 PCPU``, ``no trait X``."""
        if self.sign is Sign.DEVICES:
            return f"{self.amount} {self.name} ({self.resource_class})"
        if self.amount:
            return f"{self.amount} {self.name}"
        return f"{_WORDS.get(self.sign, '')}{self.name}"


_WORDS = {
    Sign.TRAIT: "trait ",
    Sign.BANNED: "no trait ",
    Sign.CLOSED: "no trait ",
    Sign.RULE: "one of the aggregates ",
    Sign.ZONE: "availability zone ",
    Sign.HOST: "host ",
}


@attrs.frozen
class Shortage:
    """What was asked of Placement, and which hosts meet it."""

    wishes: tuple[Wish, ...]
    #: No two groups may come from one provider.
    isolated: bool = False

    @property
    def devices(self) -> tuple[Wish, ...]:
        """The wishes for devices."""
        return tuple(wish for wish in self.wishes if wish.sign is Sign.DEVICES)

    @property
    def fitting(self) -> frozenset[str]:
        """Hosts that meet every single wish."""
        return meeting(self.wishes) or frozenset()

    @property
    def causes(self) -> tuple[tuple[Wish, ...], ...]:
        """Sets of wishes that no host meets together; () where each host lacks nothing.

        No wish of a set can be left out of it, and none is in two. Where there are several
        sets, no change of one wish alone helps.
        """
        left = sorted(self.wishes, key=lambda wish: wish.sign)
        found = []
        while meeting(left) == frozenset():
            cause = list(left)
            for wish in left:
                others = [each for each in cause if each is not wish]
                if meeting(others) == frozenset():
                    cause = others
            found.append(tuple(cause))
            left = [wish for wish in left if not any(wish is each for each in cause)]
        return tuple(found)

    @property
    def nearest(self) -> str | None:
        """The host that lacks least; of two the one with more devices. None: there is none.

        Where one was asked for, that one.
        """
        for wish in self.wishes:
            if wish.sign is Sign.HOST:
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

    def lacking(self, host: str) -> tuple[Wish, ...]:
        """The wishes that a host does not meet."""
        return tuple(wish for wish in self.wishes if not wish.met(host))

    def helps(self, wish: Wish) -> bool:
        """Whether a change of this wish alone could be enough, by what is free now."""
        others = [each for each in self.wishes if each is not wish]
        if wish.sign is Sign.DEVICES:
            return any(all(each.met(host) for each in others) for host in wish.free)
        return meeting(others) != frozenset()

    def asked(self) -> str:
        """E.g. ``4 gpu (CUSTOM_HPC_GPU), 8 PCPU, 4096 MEMORY_MB``."""
        wishes = [wish for wish in self.wishes if not wish.by_nova]
        return ", ".join(map(str, sorted(wishes, key=lambda wish: -wish.sign)))

    def have(self) -> str:
        """E.g. ``5 gpu on 3 hosts``."""
        parts = []
        for wish in self.devices:
            total, hosts = sum(wish.free.values()), len(wish.free)
            where = f" on {hosts} host{'s'[: hosts != 1]}" * bool(hosts)
            parts.append(f"{total} {wish.name}{where}")
        return ", ".join(parts) or "no devices"

    def short_of(self, host: str, counted: Mapping[str, int]) -> str:
        """Of which devices a host has too few: ``7 of 8 gpu, one is withheld``; "": of none.

        :param counted: alias -> how many that would serve it the host's node withholds.
        """
        short = [wish for wish in self.lacking(host) if wish.sign is Sign.DEVICES]
        # A wish of several aliases of one kind has the devices of each.
        counts = {wish.name: counted.get(wish.aliases[0], 0) for wish in short if wish.aliases}
        lacks = [(wish.name, wish.free.get(host, 0), wish.amount) for wish in short]
        return free_of(lacks, counts)

    def why(
        self,
        name: str,
        withheld: Mapping[str, str] | None = None,
        counted: Mapping[str, int] | None = None,
    ) -> str:
        """What operators read of the cause.

        :param name: what the nearest host is called.
        :param withheld: PCI address -> why that host's node does not give it.
        :param counted: as of :meth:`short_of`.
        """
        host = self.nearest
        if host is None:
            return "no host has any of these devices free"
        causes = self.causes
        text = "; ".join(
            f"no host has {', '.join(map(str, each[::-1]))}{' together' * (len(each) > 1)}"
            for each in causes
        )
        if not causes:
            return (
                f"{name} has each of these: look at what its providers have one by one, at the "
                f"resources of ports and at group_policy{' isolate' * self.isolated}"
            )
        lacks = self.lacking(host)
        short = self.short_of(host, counted or {})
        text += f"; the nearest is {name}"
        if short:
            text += f" with {short}"
        others = [wish for wish in lacks if wish.sign is not Sign.DEVICES]
        missing = [str(wish) for wish in others if not wish.inverted]
        texts = [f"not {', '.join(missing)}"] if missing else []
        texts += [f"is not one with {wish}" for wish in others if wish.inverted]
        if texts:
            text += f", {'and' if short else 'which has the devices, but'} {', '.join(texts)}"
        return text + _withheld(withheld or {}, bool(counted))


def _withheld(withheld: Mapping[str, str], counted: bool) -> str:
    if not withheld:
        return ""
    shown = [f"{address} ({why})" for address, why in sorted(withheld.items())][:4]
    if counted:
        more = f", and {len(withheld) - len(shown)} more" * (len(withheld) > len(shown))
        return f"; withheld by the node: {', '.join(shown)}{more}"
    verb = "is" if len(withheld) == 1 else "are"
    return f", {len(withheld)} {verb} withheld by the node: {', '.join(shown)}"


def meeting(wishes: Iterable[Wish]) -> frozenset[str] | None:
    """The hosts that meet all of these; None: any host but some."""
    listed: Sequence[Wish] = tuple(wishes)
    found: frozenset[str] | None = None
    for wish in listed:
        if not wish.inverted:
            found = wish.hosts if found is None else found & wish.hosts
    if found is None:
        return None
    for wish in listed:
        if wish.inverted:
            found -= wish.hosts
    return found
