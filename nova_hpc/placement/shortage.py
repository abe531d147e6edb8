# SPDX-License-Identifier: Apache-2.0
"""Which host comes nearest where Placement has no candidate at all. Data and sentences.

Placement answers whether there are candidates, and never why not. These are the same
amounts by resource class and host, and what an operator can see from them.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Shortage:
    """What was asked of Placement, and what the hosts have free."""

    #: resource class -> amount: devices, and everything else (CPUs, memory, disk).
    devices: Mapping[str, int]
    rest: Mapping[str, int]
    #: resource class of a device -> host -> free
    free: Mapping[str, Mapping[str, int]]
    #: Hosts with everything else, among those that may be taken.
    roomy: frozenset[str]

    @property
    def equipped(self) -> frozenset[str]:
        """Hosts with enough free devices."""
        found: frozenset[str] | None = None
        for name, need in self.devices.items():
            here = {host for host, amount in self.free.get(name, {}).items() if amount >= need}
            found = frozenset(here) if found is None else found & here
        return found or frozenset()

    @property
    def fitting(self) -> frozenset[str]:
        """Hosts with all of it, as far as these amounts tell."""
        return self.equipped & self.roomy

    @property
    def nearest(self) -> str | None:
        """The host with most of the devices; None: no host has one."""
        hosts = {host for amounts in self.free.values() for host in amounts}
        return max(
            sorted(hosts),
            key=lambda host: (self._share(host), host in self.roomy),
            default=None,
        )

    def _share(self, host: str) -> int:
        return sum(
            min(self.free.get(name, {}).get(host, 0), need) for name, need in self.devices.items()
        )

    def asked(self) -> str:
        """E.g. ``4 CUSTOM_HPC_GPU, 8 PCPU, 4096 MEMORY_MB``."""
        return _amounts({**self.devices, **self.rest})

    def have(self) -> str:
        """E.g. ``5 CUSTOM_HPC_GPU on 3 hosts``."""
        parts = []
        for name in self.devices:
            amounts = self.free.get(name, {})
            total, hosts = sum(amounts.values()), len(amounts)
            parts.append(f"{total} {name}" + (f" on {hosts} host{'s'[: hosts != 1]}" * bool(hosts)))
        return ", ".join(parts) or "no devices"

    def why(self, lacking: Mapping[str, int], name: str) -> str:
        """What keeps the nearest host from it.

        :param lacking: of everything else, what the nearest host has too little of.
        :param name: what it is called.
        """
        host = self.nearest
        if host is None:
            return "no host has any of these devices free"
        if host not in self.equipped:
            shares = [
                f"{self.free.get(each, {}).get(host, 0)} of {need} {each}"
                for each, need in self.devices.items()
            ]
            return f"the nearest is {name} with {', '.join(shares)}"
        if lacking:
            return f"the nearest is {name}, which has the devices, but not {_amounts(lacking)}"
        if host not in self.roomy:
            return (
                f"the nearest is {name}, which has each of it, but may not be taken: look at its "
                "traits, availability zone and aggregates, and whether the service is disabled"
            )
        return (
            f"{name} has each of these amounts: look at the traits of its devices, at the "
            "resources of ports and at group_policy"
        )


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in amounts.items())
