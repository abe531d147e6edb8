# SPDX-License-Identifier: Apache-2.0
"""Writes the page of release notes from reno's files, without git.

``release-VERSION-UID.yaml`` is the note of a release; all other notes belong to the next release.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

#: reno's sections, in the order of the page.
SECTIONS = {
    "upgrade": "What an upgrade needs",
    "features": "What is new",
    "security": "Security",
    "fixes": "What was mended",
    "issues": "Known limits",
    "deprecations": "What will go",
    "other": "Other",
}
NEXT = "Not released yet"
_RELEASE = re.compile(r"release-(\d+\.\d+\.\d+)-[0-9a-f]{16}\.yaml")


def format_notes(notes: Mapping[str, str]) -> str:
    """The page's text.

    :param notes: name of a file -> its text.
    :raises ValueError: a note has a section that reno does not have.
    """
    versions: dict[str, list[dict]] = {}
    for name, text in sorted(notes.items()):
        match = _RELEASE.fullmatch(name)
        versions.setdefault(match[1] if match else NEXT, []).append(yaml.safe_load(text))
    order = sorted(versions, key=_rank, reverse=True)
    return "\n".join(
        line for version in order for line in _format_version(version, versions[version])
    )


def _rank(version: str) -> tuple[int, ...]:
    return (1 << 30,) if version == NEXT else tuple(map(int, version.split(".")))


def _format_version(version: str, notes: Iterable[dict]) -> Iterator[str]:
    notes = list(notes)
    yield from (version, "=" * len(version), "")
    wrong = {key for note in notes for key in note} - {*SECTIONS, "prelude"}
    if wrong:
        raise ValueError(f"no section of release notes: {', '.join(sorted(wrong))}")
    for note in notes:
        if "prelude" in note:
            yield from (note["prelude"].strip(), "")
    for key, title in SECTIONS.items():
        items = [item for note in notes for item in note.get(key, ())]
        if items:
            yield from (title, "-" * len(title), "")
        for item in items:
            first, *rest = item.rstrip().split("\n")
            yield from (f"* {first}", *(f"  {line}".rstrip() for line in rest), "")


def write_file(folder: Path, target: Path) -> None:
    """Write the page, if it has changed."""
    notes = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    text = format_notes(notes)
    target.parent.mkdir(exist_ok=True)
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")
