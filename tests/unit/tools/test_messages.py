# SPDX-License-Identifier: Apache-2.0
"""Each warning and error of the services has a row on the page of messages and their cures."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

TOP = Path(__file__).resolve().parents[3]
PAGE = TOP / "docs/source/admin/troubleshooting.rst"
#: What services load.
SERVICES = ("neutron_drivers", "nova_hpc", "scheduler_filters", "virt_driver_patches")
#: Methods of a logger that an operator reads at the default level.
LOUD = frozenset({"critical", "error", "exception", "log", "warn", "warning"})
#: So many letters of a message have to be its own, or what it says was written elsewhere.
LEAST = 12
#: Modules that log texts of others -> texts of them, as the page quotes them. What a module says
#: in words of its own is no part of this: it has to have its row anyway.
PASSED_ON = {
    "nova_hpc/fabric/partitions/backends/opensm.py": (
        "...; it was written again",
        "opensm's log ... cannot be read",
    ),
    "neutron_drivers/fabric_agent.py": ("Partition alarm on fabric ...",),
    "scheduler_filters/filter_log.py": ("... is not used: ...",),
    "virt_driver_patches/driver/guest_topology.py": (
        "The server's virtual hardware is of version ...",
        "The record of the server's virtual hardware ...",
    ),
    "virt_driver_patches/driver/kept_devices.py": (
        "is gone from the guest of server ...",
        "is in the guest of server ...",
    ),
    "virt_driver_patches/driver/leftover_allocations.py": ("allocation left behind by ...",),
    "virt_driver_patches/driver/provider_reserver.py": (
        "Reserved in Placement, and this node's ledger does not know by whom. ...",
    ),
    "virt_driver_patches/driver/reading.py": (
        "...; its copy is used",
        "the ledger ... does not say who has NVLink partitions",
        "the node shows no PCI functions",
    ),
    "virt_driver_patches/driver/segments.py": ("Shared memory: ...",),
    "virt_driver_patches/driver/suspend.py": ("The guest did not give up its PCI devices ...",),
    "virt_driver_patches/driver/tenancy.py": (
        "[hpc]peer_to_peer: ...",
        "Adapters are not put back yet: ...",
        "An NVLink partition is no NVLink set of this node: ...",
        "NVLink partitions are still active: ...",
        "PCI devices are not clean yet: ...",
        "PCI devices are not offered: ...",
        "PCI devices with a stage are not offered: ...",
        "The claimed GPUs are refused: ...",
        "The claimed GPUs must not be given: ...",
        "Virtual functions are not offered: ...",
        "could not be set for the server: ...",
        "goes into quarantine: ...",
        "has changed and is recorded as it is now: ...",
        "is never offered: ...",
        "suspicion may withhold ...",
        "the ledger ... is new: it does not say who has had the devices of this node",
    ),
    "virt_driver_patches/driver/withholder.py": (
        "is not offered: ...",
        "stays with its server, but: ...",
    ),
    "virt_driver_patches/patches/refuse_early.py": ("is refused: ...",),
    "neutron_drivers/mechanism.py": ("is refused: ...",),
}


@attrs.frozen
class Message:
    """A call of a logger."""

    module: str
    line: int
    #: Where a value stands: ``\\0``.
    text: str

    @property
    def own(self) -> int:
        """How many letters are its own."""
        return sum(map(str.isalpha, self.text))

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.text}"


def messages_of(text: str, module: str) -> Iterator[Message]:
    """The loud messages of a module."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        if name != "LOG" or node.func.attr not in LOUD:
            continue
        said = node.args[1] if node.func.attr == "log" else node.args[0]
        level = ast.unparse(node.args[0]) if node.func.attr == "log" else "WARNING"
        if not re.search("WARNING|ERROR|level", level):
            continue
        assert isinstance(said, ast.Constant), f"{module}:{node.lineno}: no text of its own"
        yield Message(module, node.lineno, re.sub(r"%(?:\.\d+)?[srdf]", "\0", str(said.value)))


def all_messages() -> list[Message]:
    return [
        message
        for package in SERVICES
        for path in sorted((TOP / package).rglob("*.py"))
        for message in messages_of(path.read_text(encoding="utf-8"), str(path.relative_to(TOP)))
    ]


def rows_of(text: str) -> list[str]:
    """The texts that the page quotes."""
    return re.findall(r"^(?:\* )?``([^`]+)``", text, re.M)


def has_row(message: Message, quoted: list[str]) -> bool:
    """Whether a row's words stand in the message, in their order, and are enough of them."""
    for row in quoted:
        pieces = [piece.strip() for piece in row.split("...") if piece.strip()]
        letters = sum(map(str.isalpha, "".join(pieces)))
        if letters < min(LEAST - 3, message.own):
            continue
        if re.search(".*".join(map(re.escape, pieces)), message.text, re.S):
            return True
    return False


def without_a_row(found: list[Message], quoted: list[str]) -> list[str]:
    """Messages that the page says nothing of."""
    return [
        str(message)
        for message in found
        if not has_row(message, quoted)
        and (message.own >= LEAST or message.module not in PASSED_ON)
    ]


def test_each_warning_and_error_has_a_row() -> None:
    quoted = rows_of(PAGE.read_text(encoding="utf-8"))
    found = all_messages()
    assert len(found) > 100
    assert without_a_row(found, quoted) == []
    missing = {text for texts in PASSED_ON.values() for text in texts} - set(quoted)
    assert missing == set()
    # No line of the list above outlives the code that it stands for.
    short = {message.module for message in found if message.own < LEAST}
    assert PASSED_ON.keys() <= short | {message.module for message in found}


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ('LOG.error("PCI device %s must not be given to the server: %s", a, b)', True),
        ('LOG.warning("The moon is full over node %s", a)', False),
        ('LOG.warning("%s", text)', False),
        ('LOG.info("The moon is full over node %s", a)', True),
        ('LOG.log(logging.WARNING, "The moon is full over %s", a)', False),
    ],
)
def test_a_message_without_a_row_is_found(code: str, passes: bool) -> None:
    quoted = rows_of(PAGE.read_text(encoding="utf-8"))
    assert (without_a_row(list(messages_of(code, "new.py")), quoted) == []) is passes
