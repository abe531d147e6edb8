# SPDX-License-Identifier: Apache-2.0
"""Configuration files of this project: compare them, then write them whole or not at all."""

from __future__ import annotations

import contextlib
import difflib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology import atomic_files

#: First line of every file; this project does not own a file without it.
MARKER: Final = "# Written by nova-hpc configure. Do not edit: run it again instead."

#: The default permissions of a file.
_MODE: Final = 0o644
#: Lines around a difference.
_CONTEXT: Final = 3


class IncludeError(Exception):
    """A file cannot be written, or must not be. The text names the file and the cure."""


@attrs.frozen
class FileChange:
    """A file to write or remove, with its old and new text."""

    path: Path
    old: str | None  # None if the file does not exist
    new: str | None  # None if it has to be removed
    mode: int = _MODE

    def diff(self) -> str:
        """Format the change as a unified diff."""
        lines = difflib.unified_diff(
            (self.old or "").splitlines(),
            (self.new or "").splitlines(),
            "/dev/null" if self.old is None else str(self.path),
            "/dev/null" if self.new is None else str(self.path),
            lineterm="",
            n=_CONTEXT,
        )
        return "".join(f"{line}\n" for line in lines)


def mark_as_owned(text: str) -> str:
    """Put the comment that marks a file as this project's in front of *text*."""
    return f"{MARKER}\n{text}"


def has_project_mark(text: str) -> bool:
    """Whether the project owns a file with this *text*."""
    return text.partition("\n")[0] == MARKER


def compare_include_files(folder: Path, files: Mapping[str, str]) -> list[FileChange]:
    """Compute the changes of the include files; reads all files and writes nothing.

    :param folder: the folder of the files; it need not exist yet.
    :param files: file name -> content, see :func:`mark_as_owned`.
    :raises IncludeError: one of the files exists and the project does not own it,
        or it cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise IncludeError(f"{folder} is not a directory: name another one")
    changes = []
    for name, new in files.items():
        path = folder / name
        old = read_plain_file(path)
        if old is not None and not has_project_mark(old):
            raise IncludeError(
                f"{path} was not written by this command: move it away, or name another directory"
            )
        if old != new or stat.S_IMODE(path.stat().st_mode) != _MODE:
            changes.append(FileChange(path, old, new))
    return changes


def write_file_changes(changes: list[FileChange]) -> None:
    """Write all changed files; a reader sees the old file or the new one, whole.

    All new files are on the disk before the first of them gets its name.

    :raises IncludeError: a file could not be written. Files that already
        have their new content are complete; the others are unchanged.
    """
    with contextlib.ExitStack() as leftovers:
        ready = [(change.path, _write_draft(change, leftovers)) for change in changes]
        for path, draft in ready:
            with _explain_write_errors(path):
                if draft is None:
                    path.unlink(missing_ok=True)
                else:
                    draft.replace(path)
        for folder in {path.parent for path, _ in ready}:
            with _explain_write_errors(folder):
                atomic_files.flush_folder(folder)


def read_plain_file(path: Path) -> str | None:
    """Read the text of a plain file; None if it does not exist.

    :raises IncludeError: it is not a plain file, or cannot be read.
    """
    try:
        kind = path.lstat().st_mode
        if not stat.S_ISREG(kind):
            raise IncludeError(f"{path} is not a plain file: move it away")
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IncludeError(f"{path} cannot be read: {error.strerror}") from error


def read_text_or_empty(path: Path) -> str:
    """Read the text of a plain file; "" if it does not exist or cannot be read."""
    try:
        return read_plain_file(path) or ""
    except IncludeError:
        return ""


def _write_draft(change: FileChange, leftovers: contextlib.ExitStack) -> Path | None:
    """Write the new content to a draft in the same folder; None if the file has to be removed.

    :param leftovers: removes the draft later if it was not renamed.
    """
    if change.new is None:
        return None
    folder = change.path.parent
    with _explain_write_errors(change.path):
        folder.mkdir(parents=True, exist_ok=True)
        draft = atomic_files.write_draft(change.path, change.new.encode(), change.mode)
    leftovers.callback(draft.unlink, missing_ok=True)
    return draft


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IncludeError(f"{path} cannot be written: {error.strerror}") from error
