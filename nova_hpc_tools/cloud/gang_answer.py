# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc explain`` says of servers that are to be together, for people."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from nova_hpc.cluster.plan import Plan
from nova_hpc_tools.cluster.group_fit import Room, Together

#: Domains that are named; the others are counted.
_SHOWN: Final = 8


def show(console: Console, found: Together) -> None:
    """Print which domain the members get, or what each of them lacks."""
    gang = found.gang
    console.print()
    many = f"{gang.members} members" if gang.members > 1 else "1 member"
    console.print(
        Text(f"Together (hpc:fabric={gang.level.word}, {gang.policy.value}): {many}", style="bold")
    )
    if found.decided is not None:
        console.print(f"  The server group has its domain already: {found.decided}.")
    if isinstance(found.answer, Plan):
        console.print(Text(f"  {found.answer.why}", style="bold green"))
    else:
        console.print(Text(f"  {found.answer.reason}", style="bold red"))
    for room in found.rooms[:_SHOWN]:
        console.print(f"  {_line(room)}")
    if len(found.rooms) > _SHOWN:
        console.print(f"  and {len(found.rooms) - _SHOWN} more with less room")
    if not found.rooms:
        console.print(
            f"  No host with room is in any {gang.level.word}: nova-hpc fabric sync writes where "
            "hosts are."
        )
    if not found.kept_known:
        console.print(
            Text("  What is kept for other groups a snapshot does not say.", style="yellow")
        )


def _line(room: Room) -> str:
    hosts = f"{room.hosts} host" + ("s" if room.hosts != 1 else "")
    text = f"{room.domain}: {room.fit} fit on {hosts}"
    if room.kept:
        text += f", {room.kept} of them kept for other groups"
    return text + (f"; {room.missing} missing" if room.missing else "")
