# SPDX-License-Identifier: Apache-2.0
"""The architecture as a picture and a table, made from the imports in the code.

``conf.py`` calls :func:`write_files` before the pages are read, so that the picture is never
older than the code.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))
from nova_hpc_common.output.canvas import (  # noqa: E402
    add_element,
    add_tooltip,
    estimate_text_width,
    format_svg,
    make_plain_root,
)
from tools.wheels import read_package_roots  # noqa: E402

#: Packages whose folders are rooms; each other package is one room.
_WITH_ROOMS = ("nova_hpc", "nova_hpc_client", "nova_hpc_tools", "virt_driver_patches")
_PACKAGES = read_package_roots(TOP)

_PLUG_IN, _CORE, _TOOL, _CLIENT = "#fdf1dc", "#e6eff7", "#e3f2e1", "#f6e6f2"
_GUEST, _EXTRA = "#fbe3e0", "#eeeeee"
#: The colour of a package's rooms, by the program that loads them.
_FILLS = {
    "neutron_drivers": _PLUG_IN,
    "scheduler_filters": _PLUG_IN,
    "virt_driver_patches": _PLUG_IN,
    "nova_hpc": _CORE,
    "nova_hpc_common": _CORE,
    "nova_hpc_tools": _TOOL,
    "nova_hpc_client": _CLIENT,
    "nova_hpc_guest": _GUEST,
}
_LEGEND = {
    _PLUG_IN: "plug-ins of Nova and Neutron",
    _CORE: "the core, which services load",
    _TOOL: "commands of operators",
    _CLIENT: "openstack hpc",
    _GUEST: "the guest's command",
    _EXTRA: "extras and the lab",
}

_WIDTH, _BOX, _HIGH, _GAP = 1440, 228, 62, 46


@dataclasses.dataclass(frozen=True)
class Room:
    """One room: a folder of modules with one concern.

    :ivar says: the first line of its docstring.
    :ivar uses: names of the rooms that it imports.
    """

    name: str
    says: str
    modules: int
    lines: int
    uses: frozenset[str]


def _room_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] not in _PACKAGES:
        return None
    if parts[0] in _WITH_ROOMS and len(parts) > 1:
        folder = _PACKAGES[parts[0]].joinpath(*parts[:2])
        if folder.is_dir():
            return ".".join(parts[:2])
    return parts[0]


def _imports(tree: ast.AST) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def read_rooms() -> dict[str, Room]:
    """Every room by its name, read from the files."""
    found: dict[str, list[tuple[Path, ast.Module, int]]] = {}
    for package, folder in _PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            module = ".".join(path.relative_to(folder).with_suffix("").parts)
            name = _room_of(module.removesuffix(".__init__"))
            if name is None:
                continue
            text = path.read_text()
            found.setdefault(name, []).append((path, ast.parse(text), text.count("\n")))
    result = {}
    for name, files in found.items():
        uses = {_room_of(each) for _, tree, _ in files for each in _imports(tree)}
        # A room without __init__.py is one module, so its docstring describes the room.
        says = next((ast.get_docstring(tree) or "" for path, tree, _ in files), "")
        result[name] = Room(
            name=name,
            says=says.partition("\n")[0],
            modules=len(files),
            lines=sum(lines for _, _, lines in files),
            # The root of a package has only its name and version, so it is not a room here.
            uses=frozenset(use for use in uses if use and use not in {name, "nova_hpc"}),
        )
    result.pop("nova_hpc", None)
    return {name: room for name, room in result.items() if room.lines > 2}


def stack_floors(by_name: Mapping[str, Room]) -> list[list[Room]]:
    """The floors from the ground up: a room is one floor above the highest room that it uses.

    :raises ValueError: rooms use each other in a circle, so they have no floors.
    """
    height: dict[str, int] = {}
    left = dict(by_name)
    while left:
        ready = [room for room in left.values() if not room.uses & left.keys()]
        if not ready:
            raise ValueError(f"these rooms use each other in a circle: {', '.join(sorted(left))}")
        for room in ready:
            below = [height[use] for use in room.uses if use in height]
            height[room.name] = 1 + max(below, default=-1)
        for room in ready:
            del left[room.name]
    tops = max(height.values())
    return [
        sorted((by_name[name] for name, at in height.items() if at == floor), key=lambda r: r.name)
        for floor in range(tops + 1)
    ]


def find_direct_uses(by_name: Mapping[str, Room]) -> dict[str, set[str]]:
    """Room -> the rooms that it uses, without those that one of these uses, by itself or others."""
    below: dict[str, set[str]] = {}
    for storey in stack_floors(by_name):
        for room in storey:
            uses = room.uses & by_name.keys()
            below[room.name] = uses.union(*(below[use] for use in uses))
    return {
        name: {
            use
            for use in room.uses & by_name.keys()
            if not any(use in below[other] for other in room.uses & by_name.keys())
        }
        for name, room in by_name.items()
    }


def place_rooms(
    by_name: Mapping[str, Room], uses: Mapping[str, set[str]]
) -> dict[str, tuple[int, int]]:
    """Room -> the place of its box; a room is below its users, as far as its floor has room."""
    place: dict[str, tuple[int, int]] = {}
    for row, storey in enumerate(reversed(stack_floors(by_name))):
        space = (_WIDTH - len(storey) * _BOX) / (len(storey) + 1)
        users = {
            room.name: [place[user][0] for user in place if room.name in uses[user]]
            for room in storey
        }
        middle = {
            name: sum(lefts) / len(lefts) if lefts else _WIDTH for name, lefts in users.items()
        }
        for column, room in enumerate(sorted(storey, key=lambda room: middle[room.name])):
            left = space + column * (_BOX + space)
            place[room.name] = round(left), 10 + row * (_HIGH + _GAP)
    return place


def draw_picture(by_name: Mapping[str, Room]) -> str:
    """The architecture as SVG: rooms on floors, and arrows to the rooms that they use directly."""
    uses = find_direct_uses(by_name)
    place = place_rooms(by_name, uses)
    height = max(y for _, y in place.values()) + _HIGH + 40
    root = make_plain_root(_WIDTH, height, "Rooms of the code", 13)
    tip = add_element(
        root, "marker", id="tip", markerWidth=8, markerHeight=8, refX=7, refY=3, orient="auto"
    )
    add_element(tip, "path", d="M0,0 L7,3 L0,6 z", fill="#667788")
    for room in by_name.values():
        x, y = place[room.name]
        for use in sorted(uses[room.name]):
            to_x, to_y = place[use]
            add_element(
                root, "line", x1=x + _BOX // 2, y1=y + _HIGH, x2=to_x + _BOX // 2, y2=to_y,
                stroke="#667788", marker_end="url(#tip)",
            )  # fmt: skip
    for room in by_name.values():
        x, y = place[room.name]
        fill = _FILLS.get(room.name.partition(".")[0], _EXTRA)
        box = add_element(root, "g")
        add_tooltip(box, [room.says])
        add_element(
            box, "rect", x=x, y=y, width=_BOX, height=_HIGH, rx=5, fill=fill, stroke="#446688"
        )
        name = room.name.removeprefix("nova_hpc.")
        add_element(box, "text", name, x=x + 10, y=y + 25, font_weight="bold")
        size = f"{room.modules} modules, {room.lines} lines"
        add_element(box, "text", size, x=x + 10, y=y + 46, fill="#555555")
    x = 20
    for fill, meaning in _LEGEND.items():
        add_element(
            root, "rect", x=x, y=height - 24, width=18, height=14, fill=fill, stroke="#446688"
        )
        add_element(root, "text", meaning, x=x + 26, y=height - 12)
        x += round(estimate_text_width(meaning, 13)) + 46
    return format_svg(root)


def write_table(by_name: Mapping[str, Room]) -> str:
    """The rooms as a table in reStructuredText, from the top floor down."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 22 45 8 25", ""]
    lines += ["   * - Room", "     - What it holds", "     - Lines", "     - What it uses"]
    for storey in reversed(stack_floors(by_name)):
        for room in storey:
            uses = ", ".join(
                use.removeprefix("nova_hpc.") for use in sorted(room.uses & by_name.keys())
            )
            lines += [
                f"   * - ``{room.name}``",
                f"     - {room.says}",
                f"     - {room.lines}",
                f"     - {uses or 'nothing of ours'}",
            ]
    return "\n".join([*lines, ""])


def write_files(folder: Path) -> None:
    """Write ``architecture.svg`` and ``architecture.txt`` into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    by_name = read_rooms()
    (folder / "architecture.svg").write_text(draw_picture(by_name))
    (folder / "architecture.txt").write_text(write_table(by_name))


if __name__ == "__main__":
    write_files(TOP / "docs" / "source" / "contributor" / "generated")
