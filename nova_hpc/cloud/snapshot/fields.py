"""Reads JSON objects strictly: every error says where and what to expect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nova_hpc.cloud.snapshot import SnapshotError

_MOST: Final = 1_000_000_000
_LONGEST: Final = 60


class Fields:
    """One object, whose fields are read by name; finish() refuses the rest."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self._where = where
        self._read: set[str] = set()

    def error(self, key: str, text: str) -> SnapshotError:
        """An error about one field."""
        where = f"{self._where}: {key}" if self._where else key
        return SnapshotError(f"{where} {text}")

    def finish(self) -> None:
        """Refuse fields that nobody has read.

        :raises SnapshotError: names the first of them.
        """
        for key in sorted(self._data.keys() - self._read):
            raise self.error(_plain(key), "is no known field of this version")

    # -- texts -------------------------------------------------------------------

    def text(self, key: str) -> str:
        """A text that is not empty."""
        return self._text(key, self._get(key), "a text")

    def maybe_text(self, key: str) -> str | None:
        """A text that is not empty, or null."""
        return None if self._get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        return self._texts(key, self._list(key))

    def text_lists(self, key: str) -> tuple[tuple[str, ...], ...]:
        """A list of lists of texts."""
        found = []
        for value in self._list(key):
            if not isinstance(value, list) or not value:
                raise self._wrong(key, value, "a list of lists of texts")
            found.append(self._texts(key, value))
        return tuple(found)

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object of printable names and texts."""
        found = self.pairs(key)
        return {
            self._text(key, name, "a text"): self._text(f"{key}: {name}", value, "a text")
            for name, value in found.items()
        }

    def pairs(self, key: str) -> dict[str, str]:
        """An object of texts that users have written: any text at all."""
        return self._pairs(key, self._get(key))

    def nested_pairs(self, key: str) -> dict[str, dict[str, str]]:
        """An object of objects of texts."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return {name: self._pairs(f"{key}: {name}", each) for name, each in value.items()}

    # -- numbers -----------------------------------------------------------------

    def count(self, key: str, most: int = _MOST, least: int = 0) -> int:
        """A whole number from *least* to *most*."""
        return self._count(key, self._get(key), most, least)

    def maybe_count(self, key: str, most: int = _MOST, least: int = 0) -> int | None:
        """A whole number from *least* to *most*, or null."""
        value = self._get(key)
        return None if value is None else self._count(key, value, most, least)

    def maybe_counts(self, key: str, most: int = _MOST) -> dict[int, int] | None:
        """An object of sizes to counts, or null; the sizes are texts in JSON."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        found = {}
        for size, count in value.items():
            if not (size.isascii() and size.isdigit() and len(size) <= 15 and int(size)):
                raise self.error(key, f"has the size {_shown(size)}, not a number of KiB above 0")
            found[int(size)] = self._count(f"{key}: {size}", count, most, 0)
        return found

    def counts(self, key: str, most: int = _MOST, least: int = 0) -> dict[str, int]:
        """An object of printable names to whole numbers."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return {
            self._text(key, name, "a text"): self._count(f"{key}: {name}", count, most, least)
            for name, count in value.items()
        }

    # -- objects -----------------------------------------------------------------

    def objects(self, key: str, kind: str) -> Iterator[Fields]:
        """A list of objects that errors call by their kind and name."""
        for number, value in enumerate(self._list(key)):
            if not isinstance(value, dict):
                raise self._wrong(key, value, "a list of objects")
            name = value.get("name") or value.get("host") or f"number {number}"
            yield Fields(value, f"{kind} {name}" if isinstance(name, str) else kind)

    def finished(self, key: str, name: str | None = None) -> Iterator[Fields]:
        """A list of objects inside this one; each is finished after its turn."""
        for number, value in enumerate(self._list(key)):
            if not isinstance(value, dict):
                raise self._wrong(key, value, "a list of objects")
            called = value.get(name) if name else None
            here = f"{key} {called if isinstance(called, str) else f'number {number}'}"
            item = Fields(value, f"{self._where}: {here}" if self._where else here)
            yield item
            item.finish()

    # -- what all of them use ------------------------------------------------------

    def _get(self, key: str) -> Any:
        self._read.add(key)
        if key not in self._data:
            raise self.error(key, "is missing")
        return self._data[key]

    def _list(self, key: str) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return value

    def _texts(self, key: str, values: list[Any]) -> tuple[str, ...]:
        return tuple(self._text(key, value, "a list of texts") for value in values)

    def _text(self, key: str, value: Any, expected: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._wrong(key, value, expected)
        if not value.isprintable():
            # It would end in somebody's terminal.
            raise self.error(key, f"is {_shown(value)}, which cannot be printed")
        return value

    def _pairs(self, key: str, value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        for name, each in value.items():
            if not isinstance(each, str):
                raise self._wrong(f"{key}: {name}", each, "a text")
        return dict(value)

    def _count(self, key: str, value: Any, most: int, least: int) -> int:
        # True is a number in Python, but not here.
        if type(value) is not int:
            raise self._wrong(key, value, "a whole number")
        if not least <= value <= most:
            raise self.error(key, f"is {_shown(value)}; it must be {least} to {most}")
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> SnapshotError:
        return self.error(key, f"is {_shown(value)}, not {expected}")


def _plain(key: str) -> str:
    return key if key.isidentifier() and len(key) <= _LONGEST else _shown(key)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
