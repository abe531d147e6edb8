# SPDX-License-Identifier: Apache-2.0
"""The answer of ``nova-hpc explain``, for people: lines, and a tree of each host's devices."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from nova_hpc.placement.grouping import GROUP, takes_ports
from nova_hpc.placement.model import Request
from nova_hpc_common.output.printing import InertConsole
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.cloud import gang_answer
from nova_hpc_tools.cloud.explain.model import (
    AssignedDevices,
    FlavorReport,
    NodeChoice,
    NodeVerdict,
    PlacedServer,
    ServerReport,
)
from nova_hpc_tools.cloud.group_fit import GroupFit
from nova_hpc_tools.snapshot import SnapshotDevice, SnapshotNode
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest

#: Hosts that one line names; the others are counted.
_NAMED = 8

#: Hosts that a row of the table of reasons names.
_LISTED = 3

#: Groups of alike hosts that are drawn; of the others only the reason is printed.
_DRAWN = 8

#: Lines on devices of hosts that do not fit; ``--trees`` prints all.
_NOTED = 6

#: Columns of trees that go to a file or a pipe, and the most columns of the table of reasons.
_WIDE = 200
_NARROW = 100
_NO_PATH: tuple[str, ...] = ()


def print_explanation(
    answer: FlavorReport | ServerReport, gang: GroupFit | None = None, trees: bool = False
) -> None:
    """Print an answer of ``explain`` to standard output.

    :param gang: whether the servers come together; None if their flavor does not require it.
    :param trees: draw the devices of hosts. They are drawn anyway if there is only one host.
    """
    # A file has no width: a tree must not lose words there.
    width = None if sys.stdout.isatty() else _WIDE
    console = InertConsole(soft_wrap=True, highlight=False, width=width)
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    mark = "◀" if encoding.startswith("utf") else "<-"
    if isinstance(answer, ServerReport):
        _print_past_decision(console, answer, mark)
    else:
        trees = trees or len(answer.verdicts) == 1
        _print_explain_report(console, answer, mark, trees)
    if gang is not None:
        gang_answer.print_gang_answer(console, gang)


def format_chosen_devices(node: SnapshotNode, choice: NodeChoice) -> str:
    """Format the addresses of chosen devices, with the number of functions of each."""
    names = {device.provider: device.address for device in node.devices}
    parts = [
        names[provider] + (f" x{count}" if count > 1 else "")
        for provider, count in choice.providers().items()
    ]
    return ", ".join(sorted(parts))


def _print_explain_report(console: Console, answer: FlavorReport, mark: str, trees: bool) -> None:
    for problem in answer.problems:
        console.print(Text(f"warning: {problem}", style="yellow"))
    if answer.asked is not None:
        _print_asked_servers(console, answer.asked)
    console.print(Text(_format_headline(answer), style="bold"))
    # The answer and its cures come before the details, which are long if there are many hosts.
    console.print(_format_conclusion(answer))
    for remedy in answer.remedies:
        console.print(
            f"  It would fit {remedy.text}: on {remedy.node}, at level {remedy.level.word}."
        )
    if not answer.fits and not answer.remedies:
        console.print("  No single change that was tried makes it fit.")
    groups = _group_alike_verdicts(answer.verdicts)
    shown = groups if trees else [group for group in groups if group[0].choice is not None]
    for number, group in enumerate(shown):
        _print_host_group(console, answer, group, mark, trees and number < _DRAWN)
    if not trees:
        _print_misses(console, groups[len(shown) :])
    if answer.question.count > 1:
        _print_placed_servers(console, answer)


def _print_misses(console: Console, groups: Sequence[Sequence[NodeVerdict]]) -> None:
    """Print a table of the reasons of hosts that do not fit, and what is withheld on them.

    :param groups: the hosts, nearest miss first.
    """
    if not groups:
        return
    names_by_reason: dict[str, list[str]] = {}
    names_by_note: dict[str, list[str]] = {}
    for verdict in (verdict for group in groups for verdict in group):
        names_by_reason.setdefault(verdict.reason, []).append(verdict.node.name)
        for note in verdict.notes:
            names_by_note.setdefault(note, []).append(verdict.node.name)
    console.print()
    _print_table(console, "Why not, nearest miss first", names_by_reason)
    if names_by_note:
        console.print()
        _print_table(console, "Devices", dict(list(names_by_note.items())[:_NOTED]))
    left = len(names_by_note) - _NOTED
    more = f"{left} more lines on devices: " if left > 0 else ""
    console.print(f"\n{more}--trees or --host HOST prints the devices of hosts")


def _print_table(console: Console, title: str, names_by_text: Mapping[str, list[str]]) -> None:
    """Print one row for each text: the number of its hosts, the text, and some names."""
    table = Table(box=None, pad_edge=False)
    table.add_column("Hosts", justify="right")
    table.add_column(title, ratio=2, overflow="fold")
    table.add_column("Names", ratio=1, overflow="fold")
    for text, names in names_by_text.items():
        table.add_row(str(len(names)), Text(text), Text(join_first(sorted(names), _LISTED)))
    console.print(table, width=min(console.width, _NARROW))


def _print_asked_servers(console: Console, asked: UnplacedRequest) -> None:
    servers = f"Server {asked.name} ({asked.servers[0]})"
    if len(asked.servers) > 1:
        servers = f"{len(asked.servers)} servers, the first is {asked.name} ({asked.servers[0]})"
    by = f", made by {asked.request}" if asked.request else ""
    console.print(Text(f"{servers}, {asked.state}{by}", style="bold"))
    if asked.fault:
        console.print(f"  Its user reads: {asked.fault}")
    for note in asked.notes:
        console.print(Text(f"  not looked at: {note}", style="yellow"))
    if asked.placement:
        text = f"  Placement has no candidate for it now: {asked.placement}"
        console.print(Text(text, style="bold red"))
        console.print("  Judged only by the devices, now it would find:")
        return
    console.print("  Now it would find:")


def _format_headline(answer: FlavorReport) -> str:
    request = answer.request
    devices = ", ".join(f"{want.count} {want.alias}" for want in answer.flavor.wants)
    text = f"Flavor {answer.flavor.name}"
    if answer.question.image:
        text += f" with image {answer.question.image}"
    text += f": {devices}; affinity {request.level.word} ({request.policy.value})"
    if len(request.groups) > 1:
        text += f"; {len(request.groups)} groups"
    text += "".join(f"; {ports}" for ports in answer.flavor.ports)
    if not answer.flavor.ports and takes_ports(answer.flavor.server.extra_specs.get(GROUP)):
        text += "; no direct ports, which --port adds"
    if request.cells:
        text += f"; {len(request.cells)} guest NUMA cell{'s' if len(request.cells) > 1 else ''}"
    return text


def _group_alike_verdicts(verdicts: Iterable[NodeVerdict]) -> list[list[NodeVerdict]]:
    """Group hosts with the same answer: best fits first, then the misses, nearest first."""
    groups: dict[
        tuple[bool, tuple[int, ...], tuple[int, int], str, tuple[str, ...]], list[NodeVerdict]
    ] = {}
    for verdict in verdicts:
        score = () if verdict.choice is None else verdict.choice.devices.score
        near = -1 if verdict.unmet is None else verdict.unmet
        rank = (-near, verdict.lacking)
        key = (verdict.choice is None, score, rank, verdict.reason, verdict.notes)
        groups.setdefault(key, []).append(verdict)
    return [groups[key] for key in sorted(groups)]


def _print_host_group(
    console: Console, answer: FlavorReport, group: Sequence[NodeVerdict], mark: str, drawn: bool
) -> None:
    first = group[0]
    console.print()
    names = join_first([verdict.node.name for verdict in group], _NAMED)
    if first.choice is None:
        console.print(Text.assemble((names, "bold red"), f": {first.reason}"))
    else:
        devices = first.choice.devices
        title = Text.assemble(
            (names, "bold green"),
            f": fits at level {devices.level.word} ({devices.distance.name}): {first.reason}",
        )
        if not drawn:
            title.append(f"; {format_chosen_devices(first.node, first.choice)}")
        for cell, numa in sorted(devices.cells.items()):
            title.append(f"; guest cell {cell} on NUMA node {numa}")
        console.print(title)
    for note in first.notes:
        console.print(Text(f"  {note}", style="yellow"))
    if drawn and first.node.devices and first.node.out is None:
        marks = _marks_by_provider(answer.request, first.choice)
        console.print(_draw_device_tree(first.node, marks, answer.names, mark))


def _marks_by_provider(request: Request, choice: NodeChoice | None) -> dict[str, str]:
    """Return provider -> text next to the device's mark: its groups and guest cells."""
    if choice is None:
        return {}
    counts_by_pool: dict[str, dict[tuple[int, int | None], int]] = {}
    for pick in choice.devices.picks:
        counts = counts_by_pool.setdefault(pick.pool, {})
        counts[pick.group, pick.cell] = counts.get((pick.group, pick.cell), 0) + 1
    texts = {}
    for pool, counts in counts_by_pool.items():
        parts = []
        for (group, cell), count in sorted(counts.items(), key=repr):
            part = f"{count} " if count > 1 else ""
            part += f"group {group}" if len(request.groups) > 1 else "chosen"
            parts.append(part + (f" (cell {cell})" if cell is not None else ""))
        texts[pool] = ", ".join(parts)
    return texts


