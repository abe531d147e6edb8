# SPDX-License-Identifier: Apache-2.0
"""Neutron's direct ports in a snapshot: the ports of a server, and the adapters that serve them.

A flavor contains no ports. A user of ``explain`` names the ports together with a flavor. For a
server that found no host, Nova's records contain them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from nova_hpc.placement import roles
from nova_hpc.placement.grouping import PORT
from nova_hpc.placement.model import Ports


@attrs.frozen
class PortAdapter:
    """How an adapter serves direct ports: its network, and whether it is given whole or trusted."""

    #: The physical network; None for networks without one.
    network: str | None = None
    #: The adapter itself is given, for ports of the type ``direct-physical``.
    whole: bool = False
    #: The value of ``trusted`` in its entry; None if it has none.
    trusted: bool | None = None
    #: Its functions are managed from a DPU.
    remote: bool = False


@attrs.frozen
class DirectPorts:
    """Direct ports of one server with the same requirements for an adapter."""

    network: str | None
    count: int = 1
    whole: bool = False
    trusted: bool | None = None
    remote: bool = False

    def fits(self, adapter: PortAdapter) -> bool:
        """Whether Nova would serve these ports with the adapter."""
        return (
            _lower_network(self.network) == _lower_network(adapter.network)
            and (self.whole, self.remote) == (adapter.whole, adapter.remote)
            and self.trusted in (None, adapter.trusted)
        )

    def __str__(self) -> str:
        """For example ``2 direct ports of physnet4``."""
        kind = "remotely managed" if self.remote else "direct-physical" if self.whole else "direct"
        trust = "trusted " if self.trusted else ""
        where = f"of {self.network}" if self.network else "without a physical network"
        return f"{self.count} {trust}{kind} port{'s' if self.count > 1 else ''} {where}"


def _lower_network(network: str | None) -> str | None:
    # Nova compares tags without regard to case.
    return None if network is None else network.lower()


def direct_port_key_of(number: int) -> str:
    """Return the key of ports in a request, by their index in the list."""
    return f"{PORT} {number}"


def ports_for_engine(ports: Sequence[DirectPorts], entries: Iterable[str]) -> tuple[Ports, ...]:
    """Convert the direct ports to the placement engine's model.

    :param entries: the entries of ``[hpc]port_roles``.
    """
    role_entries = tuple(entries)
    return tuple(
        Ports(
            key=direct_port_key_of(number),
            name=roles.role_of_network(role_entries, port_group.network) or PORT,
            count=port_group.count,
            network=str(port_group).partition(" ")[2],
        )
        for number, port_group in enumerate(ports)
    )


def served_port_keys(ports: Sequence[DirectPorts], adapter: PortAdapter) -> frozenset[str]:
    """Return keys of the ports that an adapter would serve."""
    return frozenset(
        direct_port_key_of(number)
        for number, port_group in enumerate(ports)
        if port_group.fits(adapter)
    )


def merge_equal_ports(ports: Iterable[DirectPorts]) -> tuple[DirectPorts, ...]:
    """Merge ports with the same requirements and add their counts, in the order of the first."""
    counts: dict[DirectPorts, int] = {}
    for port_group in ports:
        single = attrs.evolve(port_group, count=1)
        counts[single] = counts.get(single, 0) + port_group.count
    return tuple(attrs.evolve(single, count=count) for single, count in counts.items())


def adapter_of(pool: Mapping[str, object]) -> PortAdapter | None:
    """Return the adapter behind a PCI pool of Nova; None if the pool is for flavors.

    :param pool: a pool with Nova's keys, which are the same in ``[pci]device_spec``.
    """
    if "physical_network" not in pool:
        return None
    network, trusted = pool["physical_network"], pool.get("trusted")
    return PortAdapter(
        network=None if network is None else str(network),
        whole=pool.get("dev_type") == "type-PF",
        trusted=None if trusted is None else _is_true_word(trusted),
        remote=_is_true_word(pool.get("remote_managed")),
    )


def direct_ports_of_spec(spec: Mapping[str, object], count: int = 1) -> DirectPorts:
    """Build the direct ports of one PCI request of Nova.

    :param spec: a spec of the request, with the same keys as for :func:`adapter_of`.
    """
    network, trusted = spec.get("physical_network"), spec.get("trusted")
    return DirectPorts(
        network=None if network is None else str(network),
        count=count,
        whole=spec.get("dev_type") == "type-PF",
        trusted=None if trusted is None else _is_true_word(trusted),
        remote=_is_true_word(spec.get("remote_managed")),
    )


def _is_true_word(value: object) -> bool:
    return str(value).strip().lower() in ("1", "t", "true", "on", "y", "yes")
