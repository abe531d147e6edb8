# SPDX-License-Identifier: Apache-2.0
"""A plan as text: the host's part of it and the guest's side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nova_hpc.guest_tree.model import TreeBranch, TreeDevice, TreePartKind, TreePlan


def lines(plan: TreePlan, names: Mapping[str, str] | None = None) -> Iterator[str]:
    """Draw a plan, one line for each part: left the host's, right the guest's.

    :param names: host address -> what the device is.
    """
    rows = list(_rows(plan, names or {}))
    width = max((len(left) for left, _ in rows), default=0)
    for left, right in rows:
        yield f"{left:<{width}}   {right}"


def _rows(plan: TreePlan, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    upstream = {bridge.index: bridge for bridge in plan.bridges}
    buses = {seat.device.address: f"0000:{seat.bus:02x}:00.0" for seat in plan.seats}
    # In the order of the numbering, which is that of the tree.
    switches = iter(
        f"{upstream[bridge.parent].bus:02x}:{bridge.slot:02x}.{bridge.function:x}"
        for bridge in plan.bridges
        if bridge.kind is TreePartKind.UPSTREAM
    )
    expanders = iter(bridge for bridge in plan.bridges if bridge.kind is TreePartKind.EXPANDER)
    yield "HOST", "GUEST"
    cell: object = None
    for root in plan.roots:
        numa = root.devices[0].location.numa
        if (numa, root.cell) != cell:
            cell = (numa, root.cell)
            yield (
                f"NUMA node {'unknown' if numa is None else numa}",
                "no NUMA cell" if root.cell is None else f"NUMA cell {root.cell}",
            )
        expander = next(expanders)
        yield f"`- {root.name}", f"`- expander {expander.bus:02x}"
        yield from _below(root, "   ", switches, buses, names)


def _below(
    branch: TreeBranch,
    indent: str,
    switches: Iterator[str],
    buses: Mapping[str, str],
    names: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    for part in branch.below:
        last = part is branch.below[-1]
        fork, deeper = ("`- ", "   ") if last else ("|- ", "|  ")
        if isinstance(part, TreeDevice):
            name = names.get(part.address, "device")
            yield (
                f"{indent}{fork}{name} {part.address[5:]}",
                f"{indent}{fork}{name} {buses[part.address][5:]}",
            )
        else:
            yield (
                f"{indent}{fork}switch {part.name[5:]}",
                f"{indent}{fork}switch {next(switches)}",
            )
            yield from _below(part, indent + deeper, switches, buses, names)
