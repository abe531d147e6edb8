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
from xml.sax import saxutils

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))
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

_WIDTH, _BOX, _HIGH, _GAP = 1330, 205, 62, 46


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


def draw_picture(by_name: Mapping[str, Room]) -> str:
    """The architecture as SVG: rooms on floors, and arrows from each to the rooms that it uses."""
    storeys = stack_floors(by_name)
    place: dict[str, tuple[float, float]] = {}
    for row, storey in enumerate(reversed(storeys)):
        space = (_WIDTH - len(storey) * _BOX) / (len(storey) + 1)
        for column, room in enumerate(storey):
            place[room.name] = (space + column * (_BOX + space), 10 + row * (_HIGH + _GAP))
    height = 50 + len(storeys) * (_HIGH + _GAP) - _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#8899aa"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for room in by_name.values():
        x, y = place[room.name]
        for use in sorted(room.uses & by_name.keys()):
            to_x, to_y = place[use]
            parts.append(
                f'<line x1="{x + _BOX / 2:.0f}" y1="{y + _HIGH:.0f}" x2="{to_x + _BOX / 2:.0f}" '
                f'y2="{to_y:.0f}" stroke="#8899aa" stroke-width="0.8" marker-end="url(#tip)"/>'
            )
    for room in by_name.values():
        x, y = place[room.name]
        fill = _FILLS.get(room.name.partition(".")[0], _EXTRA)
        parts.append(
            f'<g><title>{saxutils.escape(room.says)}</title><rect x="{x:.0f}" y="{y:.0f}" '
            f'width="{_BOX}" height="{_HIGH}" rx="5" fill="{fill}" stroke="#446688"/>'
            f'<text x="{x + 10:.0f}" y="{y + 25:.0f}" font-weight="bold">'
            f"{saxutils.escape(room.name.removeprefix('nova_hpc.'))}</text>"
            f'<text x="{x + 10:.0f}" y="{y + 46:.0f}" fill="#555555">{room.modules} modules, '
            f"{room.lines} lines</text></g>"
        )
    for column, (fill, meaning) in enumerate(_LEGEND.items()):
        x = 20 + column * _WIDTH / len(_LEGEND)
        parts.append(
            f'<rect x="{x:.0f}" y="{height - 24}" width="18" height="14" fill="{fill}" '
            f'stroke="#446688"/><text x="{x + 26:.0f}" y="{height - 12}">{meaning}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


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
