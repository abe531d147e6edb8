# SPDX-License-Identifier: Apache-2.0
"""Fabrics as ibnetdiscover prints them, with the truth beside."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

RATE = "4xNDR"


@attrs.define
class Cabling:
    """Nodes and the cables between their ports."""

    #: GUID -> kind ("Switch", "Ca") and node description.
    nodes: dict[str, tuple[str, str]] = attrs.Factory(dict)
    #: (GUID, port) -> (GUID, port) of the other end, both ways.
    ends: dict[tuple[str, int], tuple[str, int]] = attrs.Factory(dict)
    rates: dict[tuple[str, int], str] = attrs.Factory(dict)

    def switch(self, name: str) -> str:
        guid = f"S-{len(self.nodes) + 1:016x}"
        self.nodes[guid] = ("Switch", f"MF0;{name}:MQM9701/U1")
        return guid

    def adapter(self, said: str) -> str:
        guid = f"H-{len(self.nodes) + 1:016x}"
        self.nodes[guid] = ("Ca", said)
        return guid

    def connect(self, one: str, other: str, rate: str = RATE) -> tuple[str, int]:
        first, second = self.free(one), self.free(other)
        self.ends[one, first] = (other, second)
        self.ends[other, second] = (one, first)
        self.rates[one, first] = self.rates[other, second] = rate
        return one, first

    def free(self, guid: str) -> int:
        return 1 + max((port for node, port in self.ends if node == guid), default=0)

    def cut(self, end: tuple[str, int]) -> None:
        del self.ends[self.ends.pop(end)]

    def text(self) -> str:
        lines = ["#", "# Topology file", "#", ""]
        for guid, (kind, said) in self.nodes.items():
            word = "switchguid" if kind == "Switch" else "caguid"
            lines += ["vendid=0x2c9", "devid=0xd2f2", f"{word}=0x{guid[2:]}({guid[2:]})"]
            tail = " enhanced port 0 lid 7 lmc 0" if kind == "Switch" else ""
            lines.append(f'{kind}\t65 "{guid}"\t\t# "{said}"{tail}')
            for (node, port), (other, end) in sorted(self.ends.items()):
                if node == guid:
                    rate = self.rates[node, port]
                    lines.append(
                        f'[{port}]\t"{other}"[{end}]({other[2:]}) \t\t# "{self.nodes[other][1]}" '
                        f"lid 9 {rate}"
                    )
            lines.append("")
        return "\n".join(lines)


def rail_optimised(
    units: int, hosts: int, rails: int, spines: int, cables: int = 2
) -> tuple[Cabling, dict[str, int]]:
    """Two tiers: rail r of every host of a unit goes to that unit's leaf r; all to all above.

    :returns: the cabling, and host -> its unit.
    """
    fabric = Cabling()
    above = [fabric.switch(f"SPINE-{number:02d}") for number in range(spines)]
    truth = {}
    for unit in range(units):
        leaves = [fabric.switch(f"LEAF-{rail:02d}-{unit:02d}") for rail in range(rails)]
        for leaf in leaves:
            for spine in above:
                for _ in range(cables):
                    fabric.connect(leaf, spine)
        for number in range(hosts):
            host = f"node{unit:02d}{number:02d}"
            truth[host] = unit
            for rail, leaf in enumerate(leaves):
                fabric.connect(fabric.adapter(f"{host} mlx5_{rail}"), leaf)
    return fabric, truth


def groups(truth: dict[str, int]) -> set[tuple[str, ...]]:
    """The hosts that belong together."""
    return {
        tuple(sorted(host for host, unit in truth.items() if unit == each))
        for each in set(truth.values())
    }


def found(domains: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The same of a map."""
    return set(domains)
