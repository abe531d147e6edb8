# SPDX-License-Identifier: Apache-2.0
"""The heartbeats of the fabric agents in Neutron's table of agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
from oslo_log import log

from neutron_drivers.errors import FabricUnavailableError
from neutron_drivers.fabrics import parse_pkey
from neutron_drivers.rpc_names import AGENT_TYPE
from neutron_drivers.said_once import SaidOnce
from nova_hpc.fabric.partitions.keys import parse_guid

LOG = log.getLogger(__name__)

_SAID: Final = SaidOnce()


@attrs.frozen
class FabricHeartbeat:
    """The last heartbeat of one fabric agent, from Neutron's table of agents.

    :ivar alive: it came within ``[DEFAULT]agent_down_time``.
    :ivar foreign_pkeys: of the administrator's own partitions; None if the heartbeat has none, or
        they cannot be read.
    :ivar manager_guids: of the subnet managers that the agent has found, also in standby.
    :ivar full_guids: of ports with as many keys of own partitions as a port keeps.
    """

    host: str
    fabric: str
    alive: bool
    foreign_pkeys: frozenset[int] | None
    manager_guids: frozenset[int] = frozenset()
    full_guids: frozenset[int] = frozenset()


def read_heartbeats(plugin: Any, context: Any) -> tuple[FabricHeartbeat, ...]:
    """Read the heartbeats of all fabric agents, alive or dead.

    :param plugin: Neutron's core plug-in.
    :param context: of an administrator.
    """
    agents = plugin.get_agents(context, filters={"agent_type": [AGENT_TYPE]})
    return tuple(parse_heartbeat(agent) for agent in agents)


def parse_heartbeat(agent: Mapping[str, Any]) -> FabricHeartbeat:
    """Parse one fabric agent of Neutron's list of agents; values of wrong type count as missing."""
    found = agent.get("configurations")
    configurations: Mapping[str, Any] = found if isinstance(found, dict) else {}
    fabric = configurations.get("fabric")
    host = str(agent.get("host"))
    return FabricHeartbeat(
        host=host,
        fabric=fabric if isinstance(fabric, str) else "",
        alive=agent.get("alive") is True and agent.get("admin_state_up") is not False,
        foreign_pkeys=_read_foreign_pkeys(configurations.get("foreign_pkeys"), host),
        manager_guids=_read_guids(configurations, "manager_guids", host),
        full_guids=_read_guids(configurations, "full_guids", host),
    )


def has_live_agent(heartbeats: Iterable[FabricHeartbeat], fabric: str) -> bool:
    """Return whether one of *heartbeats* is of a live agent of this fabric."""
    return any(one.alive and one.fabric == fabric for one in heartbeats)


def foreign_pkeys_of(heartbeats: Iterable[FabricHeartbeat], fabric: str) -> frozenset[int]:
    """Return the P_Keys of the administrator's own partitions, from all agents of the fabric.

    Dead agents count, too.

    :raises FabricUnavailableError: the keys in a live agent's heartbeat cannot be read.
    """
    of_fabric = [one for one in heartbeats if one.fabric == fabric]
    unread = [one.host for one in of_fabric if one.alive and one.foreign_pkeys is None]
    if unread:
        raise FabricUnavailableError(
            "it is not known which P_Keys the fabric's administrator uses",
            f"foreign_pkeys of the heartbeat of the fabric agent on {', '.join(unread)}",
        )
    return frozenset().union(*(one.foreign_pkeys or () for one in of_fabric))


def manager_guids_of(heartbeats: Iterable[FabricHeartbeat], fabric: str) -> frozenset[int]:
    """Return the GUIDs of the fabric's subnet managers, by heartbeats of dead and live agents."""
    return frozenset().union(*(beat.manager_guids for beat in heartbeats if beat.fabric == fabric))


def full_guids_of(heartbeats: Iterable[FabricHeartbeat], fabric: str) -> frozenset[int]:
    """Return the GUIDs of ports with no room for a key, from the heartbeats of live agents."""
    return frozenset().union(
        *(beat.full_guids for beat in heartbeats if beat.fabric == fabric and beat.alive)
    )


def _read_guids(configurations: Mapping[str, Any], name: str, host: str) -> frozenset[int]:
    """Parse GUIDs of a heartbeat; empty for agents of earlier releases, which report none.

    Wrong entries are left out and logged.
    """
    texts = configurations.get(name, [])
    guids, wrong = set(), ""
    for text in texts if isinstance(texts, list) else ():
        try:
            guids.add(parse_guid(text))
        except ValueError as error:
            wrong = str(error)
    if not isinstance(texts, list):
        wrong = f"{texts!r} is no list"
    if _SAID.is_new((host, name), wrong[:200]):
        LOG.warning("Heartbeat of the fabric agent on %s: %s: %s", host, name, wrong[:200])
    return frozenset(guids)


def _read_foreign_pkeys(found: object, host: object) -> frozenset[int] | None:
    try:
        if not isinstance(found, list):
            raise ValueError(f"{found!r} is no list")
        return frozenset(map(parse_pkey, found))
    except ValueError as error:
        LOG.warning("Heartbeat of the fabric agent on %s: foreign_pkeys: %s", host, error)
        return None
