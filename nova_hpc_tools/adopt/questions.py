# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc configure --ask``: what cannot be known is asked, with defaults from the inventory.

The answers become the declaration, so nothing is asked twice. An empty answer is the
default; what was declared before is the default of its question.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from nova_hpc.topology.model import Function, Node
from nova_hpc.topology.roles import Roles
from nova_hpc.wire.node_declaration import Cpus, Device, Limits, NodeDeclaration, Wishes
from nova_hpc_tools.adopt import declaration_file as node_file
from nova_hpc_tools.adopt import node_wishes, readiness
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.base import MOST, CommandError

_TRIES: Final = 3
_Read = TypeVar("_Read")
_YES: Final = {"y": True, "yes": True, "n": False, "no": False}


def ask(
    declared: NodeDeclaration,
    node: Node,
    root: Path | None,
    told: node_config.Told,
    hardware: dict[str, str],
) -> NodeDeclaration:
    """Ask for what the node leaves open.

    :param declared: what is declared already, the run's options included.
    :param root: where the node's files are; None: it came from an XML.
    :param hardware: address -> what a device says that it is.
    :raises CommandError: nobody answers.
    """
    now = node_wishes.for_node(declared, node.hostname, "the declaration")
    roles = [json.dumps(dict(each)) for each in now.roles or ()]
    table = node_config.table(roles or told.device_role, node, told.configured.device_spec)
    answers = Wishes(
        **_devices(now, node, table, root, told, hardware),
        cpus=_cpus(now, told),
        limits=_limits(now),
        hugepages=_pages(now, node),
    )
    return node_wishes.told(declared, node.hostname, answers, ())


def _devices(
    now: Wishes,
    node: Node,
    table: Roles,
    root: Path | None,
    told: node_config.Told,
    hardware: dict[str, str],
) -> dict[str, Any]:
    held = node_file.withheld(root, node, table, told.configured.device_spec, (), (), told.anyway)
    out, in_use = [], []
    known = {each.address for each in (*(now.left_out or ()), *(now.offer_in_use or ()))}
    for (role, product), functions in _kinds(node, table):
        asked = [
            each for each in functions if each.address not in {*known, *held.never, *held.in_use}
        ]
        if asked and not _yes(
            f"Offer {len(asked)} x {role} ({product}) at {_places(asked)} to servers", True
        ):
            out += [Device(each.address, why="by the guided first run") for each in asked]
    for address, why in held.in_use.items():
        if address not in known:
            print(f"{address}: {why}.", file=sys.stderr)
            if _yes(f"Offer {address} all the same", False):
                in_use.append(Device(address))
    return {
        "left_out": node_wishes.with_hardware(tuple(out) or None, hardware),
        "offer_in_use": node_wishes.with_hardware(tuple(in_use) or None, hardware),
    }


def _kinds(node: Node, table: Roles) -> Iterator[tuple[tuple[str, str], list[Function]]]:
    """Role and product of what would be offered -> the functions: adapters for their VFs."""
    found: dict[tuple[str, str], list[Function]] = defaultdict(list)
    for each in node.functions:
        role = table.role_of(each, node)
        if role is None or each.virtual_functions:
            continue
        one = node.function(each.physical_function or "") or each
        kind = role, f"{each.vendor_id}:{each.product_id}"
        if one not in found[kind]:
            found[kind].append(one)
    yield from sorted(found.items())


def _places(functions: list[Function]) -> str:
    addresses = [each.address for each in functions]
    return ", ".join(addresses[:8]) + (", ..." if len(addresses) > 8 else "")


def _cpus(now: Wishes, told: node_config.Told) -> Cpus | None:
    before = told.configured.cpu_sets
    if now.cpus is None and before:
        sets = ", ".join(f"{name} = {value}" for name, value in before.items())
        if _yes(f"Keep the CPU sets that are configured ({sets})", True):
            return None
    default = 1 if now.cpus is None else now.cpus.housekeeping_cores
    return Cpus(
        _number("Physical cores of each NUMA node that stay with the host", default or 0, 0)
    )


def _limits(now: Wishes) -> Limits:
    default = now.limits.hosts if now.limits else None
    return Limits(_number("Hosts that can match one request", default or 1, 1))


def _pages(now: Wishes, node: Node) -> dict[str, int] | None:
    """What is there now may be declared, so that it is missed when it is gone."""
    there = dict(readiness.pages_now(node.numa_nodes))
    if now.hugepages is not None or not there:
        return None
    said = ", ".join(f"{count} of {size}" for size, count in there.items())
    return there if _yes(f"Expect the hugepages of now on each NUMA node ({said})", True) else None


# --- questions ------------------------------------------------------------------------


def _yes(question: str, default: bool) -> bool:
    def read(text: str) -> bool | None:
        return _YES.get(text.lower())

    return _answer(f"{question}?", "y" if default else "n", read, "y or n")


def _number(question: str, default: int, least: int) -> int:
    def read(text: str) -> int | None:
        good = text.isascii() and text.isdigit() and least <= int(text) <= MOST
        return int(text) if good else None

    return _answer(f"{question}:", str(default), read, f"a number from {least} to {MOST}")


def _answer(question: str, default: str, read: Callable[[str], _Read | None], what: str) -> _Read:
    for _ in range(_TRIES):
        print(f"{question} [{default}] ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            break
        found = read(line.strip() or default)
        if found is not None:
            return found
        print(f"Write {what}.", file=sys.stderr)
    raise CommandError(
        f"no answer to: {question} (--ask needs a terminal, or answers on its input)"
    )
