"""The files that oslo.config reads, from data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

#: One option, or several values of an option that may be given several times.
Value = str | int | bool | Path | Sequence[str]
Sections = Mapping[str, Mapping[str, Value]]


def render(sections: Sections) -> str:
    """The text of an oslo.config file.

    A sequence becomes one line a value, as oslo.config's MultiStrOpt reads
    them; ``$`` begins a substitution there, so it is escaped.
    """
    lines = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        for name, value in options.items():
            values = value if isinstance(value, list | tuple) else [value]
            lines += [f"{name} = {_text(one)}" for one in values]
        lines.append("")
    return "\n".join(lines)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).replace("$", "$$")
    if "\n" in text:
        raise ValueError(f"an option cannot hold a line break: {text!r}")
    return text
