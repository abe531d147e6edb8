# SPDX-License-Identifier: Apache-2.0
"""NCCL's and RCCL's reader of topology files, as strict as the real ones.

Held against both, compiled from their published sources (NCCL 2.30, RCCL of ROCm 6.2):
the same trees for all synthetic nodes, hosts and guests, and the same limits. Three
things it refuses that they pass over: more than 16 attributes, unknown elements, and
(RCCL alone) values that are too long.

It knows no XML: one character at a time, one blank between attributes, no
declaration, no entities. What it makes of the classes and of the path between
two devices follows NCCL's own rules as well.
"""

from __future__ import annotations

import attrs

from nova_hpc.topology import nccl
from nova_hpc.topology.model import Node
from nova_hpc_common.level import Distance, distance_between

LONGEST = 253
MOST_ATTRIBUTES = 16
MOST_ELEMENTS = 256
CHILDREN = {
    "system": {"cpu"},
    "cpu": {"pci", "nic"},
    "pci": {"pci", "gpu", "nic", "pcilink"},
}
#: As NCCL compares: the beginning of the value decides, the first that fits.
CLASSES = (("0x060400", "PCI"), ("0x080100", "PCI"), ("0x068000", "NVS"), ("0x068001", "CPU"))
CLASSES += (("0x03", "GPU"), ("0x02", "NIC"))
#: By the version of the file: 1 is NCCL's, 2 is RCCL's, and neither takes the other's.
KINDS = {"1": CLASSES, "2": (*CLASSES, ("0x120000", "GPU"))}
SPEEDS = {
    "2.5 GT/s": 15,
    "5 GT/s": 30,
    "8 GT/s": 60,
    "16 GT/s": 120,
    "32 GT/s": 240,
    "2.5 GT/s PCIe": 15,
    "5.0 GT/s PCIe": 30,
    "8.0 GT/s PCIe": 60,
    "16.0 GT/s PCIe": 120,
    "32.0 GT/s PCIe": 240,
    "64.0 GT/s PCIe": 480,
}


class RefusedError(Exception):
    """NCCL does not read this."""


@attrs.define
class Element:
    name: str
    values: dict[str, str] = attrs.Factory(dict)
    below: list[Element] = attrs.Factory(list)
    above: Element | None = attrs.field(default=None, repr=False, eq=False)

    @property
    def kind(self) -> str:
        text, top = self.values["class"], self
        while top.above is not None:
            top = top.above
        kinds = KINDS[top.values["version"]]
        return next((kind for start, kind in kinds if text.startswith(start)), "PCI")

    def all(self, name: str) -> list[Element]:
        found = [self] if self.name == name else []
        for child in self.below:
            found += child.all(name)
        return found


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def char(self) -> str:
        if self.at >= len(self.text):
            raise RefusedError("unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    def token(self, with_value: bool) -> tuple[str, str, str]:
        """Name, value, and the character after."""
        name = ""
        while True:
            char = self.char()
            if char == "=":
                if not with_value:
                    raise RefusedError(f"unexpected value with {name}")
                quote = self.char()
                if quote not in "\"'":
                    raise RefusedError("no quote")
                value = ""
                while (char := self.char()) != quote:
                    value += char
                    if len(value) > LONGEST:
                        raise RefusedError("value too long")
                return name, value, self.char()
            if char in " >/\n\r":
                return name, "", char
            name += char
            if len(name) > LONGEST:
                raise RefusedError("name too long")

    def element(self) -> tuple[str, Element | None]:
        """``open``, ``single``, ``close`` or ``end``, and the element."""
        while self.at < len(self.text) and self.text[self.at] in " \n\r":
            self.at += 1
        if self.at == len(self.text):
            return "end", None
        if self.char() != "<":
            raise RefusedError("expected <")
        name, _, char = self.token(False)
        if not name and char == "/":
            name, _, char = self.token(False)
            if char != ">":
                raise RefusedError("trailing characters in a closing tag")
            return "close", Element(name)
        element = Element(name)
        while char == " ":
            key, value, char = self.token(True)
            if not key:
                raise RefusedError("a blank too many")  # NCCL takes it as an attribute
            element.values[key] = value
        if len(element.values) > MOST_ATTRIBUTES:
            raise RefusedError("too many attributes")
        kind = "open"
        if char == "/":
            kind = "single"
            _, _, char = self.token(False)
        if char != ">":
            raise RefusedError(f"expected >, got {char!r}")
        return kind, element


def read(text: str) -> Element:
    """Parse a file; it holds one ``system`` of a version that one of the two reads."""
    reader = Reader(text)
    kind, system = reader.element()
    if kind != "open" or system is None or system.name != "system":
        raise RefusedError("no system")
    if system.values.get("version") not in KINDS:
        raise RefusedError("wrong version")
    _fill(reader, system)
    if reader.element()[0] != "end":
        raise RefusedError("something after the system")
    # It takes one more for the end of the file.
    if _count(system) >= MOST_ELEMENTS:
        raise RefusedError("too many elements")
    for cpu in system.all("cpu"):
        int(cpu.values["numaid"])
    for pci in system.all("pci"):
        if not {"busid", "class"} <= pci.values.keys():
            raise RefusedError(f"not enough in {pci}")
        if "link_speed" in pci.values and pci.values["link_speed"] not in SPEEDS:
            raise RefusedError(f"speed {pci.values['link_speed']}")
        int(pci.values.get("link_width", "0"))
    return system


def _count(element: Element) -> int:
    return 1 + sum(map(_count, element.below))


def _fill(reader: Reader, head: Element) -> None:
    while True:
        kind, element = reader.element()
        if element is None:
            raise RefusedError(f"unterminated {head.name}")
        if kind == "close":
            if element.name != head.name:
                raise RefusedError(f"{element.name} closes {head.name}")
            return
        if element.name not in CHILDREN.get(head.name, set()):
            raise RefusedError(f"{element.name} in {head.name} would be passed over")
        element.above = head
        head.below.append(element)
        if kind == "open":
            _fill(reader, element)


def path_type(one: Element, other: Element) -> str:
    """What NCCL calls the path between two devices."""
    mine, theirs = _above(one), _above(other)
    common = next((each for each in mine if id(each) in map(id, theirs)), None)
    if common is None or common.name == "system":
        return "SYS"
    if common.name == "cpu":
        return "PHB"
    bridges = sum([id(each) for each in above].index(id(common)) for above in (mine, theirs)) + 1
    return "PIX" if bridges == 1 else "PXB"


def expected_path(node: Node, one: str, other: str) -> str:
    """What NCCL makes of the path that the inventory has between two functions.

    It knows no host bridges, so NODE is PHB as well; and it stops at a root port, so
    what is below the same one without a switch is PHB, too.
    """
    mine, theirs = (node.function(each) for each in (one, other))
    assert mine is not None
    assert theirs is not None
    found = distance_between(mine.location, theirs.location)
    apart = nccl.switches_above([mine]).isdisjoint(nccl.switches_above([theirs]))
    if found is Distance.NODE or (apart and found in (Distance.PIX, Distance.PXB)):
        return "PHB"
    return found.name


def _above(element: Element) -> list[Element]:
    found = []
    at = element.above
    while at is not None:
        found.append(at)
        at = at.above
    return found


def devices(system: Element) -> dict[str, Element]:
    """GPUs and adapters by their bus id."""
    return {pci.values["busid"]: pci for pci in system.all("pci") if pci.kind in ("GPU", "NIC")}
