# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc configure --ask``: what cannot be known is asked, with defaults from the inventory.

The answers become the declaration, so nothing is asked twice. An empty answer is the
default; what was declared before is the default of its question.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from nova_hpc.tenancy.storage import Erasers
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.roles import Roles
from nova_hpc.wire.node_declaration import (
    Cpus,
    DeclaredDevice,
    DeclaredLimits,
    NodeDeclaration,
    NodeWishes,
)
from nova_hpc_tools.adopt import declaration_file, node_wishes, readiness, service_settings
from nova_hpc_tools.base import MOST, CommandError

_TRIES: Final = 3
_Read = TypeVar("_Read")
_YES: Final = {"y": True, "yes": True, "n": False, "no": False}


def ask_open_wishes(
    declared: NodeDeclaration,
    node: Node,
    root: Path | None,
    told: service_settings.ServiceSettings,
    hardware: dict[str, str],
) -> NodeDeclaration:
    """Ask for what the node leaves open.

    :param declared: what is declared already.
    :param root: where the node's files are; None: it came from an XML.
    :param hardware: address -> what a device says that it is.
    :raises CommandError: nobody answers.
    """
    wishes = node_wishes.wishes_for_node(declared, node.hostname, "the declaration")
    table = service_settings.role_table_of(
        declaration_file.role_entries_of(wishes) or told.device_role,
        node,
        told.configured.device_spec,
    )
    answers = NodeWishes(
        **_ask_devices(wishes, node, table, root, told, hardware),
        cpus=_ask_cpus(wishes, told),
        limits=_ask_limits(wishes),
        hugepages=_ask_hugepages(wishes, node),
    )
    return node_wishes.add_to_declaration(declared, node.hostname, answers)


def _ask_devices(
    wishes: NodeWishes,
    node: Node,
    table: Roles,
    root: Path | None,
    told: service_settings.ServiceSettings,
    hardware: dict[str, str],
) -> dict[str, Any]:
    held = declaration_file.find_withheld_devices(
        root, node, table, told.configured.device_spec, (), (), told.anyway
    )
    out, in_use = [], []
    declared_addresses = {
        device.address for device in (*(wishes.left_out or ()), *(wishes.offer_in_use or ()))
    }
    for (role, product), functions in _group_offerable_functions(node, table, told.erasers):
        asked = [
            function
            for function in functions
            if function.address not in {*declared_addresses, *held.never, *held.in_use}
        ]
        if asked and not _ask_yes_or_no(
            f"Offer {len(asked)} x {role} ({product}) at {_format_addresses(asked)} to servers",
            True,
        ):
            out += [
                DeclaredDevice(function.address, why="by the guided first run")
                for function in asked
            ]
    for address, reason in held.in_use.items():
        if address not in declared_addresses:
            print(f"{address}: {reason}.", file=sys.stderr)
            if _ask_yes_or_no(f"Offer {address} all the same", False):
                in_use.append(DeclaredDevice(address))
    return {
        "left_out": node_wishes.with_hardware(tuple(out) or None, hardware),
        "offer_in_use": node_wishes.with_hardware(tuple(in_use) or None, hardware),
    }


def _group_offerable_functions(
    node: Node, table: Roles, erasers: Erasers
) -> Iterator[tuple[tuple[str, str], list[PciFunction]]]:
    """Role and product of what would be offered -> the functions: adapters for their VFs."""
    functions_by_kind: dict[tuple[str, str], list[PciFunction]] = defaultdict(list)
    for function in node.functions:
        role = table.role_of(function, node)
        if role is None or function.virtual_functions:
            continue
        if erasers.explain_refusal(node, function, role) is not None:
            continue
        shown_function = node.function(function.physical_function or "") or function
        kind = role, f"{function.vendor_id}:{function.product_id}"
        if shown_function not in functions_by_kind[kind]:
            functions_by_kind[kind].append(shown_function)
    yield from sorted(functions_by_kind.items())


def _format_addresses(functions: list[PciFunction]) -> str:
    addresses = [function.address for function in functions]
    return ", ".join(addresses[:8]) + (", ..." if len(addresses) > 8 else "")


def _ask_cpus(wishes: NodeWishes, told: service_settings.ServiceSettings) -> Cpus | None:
    before = told.configured.cpu_sets
    if wishes.cpus is None and before:
        sets = ", ".join(f"{name} = {value}" for name, value in before.items())
        if _ask_yes_or_no(f"Keep the CPU sets that are configured ({sets})", True):
            return None
    default = 1 if wishes.cpus is None else wishes.cpus.housekeeping_cores
    return Cpus(
        _ask_number("Physical cores of each NUMA node that stay with the host", default or 0, 0)
    )


def _ask_limits(wishes: NodeWishes) -> DeclaredLimits:
    default = wishes.limits.hosts if wishes.limits else None
    return DeclaredLimits(_ask_number("Hosts of the cloud", default or 1, 1))


def _ask_hugepages(wishes: NodeWishes, node: Node) -> dict[str, int] | None:
    """Ask whether to declare the hugepages that are there, so that they are missed when gone."""
    there = dict(readiness.pages_now(node.numa_nodes))
    if wishes.hugepages is not None or not there:
        return None
    summary = ", ".join(f"{count} of {size}" for size, count in there.items())
    return (
        there
        if _ask_yes_or_no(f"Expect the hugepages of now on each NUMA node ({summary})", True)
        else None
    )


# --- questions ------------------------------------------------------------------------


def _ask_yes_or_no(question: str, default: bool) -> bool:
    def read(text: str) -> bool | None:
        return _YES.get(text.lower())

    return _ask_until_valid(f"{question}?", "y" if default else "n", read, "y or n")


def _ask_number(question: str, default: int, least: int) -> int:
    def read(text: str) -> int | None:
        good = text.isascii() and text.isdigit() and least <= int(text) <= MOST
        return int(text) if good else None

    return _ask_until_valid(f"{question}:", str(default), read, f"a number from {least} to {MOST}")


def _ask_until_valid(
    question: str, default: str, read: Callable[[str], _Read | None], what: str
) -> _Read:
    for _ in range(_TRIES):
        print(f"{question} [{default}] ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            break
        answer = read(line.strip() or default)
        if answer is not None:
            return answer
        print(f"Write {what}.", file=sys.stderr)
    raise CommandError(
        f"no answer to: {question} (--ask needs a terminal, or answers on its input)"
    )
