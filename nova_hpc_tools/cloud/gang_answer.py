# SPDX-License-Identifier: Apache-2.0
"""The answer of ``nova-hpc explain`` on servers that are to be together, for people."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from nova_hpc.cluster.plan import GangPlan
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.cloud.group_fit import DomainFit, GroupFit

#: Domains that are named; the others are counted.
_SHOWN: Final = 8


def print_gang_answer(console: Console, together: GroupFit) -> None:
    """Print the domain that the members of a server group get, or the shortage in each domain."""
    gang = together.gang
    console.print()
    many = f"{gang.members} members" if gang.members > 1 else "1 member"
    console.print(
        Text(f"Together (hpc:fabric={gang.level.word}, {gang.policy.value}): {many}", style="bold")
    )
    if together.decided is not None:
        console.print(f"  The server group has its domain already: {together.decided}.")
    if isinstance(together.answer, GangPlan):
        _print_gang_plan(console, together.answer)
    else:
        console.print(Text(f"  {together.answer.reason}", style="bold red"))
    for room in together.rooms[:_SHOWN]:
        console.print(f"  {_format_domain_room(room)}")
    if len(together.rooms) > _SHOWN:
        console.print(f"  and {len(together.rooms) - _SHOWN} more with less room")
    if not together.rooms:
        console.print(
            f"  No host with room is in any {gang.level.word}: nova-hpc fabric sync writes where "
            "hosts are."
        )
    if not together.kept_known:
        console.print(
            Text("  A snapshot does not contain the places kept for other groups.", style="yellow")
        )


def _print_gang_plan(console: Console, plan: GangPlan) -> None:
    console.print(Text(f"  {plan.why}", style="bold green"))
    for title, counts in (("Leaves", plan.leaves), ("Hosts", plan.hosts)):
        names = [f"{name} ({count})" for name, count in counts.items()]
        if names:
            console.print(f"  {title}, with their members: {join_first(names, _SHOWN)}")
    if not plan.proven:
        console.print(
            "  The search was cut short: leaves of blocks that are equally good may be smaller."
        )


def _format_domain_room(room: DomainFit) -> str:
    hosts = f"{room.hosts} host" + ("s" if room.hosts != 1 else "")
    text = f"{room.domain}: {room.fit} fit on {hosts}"
    if room.kept:
        text += f", {room.kept} of them kept for other groups"
    return text + (f"; {room.missing} missing" if room.missing else "")
