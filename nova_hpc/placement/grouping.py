# SPDX-License-Identifier: Apache-2.0
"""``hpc:group``: which devices belong together.

``gpu:1,vf:1`` puts one GPU and one virtual function together; a server with four of each
then has four such groups. The value names every alias of the flavor, and the groups use up
the devices exactly.

Neutron's direct ports belong to the server and not to the flavor. The word ``port``, or the
role of their networks, sets the maximum of them in one group. Without it they are dealt
evenly, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import MAX_COUNT, DeviceGroup, Ports, Want
from nova_hpc.placement.solver.demand import MAX_NAMES

GROUP: Final = "hpc:group"

#: The word of ``hpc:group`` for Neutron's direct ports.
PORT: Final = "port"


class FlavorError(ValueError):
    """A flavor cannot be used: its keys contradict each other or the devices.

    The text is for the flavor's user.
    """


class UnknownNameError(FlavorError):
    """``hpc:group`` contains an unknown name, which may be a role.

    No device with that role is known at this moment, so the answer may change.
    """


def parse_group_terms(value: str) -> dict[str, int]:
    """Parse a value of ``hpc:group``: ``name:count,name:count``.

    :returns: name -> its devices in one group, in the order of the text
    :raises FlavorError: names the wrong term
    """
    terms: dict[str, int] = {}
    if not value.strip():
        raise FlavorError(f"{GROUP} is empty; write name:count,name:count, or leave it out")
    for term in value.split(","):
        name, colon, count = (part.strip() for part in term.partition(":"))
        if not colon or not name or ":" in count:
            raise FlavorError(
                f"{GROUP} has the term {quote_value(term)}; each must be name:count, e.g. gpu:1"
            )
        # isdigit() also accepts the digits of other scripts, like int().
        if (
            not (count.isascii() and count.isdigit())
            or not 1 <= _small_number_of(count) <= MAX_COUNT
        ):
            raise FlavorError(
                f"{GROUP} requests {quote_value(count)} of {quote_value(name)}; the count must "
                f"be 1 to {MAX_COUNT}"
            )
        if name in terms:
            raise FlavorError(f"{GROUP} names {quote_value(name)} twice; add the counts up")
        terms[name] = int(count)
    return terms


def takes_ports(value: str | None) -> bool:
    """Whether the value of ``hpc:group`` contains the word ``port`` for direct ports."""
    return value is not None and PORT in (
        term.partition(":")[0].strip() for term in value.split(",")
    )


def check_wants(wants: Sequence[Want]) -> None:
    """Refuse device counts, and numbers of aliases, that no host could have.

    :raises FlavorError: a count or the number of aliases is out of range.
    """
    totals = _total_counts_of(wants)
    for want in wants:
        if not 1 <= want.count <= MAX_COUNT:
            raise FlavorError(
                f"pci_passthrough:alias requests {quote_value(str(want.count))} of "
                f"{quote_value(want.name)}; the count must be 1 to {MAX_COUNT}"
            )
    for name, total in totals.items():
        if total > MAX_COUNT:
            raise FlavorError(
                f"pci_passthrough:alias requests {total} of {quote_value(name)} altogether; at "
                f"most {MAX_COUNT} are possible"
            )
    if len(totals) > MAX_NAMES:
        raise FlavorError(
            f"pci_passthrough:alias names {len(totals)} different aliases; with hpc: keys at "
            f"most {MAX_NAMES} are supported"
        )


@attrs.frozen
class GroupWords:
    """The parsed value of ``hpc:group``, with the terms for direct ports kept apart.

    For example, ``gpu:1,vf:2,port:1`` has two terms for devices and one for ports.
    """

    #: For the flavor's devices: name -> count; None if the value names none.
    devices: Mapping[str, int] | None
    #: For ports: word -> maximum of them in one group.
    ports: Mapping[str, int]

    @classmethod
    def of(
        cls,
        value: str | None,
        wants: Sequence[Want],
        roles: Mapping[str, str],
        port_roles: Collection[str],
    ) -> GroupWords:
        """Read the value of ``hpc:group``; an alias or its role wins over a word for ports.

        :param port_roles: the roles that networks can have.
        :raises FlavorError: names the wrong term
        """
        terms = {} if value is None else parse_group_terms(value)
        own = {want.name for want in wants} | {
            roles[want.key] for want in wants if want.key in roles
        }
        words = {PORT, *port_roles} - own
        devices = {name: count for name, count in terms.items() if name not in words}
        ports = {name: count for name, count in terms.items() if name in words}
        return cls(None if value is None or (ports and not devices) else devices, ports)

    def deal(self, ports: Iterable[Ports], number: int) -> tuple[Ports, ...]:
        """Rename each kind of ports to the term of ``hpc:group`` that takes it.

        :param ports: by the role of their networks.
        :param number: of groups.
        :raises FlavorError: there are more ports than the groups take
        """
        dealt = tuple(
            port_kind if port_kind.name in self.ports else attrs.evolve(port_kind, name=PORT)
            for port_kind in ports
        )
        for word, most in self.ports.items():
            have = sum(port_kind.count for port_kind in dealt if port_kind.name == word)
            if have > most * number:
                raise FlavorError(
                    f"{GROUP} puts at most {most} {word} in each of {number} groups, and the "
                    f"server has {have} direct ports of that kind; boot it with fewer ports, or "
                    "use a flavor that takes more"
                )
        return dealt

    def least(self, ports: Iterable[Ports]) -> int:
        """Return the least number of groups for all ports, without regard to the devices."""
        numbers = [1]
        for word, most in self.ports.items():
            have = sum(
                port_kind.count
                for port_kind in ports
                if port_kind.name == word or (word == PORT and port_kind.name not in self.ports)
            )
            numbers.append(-(-have // most))
        return max(numbers)


def build_groups(
    value: Mapping[str, int] | None,
    wants: Sequence[Want],
    cells: int,
    roles: Mapping[str, str],
    strict: bool,
    affinity: str,
) -> tuple[DeviceGroup, ...]:
    """Build the groups of a server's devices, without its ports.

    :param value: of ``hpc:group``, without ports. None if the flavor has none:
        then one group for each guest cell, or one for a guest without cells
    :param strict: refuse devices that do not divide among the cells; otherwise
        such a server is one group
    :param affinity: the key and word that require this, for the message
    :raises FlavorError: the groups do not match the devices
    """
    totals = _total_counts_of(wants)
    if value is not None:
        per_group = _replace_roles_by_aliases(value, wants, totals, roles)
        number = _number_of_groups(per_group, totals)
    else:
        number = max(cells, 1)
        odd = {name: total for name, total in totals.items() if total % number}
        if odd and strict:
            what = ", ".join(f"{total} {name}" for name, total in odd.items())
            raise FlavorError(
                f"{affinity} makes one group for each of the guest's {number} NUMA cells, but "
                f"{what} can not be divided by {number}; change the count in "
                f"pci_passthrough:alias or hw:numa_nodes, or set {GROUP}"
            )
        if odd:
            number = 1
        per_group = {name: total // number for name, total in totals.items()}
    return _deal_wants(per_group, number, wants)


def _total_counts_of(wants: Sequence[Want]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for want in wants:
        totals[want.name] = totals.get(want.name, 0) + want.count
    return totals


def _replace_roles_by_aliases(
    terms: Mapping[str, int],
    wants: Sequence[Want],
    totals: Mapping[str, int],
    roles: Mapping[str, str],
) -> dict[str, int]:
    """Replace each role in the terms of ``hpc:group`` by the alias that plays it.

    :param terms: role or alias -> devices in one group.
    :returns: alias -> devices in one group.
    :raises FlavorError: a term is unknown or ambiguous, or an alias is missing or named twice.
    """
    players: dict[str, set[str]] = {}
    for want in wants:
        if want.key in roles:
            players.setdefault(roles[want.key], set()).add(want.name)
    result: dict[str, int] = {}
    for term, count in terms.items():
        aliases = [term] if term in totals else sorted(players.get(term, ()))
        if not aliases:
            choices = sorted(totals) + sorted(
                f"role {role}" for role in players if role not in totals
            )
            if all(want.key in roles for want in wants):
                raise FlavorError(
                    f"{GROUP} names {quote_value(term)}, which is no alias of the flavor; "
                    f"it has {', '.join(choices)}"
                )
            raise UnknownNameError(
                f"{GROUP} names {quote_value(term)}, which is no alias of the flavor; it has "
                f"{', '.join(choices)}, or it is the role of devices of which none is free"
            )
        if len(aliases) > 1:
            raise FlavorError(
                f"{GROUP} names the role {quote_value(term)}, which several aliases of the flavor "
                f"play ({', '.join(aliases)}); name the aliases instead"
            )
        if aliases[0] in result:
            raise FlavorError(
                f"{GROUP} names {quote_value(aliases[0])} twice, as an alias and by its role "
                f"{quote_value(term)}; add the counts up"
            )
        result[aliases[0]] = count
    missing = sorted(set(totals) - set(result))
    if missing:
        raise FlavorError(
            f"{GROUP} does not name {', '.join(missing)}, which the flavor requests; every "
            "alias must be in the group"
        )
    return result


def _number_of_groups(per_group: Mapping[str, int], totals: Mapping[str, int]) -> int:
    """Compute the number of groups, which must be the same for every alias.

    :raises FlavorError: a count does not divide its total, or the numbers differ.
    """
    numbers = set()
    for name, count in per_group.items():
        if totals[name] % count:
            raise FlavorError(
                f"{GROUP} puts {count} {name} in each group, which does not divide the "
                f"{totals[name]} {name} of the flavor"
            )
        numbers.add(totals[name] // count)
    if len(numbers) > 1:
        group_counts = ", ".join(
            f"{totals[name]} {name} make {totals[name] // count} groups"
            for name, count in per_group.items()
        )
        raise FlavorError(
            f"{GROUP} does not fit the flavor's devices: {group_counts}; make them equal"
        )
    return numbers.pop()


def _deal_wants(
    per_group: Mapping[str, int], number: int, wants: Sequence[Want]
) -> tuple[DeviceGroup, ...]:
    """Deal the wants out to *number* groups, each with the devices of *per_group* (alias -> count).

    An alias may be several wants.
    """
    hands: list[dict[str, int]] = [{} for _ in range(number)]
    for name, count in per_group.items():
        room = [count] * number
        group = 0
        for want in wants:
            left = want.count if want.name == name else 0
            while left:
                taken = min(left, room[group])
                if taken:
                    hands[group][want.key] = taken
                room[group] -= taken
                left -= taken
                if not room[group]:
                    group += 1
    return tuple(DeviceGroup(hand) for hand in hands)


def _small_number_of(digits: str) -> int:
    """Convert at most four digits to a number; longer texts become one more than the maximum."""
    return int(digits) if len(digits) <= 4 else MAX_COUNT + 1


def quote_value(value: str) -> str:
    """Format a user's value for a message: escaped, quoted, and at most 60 characters long."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
