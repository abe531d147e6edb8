# SPDX-License-Identifier: Apache-2.0
"""Is the node after the recovery as it was before? Pure: facts in, complaints out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]

#: What must be as it was in the world's first moment.
SAME = ("tracked", "inventory", "withheld", "quarantine")
#: What must be empty when no server is left.
EMPTY = ("allocations", "problems", "marked", "unreported", "domains", "dirty", "uncleaned")


def violations(facts: Facts) -> list[str]:
    """What must never be, whoever was killed when."""
    found = list(facts["violations"])
    found += [f"{name} is no whole JSON" for name, whole in facts["files"].items() if not whole]
    found += facts["problems"]
    found += unclean(facts)
    seen: dict[str, str] = {}
    for server, domain in facts["domains"].items():
        for address in domain["devices"] if domain["running"] else ():
            if seen.setdefault(address, server) != server:
                found.append(f"{address} is in two domains")
    return found


def unclean(facts: Facts) -> list[str]:
    """Complaints about devices that Placement would give before their stage has passed."""
    allocated = " ".join(facts["allocations"]).lower()
    return [
        f"{address} can be given by Placement, and {server}'s data are in its memory"
        for address, server in facts["uncleaned"].items()
        if facts["inventory"].get(address) and address not in allocated
    ]


def held(facts: Facts) -> list[str]:
    """Complaints about devices that a domain has and that are offered all the same."""
    return [
        f"{address} is offered, and the domain of {server} has it"
        for server, domain in facts["domains"].items()
        for address in domain["devices"]
        if facts["tracked"].get(address) == "available"
    ]


def clean(first: Facts, now: Facts) -> list[str]:
    """Complaints about a node that no server is left on; [] if it is as new."""
    found = violations(now)
    for name in SAME:
        if now[name] != first[name]:
            found.append(f"{name}: {now[name]}, and was {first[name]}")
    found += [f"{name}: {now[name]}" for name in EMPTY if now[name] and name != "problems"]
    return found


def taken(first: Facts, now: Facts, server: str) -> list[str]:
    """Complaints about a node of which one server is to have everything."""
    found = violations(now)
    domain = now["domains"].get(server, {"running": False, "devices": []})
    if not domain["running"]:
        found.append("the server that takes all devices does not run")
    missing = sorted(first["tracked"].keys() - set(domain["devices"]))
    if missing:
        found.append(f"lost: {', '.join(missing)}")
    if set(now["marked"].values()) != {server} or now["marked"].keys() != first["tracked"].keys():
        found.append(f"marked: {now['marked']}")
    return found


def state(first: Facts, now: Facts) -> str:
    """How many devices are as new, for people."""
    free = [
        address
        for address, status in first["tracked"].items()
        if now["tracked"].get(address) == status
        and address not in now["marked"]
        and address not in now["dirty"]
        and address not in now["uncleaned"]
        and address not in now["withheld"]
    ]
    return f"{len(free)} of {len(first['tracked'])} free and clean"
