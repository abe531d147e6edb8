# SPDX-License-Identifier: Apache-2.0
"""The one role that the devices of an alias play.

An alias is Nova's name for devices, a role is the operator's (``[hpc]device_role``). Nova
compares ids, resource class and traits, and never the role. If two roles have all of these
in common, Nova gives devices of either: the virtual functions of InfiniBand and of Ethernet
adapters have the same ids. So this module binds an alias to one role. It is the role of its
name, which ``nova-hpc configure`` sets, or else the only role of its devices.

The scheduler, the node's check before start, ``explain`` and ``simulate`` all use these
functions.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import DevicePool, FreeHost, Want

#: Suffix that ``nova-hpc configure`` adds for the kinds of devices of one role: ``vf-101e``.
_PRODUCT: Final = re.compile(r"-[0-9a-f]{4}(?:[-.].*)?", re.ASCII)


class RoleConflictError(FlavorError):
    """A PCI alias matches devices of several roles, so its role is unclear.

    The text names the roles, and no host.
    """


@attrs.frozen
class Played:
    """The roles of the devices that an alias matches, on one host or on many.

    *by_want* has them by alias, and *known* all roles.
    """

    #: want, by any name -> roles of the devices that Nova would give it
    by_want: Mapping[str, frozenset[str]] = attrs.field(factory=dict, hash=False)
    #: Roles of all devices.
    known: frozenset[str] = frozenset()


def role_of_network(entries: Iterable[str], network: str | None) -> str | None:
    """Return the role of the network adapters on a physical network; None if it has none.

    :param entries: of ``[hpc]port_roles``.
    """
    for entry in entries:
        role, _, pattern = entry.partition(":")
        # Nova compares the tags of devices without regard to case.
        if network and fnmatch.fnmatchcase(network.lower(), pattern.strip().lower()):
            return role.strip() or None
    return None


def list_network_roles(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the roles that ``[hpc]port_roles`` gives to physical networks, each once."""
    names = (entry.partition(":")[0].strip() for entry in entries)
    return tuple(dict.fromkeys(role for role in names if role))


def roles_played_on_host(devices: Iterable[tuple[Iterable[str], str | None]]) -> Played:
    """Collect the roles of the devices of one host, by the aliases that the devices match.

    :param devices: for each device the aliases that match it (by any name), and its role.
    """
    by_want: dict[str, frozenset[str]] = {}
    all_roles = set()
    for serves, role in devices:
        if role is None:
            continue
        all_roles.add(role)
        for want in serves:
            by_want[want] = by_want.get(want, frozenset()) | {role}
    return Played(by_want, frozenset(all_roles))


def roles_played_by_hosts(hosts: Iterable[Played]) -> Played:
    """Merge the roles of the devices of many hosts, by the aliases that the devices match."""
    by_want: dict[str, frozenset[str]] = {}
    all_roles: frozenset[str] = frozenset()
    # A cloud has few kinds of hosts, and equal hosts share the object.
    for played in {id(host_roles): host_roles for host_roles in hosts}.values():
        all_roles |= played.known
        for want, roles in played.by_want.items():
            by_want[want] = by_want.get(want, frozenset()) | roles
    return Played(by_want, all_roles)


def bind_alias_roles(
    wants: Sequence[Want], played: Played, more_roles: Iterable[str] = (), *, by_name: bool = False
) -> dict[str, str]:
    """Bind each want to the only role whose devices it may have.

    The result does not depend on the order of hosts and devices.

    :param more_roles: further existing roles, whose devices are free on no host.
    :param by_name: *played* has the names of the wants, not their keys.
    :returns: Want.key -> role; wants without a known role are left out.
    :raises RoleConflictError: its devices have several roles, and the alias has the name
        of none of them.
    """
    names = played.known.union(more_roles)
    bound = {}
    for want in wants:
        own_roles = played.by_want.get(want.name if by_name else want.key, frozenset())
        role = _role_named_by_alias(want.name, own_roles, names)
        if role is None and len(own_roles) > 1:
            raise RoleConflictError(
                f"the alias {want.name} matches devices of the roles "
                f"{' and '.join(sorted(own_roles))}; the operator has to give each role an "
                "alias of its own"
            )
        role = role or next(iter(own_roles), None)
        if role is not None:
            bound[want.key] = role
    return bound


def _role_named_by_alias(
    alias: str, own_roles: frozenset[str], all_roles: frozenset[str]
) -> str | None:
    """Return the role in the name of an alias, also with the suffix of ``configure``; else None.

    For example, ``vf-101e`` names the role ``vf``. The longest role that fits wins. Another suffix
    counts only if the alias has devices of that role.
    """
    if alias in all_roles:
        return alias
    fits = [
        role
        for role in all_roles
        if alias.startswith(role)
        and (
            (role in own_roles and alias[len(role)] in "-.")
            or _PRODUCT.fullmatch(alias, len(role)) is not None
        )
    ]
    return max(fits, key=len, default=None)


def restrict_to_roles(host: FreeHost, roles: Mapping[str, str]) -> tuple[FreeHost, tuple[str, ...]]:
    """Restrict the devices of *host* to wants of their own role.

    For a device without a role, Nova's match counts.

    :param roles: from :func:`bind_alias_roles`.
    :returns: the same host if nothing changes; and the reasons why a device serves nothing now.
    """
    pools, refused = [], []
    for pool in host.pools:
        serves = frozenset(key for key in pool.serves if _plays_role(pool, roles.get(key)))
        if pool.serves and not serves:
            asked = " and ".join(sorted({roles[key] for key in pool.serves}))
            refused.append(f"{pool.name}: its role is {pool.role}; the request needs {asked}")
        pools.append(pool if serves == pool.serves else attrs.evolve(pool, serves=serves))
    if all(after is before for after, before in zip(pools, host.pools, strict=True)):
        return host, ()
    return attrs.evolve(host, pools=tuple(pools)), tuple(refused)


def _plays_role(pool: DevicePool, role: str | None) -> bool:
    return pool.role is None or role is None or pool.role == role
