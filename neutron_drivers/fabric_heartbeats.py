# SPDX-License-Identifier: Apache-2.0
"""What the fabric agents say of themselves in Neutron's table of agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from oslo_log import log

from neutron_drivers.errors import FabricUnavailableError
from neutron_drivers.fabrics import parse_pkey
from neutron_drivers.rpc_names import AGENT_TYPE

LOG = log.getLogger(__name__)


@attrs.frozen
class FabricHeartbeat:
    """The last heartbeat of one agent.

    :ivar alive: it came within ``[DEFAULT]agent_down_time``.
    :ivar foreign_pkeys: of the administrator's own partitions; None: it said none that can be
        read.
    """

    host: str
    fabric: str
    alive: bool
    foreign_pkeys: frozenset[int] | None


def read_heartbeats(plugin: Any, context: Any) -> tuple[FabricHeartbeat, ...]:
    """The heartbeats of all agents.

    :param plugin: Neutron's core plug-in.
    :param context: of an administrator.
    """
    agents = plugin.get_agents(context, filters={"agent_type": [AGENT_TYPE]})
    return tuple(parse_heartbeat(agent) for agent in agents)


def parse_heartbeat(agent: Mapping[str, Any]) -> FabricHeartbeat:
    """One agent of ``openstack network agent list``."""
    found = agent.get("configurations")
    configurations: Mapping[str, Any] = found if isinstance(found, dict) else {}
    fabric = configurations.get("fabric")
    return FabricHeartbeat(
        host=str(agent.get("host")),
        fabric=fabric if isinstance(fabric, str) else "",
        alive=agent.get("alive") is True and agent.get("admin_state_up") is not False,
        foreign_pkeys=_read_foreign_pkeys(configurations.get("foreign_pkeys"), agent.get("host")),
    )


def has_live_agent(heartbeats: Iterable[FabricHeartbeat], fabric: str) -> bool:
    """Whether somebody is there who makes partitions of that fabric."""
    return any(one.alive and one.fabric == fabric for one in heartbeats)


def foreign_pkeys_of(heartbeats: Iterable[FabricHeartbeat], fabric: str) -> frozenset[int]:
    """The keys of the administrator's own partitions: of all agents, dead ones, too.

    :raises FabricUnavailableError: those that a live agent says cannot be read.
    """
    of_fabric = [one for one in heartbeats if one.fabric == fabric]
    unread = [one.host for one in of_fabric if one.alive and one.foreign_pkeys is None]
    if unread:
        raise FabricUnavailableError(
            "it is not known which P_Keys the fabric's administrator uses",
            f"foreign_pkeys of the heartbeat of the fabric agent on {', '.join(unread)}",
        )
    return frozenset().union(*(one.foreign_pkeys or () for one in of_fabric))


def _read_foreign_pkeys(found: object, host: object) -> frozenset[int] | None:
    try:
        if not isinstance(found, list):
            raise ValueError(f"{found!r} is no list")
        return frozenset(map(parse_pkey, found))
    except ValueError as error:
        LOG.warning("Heartbeat of the fabric agent on %s: foreign_pkeys: %s", host, error)
        return None
