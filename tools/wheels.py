#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheels of this repository: their folders, packages, entry points and code lines.

    python tools/wheels.py        one line for each wheel: code lines, and its budget

The root of the repository is the wheel nova-hpc. Each other folder with a ``pyproject.toml`` that
``wheels.txt`` names is one more.
"""

from __future__ import annotations

import ast
import configparser
import io
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

TOP: Final = Path(__file__).resolve().parents[1]
_BLANK: Final = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    }
)


class Wheel(NamedTuple):
    """One distribution."""

    #: Its name, e.g. ``nova-hpc-tools``.
    name: str
    #: Folder of its ``pyproject.toml``, from the root of the repository; ``.`` for the root.
    folder: str
    #: Package -> its folder, from the root of the repository.
    packages: dict[str, str]
    #: Group -> name -> place, e.g. ``nova_hpc_tools.main:main``.
    entry_points: dict[str, dict[str, str]]
    requirements: tuple[str, ...]
    #: Requirements of all its extras.
    extra_requirements: tuple[str, ...]
    #: None for the root, which takes its version from ``PBR_VERSION``.
    version: str | None
    #: File, from the folder of the wheel -> its place below the prefix that pip installs into.
    shared: dict[str, str]

    @property
    def file_stem(self) -> str:
        """The beginning of the names of its files, e.g. ``nova_hpc_tools``."""
        return self.name.replace("-", "_")


def read_wheels(top: Path = TOP) -> dict[str, Wheel]:
    """Name -> wheel, for all wheels of a checkout."""
    lines = (top / "wheels.txt").read_text().splitlines()
    folders = [line.removeprefix("-e ./") for line in lines if line and not line.startswith("#")]
    wheels = [_read_root(top), *(_read_project(top, folder) for folder in folders)]
    return {wheel.name: wheel for wheel in wheels}


def list_required_wheels(name: str, wheels: Mapping[str, Wheel]) -> set[str]:
    """Names of the wheels that pip needs beside a wheel, without those of its extras."""
    # Only the release tool and tests need it, whose environments have the package.
    from packaging.requirements import Requirement

    direct = {Requirement(text).name for text in wheels[name].requirements} & wheels.keys()
    return direct.union(*(list_required_wheels(other, wheels) for other in direct))


def read_entry_points(top: Path = TOP) -> dict[str, dict[str, str]]:
    """Group -> name -> place, for the entry points of all wheels."""
    points: dict[str, dict[str, str]] = {}
    for wheel in read_wheels(top).values():
        for group, names in wheel.entry_points.items():
            points.setdefault(group, {}).update(names)
    return points


def read_package_roots(top: Path = TOP) -> dict[str, Path]:
    """Package -> the folder from which it is imported, for the packages of all wheels."""
    return {
        package: (top / folder).parent
        for wheel in read_wheels(top).values()
        for package, folder in wheel.packages.items()
    }


def list_production_folders(top: Path = TOP) -> tuple[str, ...]:
    """Folders of the packages of all wheels but the lab's, from the root of the repository."""
    return tuple(
        folder
        for name, wheel in read_wheels(top).items()
        for folder in wheel.packages.values()
        if name != "nova-hpc-lab"
    )


def read_budget(top: Path = TOP) -> dict[str, int]:
    """Name of a wheel -> the code lines that it may have."""
    lines = [line.split() for line in (top / "BUDGET").read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if words and words[0] != "#"}


def count_wheel_lines(wheel: Wheel, top: Path = TOP) -> int:
    """The code lines of a wheel: without blank lines, comments and docstrings."""
    return sum(
        len(list_code_lines(path.read_text()))
        for folder in wheel.packages.values()
        for path in sorted((top / folder).rglob("*.py"))
    )


def list_code_lines(text: str) -> set[int]:
    """Numbers of the code lines of a module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines.difference(*_list_docstrings(ast.parse(text)))


def _list_docstrings(tree: ast.Module) -> Iterator[range]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            yield range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def _read_root(top: Path) -> Wheel:
    setup = configparser.RawConfigParser(delimiters=["="])
    setup.optionxform = str  # type: ignore[assignment]
    setup.read(top / "setup.cfg", encoding="utf-8")
    packages = setup["files"]["packages"].split()
    lines = (top / "requirements.txt").read_text().splitlines()
    return Wheel(
        setup["metadata"]["name"],
        ".",
        {package: package for package in packages},
        {
            group: {
                name.strip(): place.strip()
                for name, _, place in (line.partition("=") for line in text.strip().splitlines())
            }
            for group, text in setup["entry_points"].items()
        },
        tuple(line for line in lines if line and not line.startswith("#")),
        (),
        None,
        {},
    )


def _read_project(top: Path, folder: str) -> Wheel:
    read = tomllib.loads((top / folder / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = read["project"]
    package = project["name"].replace("-", "_")
    # A folder that is named as its package is the package.
    place = folder if Path(folder).name == package else f"{folder}/{package}"
    points = dict(project.get("entry-points", {}))
    if "scripts" in project:
        points["console_scripts"] = project["scripts"]
    extras = project.get("optional-dependencies", {}).values()
    return Wheel(
        project["name"],
        folder,
        {package: place},
        points,
        tuple(project["dependencies"]),
        tuple(text for extra in extras for text in extra),
        project["version"],
        read["tool"]["hatch"]["build"]["targets"]["wheel"].get("shared-data", {}),
    )


def main() -> None:
    """Print the code lines of each wheel, and its budget."""
    budget = read_budget()
    for wheel in read_wheels().values():
        print(f"{count_wheel_lines(wheel):>7,} of {budget[wheel.name]:>7,}  {wheel.name}")


if __name__ == "__main__":
    main()
