"""How the demonstration shows what it found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nova_hpc_lab import accounts, compare


def comparison(server: str, host: str, found: accounts.Evidence) -> Table:
    """What was asked, chosen, attached and reported, side by side."""
    table = Table(title=f"Server {server} on node {host}", title_justify="left", show_lines=True)
    for column in (
        "Asked",
        "Scheduler: Placement's provider",
        "Nova's record",
        "libvirt's domain",
        "The guest reports",
    ):
        table.add_column(column, overflow="fold")
    left = list(found.guest.devices)
    for record in found.records:
        device = found.node.get(record.address)
        allocated = found.allocation.get(record.provider, 0)
        attached = record.address if record.address in found.domain.hostdevs else "missing"
        mine = next((one for one in left if device and one.identity == device.identity), None)
        if mine is not None:
            left.remove(mine)
        table.add_row(
            Text(f"1 {device.role if device else 'unknown'}"),
            Text(f"{record.provider} ({allocated})"),
            Text(_described(record.address, device)),
            Text(attached),
            Text("nothing of this identity" if mine is None else _reported(mine)),
        )
    for stranger in left:
        table.add_row("", "", "", "", Text(_reported(stranger)))
    recorded = {record.address for record in found.records}
    for address in found.domain.hostdevs:
        if address not in recorded:
            table.add_row("", "", "", Text(address), "")
    table.add_row(*(Text(cell) for cell in _size(found)))
    return table


def _described(address: str, device: accounts.HostDevice | None) -> str:
    if device is None:
        return address
    place = device.location
    return f"{address}\n{device.ids}, {device.identity}\nNUMA {place.numa}, {place.root}"


def _reported(device: accounts.GuestDevice) -> str:
    return f"{device.address}\n{device.ids}, {device.identity}\ndriver {device.driver or 'none'}"


def _size(found: accounts.Evidence) -> tuple[str, ...]:
    asked, domain, guest = found.asked, found.domain, found.guest
    pins = ", ".join(f"vCPU {vcpu} on {_set(cpus)}" for vcpu, cpus in sorted(domain.pins.items()))
    reached = found.decision
    pages = ", ".join(f"{count} at NUMA {numa}" for numa, count in sorted(found.pages.items()))
    return (
        f"{asked.vcpus} dedicated vCPU, {asked.memory_mib} MiB in pages of {asked.page_kib} KiB,"
        f" affinity {asked.level.word}",
        "" if reached is None else f"asked {reached.asked.word}, reached {reached.reached.word}",
        "",
        f"{pins}\nemulator on {_set(domain.emulator)}\nmemory strictly at NUMA"
        f" {_set(domain.memory_nodes)}, pages of {domain.page_kib} KiB; QEMU holds {pages}",
        "\n".join((f"{guest.cpus} CPU, {guest.memory_kib // 1024} MiB", *guest.check)),
    )


def _set(numbers: frozenset[int]) -> str:
    return ",".join(map(str, sorted(numbers))) or "-"


def outcome(checks: Sequence[compare.Check]) -> Group:
    """One line a check."""
    lines = []
    for check in checks:
        mark = Text("ok    ", "green") if check.agrees else Text("WRONG ", "red")
        lines.append(mark + Text(check.what) + Text(f": {check.trouble}" if check.trouble else ""))
    return Group(*lines)