def _draw_device_tree(
    node: SnapshotNode, marks: Mapping[str, str], names: Mapping[str, str], mark: str
) -> Tree:
    """Draw the node's devices as a rich tree by NUMA node, PCIe root and switch."""
    tree = Tree(node.name, guide_style="dim")
    branches: dict[tuple[str, ...], Tree] = {}
    for device in sorted(node.devices, key=_device_sort_key):
        above, path = tree, _NO_PATH
        for label in _labels_of_device(node, device):
            path = (*path, label)
            if path not in branches:
                branches[path] = above.add(Text(label, style="cyan"))
            above = branches[path]
        above.add(_format_device_line(device, marks.get(device.provider), names, mark))
    return tree


def _device_sort_key(device: SnapshotDevice) -> tuple[object, ...]:
    place = device.location
    return (place.numa is None, place.numa or 0, place.root or "", place.switches, device.address)


def _labels_of_device(node: SnapshotNode, device: SnapshotDevice) -> Iterator[str]:
    place = device.location
    if place.numa is None:
        yield "NUMA node unknown"
    else:
        yield _label_numa_node(node, place.numa)
    if place.root is not None:
        yield place.root
    elif device.used:
        yield "PCIe root unknown while it is in use"
    for switch in place.switches:
        # A switch, or a root port that several functions share.
        yield f"below {switch}"


def _label_numa_node(node: SnapshotNode, number: int) -> str:
    text = f"NUMA node {number}"
    for numa in node.numa:
        if numa.id == number:
            if numa.dedicated_cpus is not None:
                cpus = "CPU" if numa.dedicated_cpus == 1 else "CPUs"
                text += f", {numa.dedicated_cpus} dedicated {cpus} free"
            for size, free in sorted((numa.pages or {}).items()):
                # Guests do not use small pages next to devices.
                if size > 64 and free:
                    text += f", {free} pages of {size} KiB free"
    return text


def _format_device_line(
    device: SnapshotDevice, chosen: str | None, names: Mapping[str, str], mark: str
) -> Text:
    line = Text(f"{device.address} {device.role or '/'.join(sorted(device.aliases)) or 'device'}")
    total = device.free + len(device.used)
    if total > 1:
        line.append(f", {device.free} of {total} free", style="dim" if not device.free else "")
    elif device.free:
        line.append(", free")
    if device.unit is not None:
        line.append(f", IOMMU unit {device.unit}")
    owners = sorted({names.get(use.server, use.server) for use in device.used})
    if owners:
        line.append(f", in use by {join_first(owners, 2)}", style="dim")
    if chosen is not None:
        line.append(f"  {mark} {chosen}", style="bold green")
    return line


def _print_placed_servers(console: Console, answer: FlavorReport) -> None:
    console.print()
    count = answer.question.count
    for number, placed in enumerate(answer.placed, 1):
        console.print(f"Server {number} of {count}: {_format_placed_server(placed)}")


def _format_placed_server(placed: PlacedServer) -> str:
    devices = placed.choice.devices
    return (
        f"{placed.before.name}, level {devices.level.word} ({devices.distance.name}): "
        f"{format_chosen_devices(placed.before, placed.choice)}"
    )


def _format_conclusion(answer: FlavorReport) -> Text:
    count, placed = answer.question.count, len(answer.placed)
    fitting = sum(verdict.choice is not None for verdict in answer.verdicts)
    total = len(answer.verdicts)
    hosts = f"{fitting} of {total} host{'s' if total != 1 else ''}"
    if answer.fits:
        text = f"It fits on {hosts}."
        if count > 1:
            text = f"All {count} servers fit."
        return Text(text, style="bold green")
    if placed:
        return Text(f"Only {placed} of {count} servers fit.", style="bold red")
    return Text(f"It fits on none of {total} host{'s' if total != 1 else ''}.", style="bold red")


def _print_past_decision(console: Console, answer: ServerReport, mark: str) -> None:
    server = answer.server
    console.print(
        Text(
            f"Server {server.name} ({server.uuid}), flavor {server.flavor}, on {answer.node.name}",
            style="bold",
        )
    )
    decision = answer.decision
    if decision is not None:
        console.print(
            f"Decided: affinity {decision.asked.word} ({decision.policy.value}) was requested, "
            f"{decision.reached.word} was reached."
        )
    if answer.level is not None and answer.distance is not None:
        console.print(f"Its devices sit at level {answer.level.word} ({answer.distance.name}).")
    for note in answer.notes:
        console.print(Text(f"  {note}", style="yellow"))
    if not answer.given:
        console.print("It has no PCI devices.")
        return
    marks = {given.device.provider: _mark_own_device(answer, given) for given in answer.given}
    console.print(_draw_device_tree(answer.node, marks, answer.names, mark))


def _mark_own_device(answer: ServerReport, given: AssignedDevices) -> str:
    """Return the words for a device of the server: its functions and its groups."""
    functions = [address for address in given.addresses if address != given.device.address]
    text = f"its {', '.join(functions)}" if functions else "its own"
    groups = set()
    if answer.choice is not None:
        picks = answer.choice.devices.picks
        groups = {pick.group for pick in picks if pick.pool == given.device.provider}
        if len({pick.group for pick in picks}) > 1:
            text += f" (group {', '.join(map(str, sorted(groups)))})"
    return text
