# SPDX-License-Identifier: Apache-2.0
"""The files that ``nova-hpc configure`` writes: shown first, and given back by ``--undo``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.wire import undo as undo_record
from nova_hpc.wire.undo import Replaced, Step
from nova_hpc.wire.version import WireError
from nova_hpc_tools.adopt import include_files, settings
from nova_hpc_tools.adopt import option_changes as effective
from nova_hpc_tools.adopt.include_files import FileChange
from nova_hpc_tools.base import CommandError

#: Beside the include files; no service reads it.
RECORD: Final = "nova-hpc-undo.json"
#: Runs that can be undone.
_MOST: Final = 20
#: File name -> whose settings it has; the last ones are of Kolla-Ansible.
_PARTS: Final = {
    **{settings.file_name(part): part for part in settings.PARTS},
    "nova-compute.conf": settings.COMPUTE,
    "nova-scheduler.conf": settings.CONTROLLER,
    "placement.conf": settings.PLACEMENT,
}


def check_folder(folder: Path) -> None:
    """See whether files may be written there: a mistyped name makes no directory.

    :raises CommandError: there is no such directory, and it is none that services look for.
    """
    if folder.is_dir():
        return
    if folder.exists():
        raise CommandError(f"{folder} is not a directory: name another one")
    if folder.name.endswith("conf.d") and folder.parent.is_dir():
        return
    raise CommandError(
        f"there is no directory {folder}: name the one that the service reads "
        "(/etc/nova/nova.conf.d), or make it first"
    )


@attrs.frozen
class IncludeWriter:
    """Writes into one directory, and says what it does."""

    folder: Path | None
    dry_run: bool
    say: Callable[..., None]

    def write(
        self,
        words: Sequence[str],
        files: Mapping[str, str],
        declaration: FileChange | None,
        edits: Sequence[FileChange] = (),
    ) -> list[tuple[str, str]]:
        """Show the differences and write; every file and what became of it.

        :param words: where Nova's services look for their configuration.
        :param files: name -> text.
        :param declaration: the node's, where it changes.
        :param edits: of files of others, which are written last.
        """
        assert self.folder is not None
        changes = include_files.compare_include_files(self.folder, files)
        if declaration is not None:
            changes.append(declaration)
        states = {str(self.folder / name): "unchanged" for name in files}
        changes += edits
        count = len(files) + (declaration is not None) + len(edits)
        return self._do(words, changes, states, count)

    def undo(self, words: Sequence[str]) -> list[tuple[str, str]]:
        """Give back what the last run has replaced.

        :raises CommandError: there is none, or a file was changed since.
        """
        assert self.folder is not None
        steps = self._steps()
        if not steps:
            raise CommandError(f"nothing to undo: no run has written to {self.folder}")
        changes = []
        for replaced in steps[-1]:
            path = Path(replaced.path)
            current_text = include_files.read_exact_file(path)
            if current_text != replaced.after:
                raise CommandError(
                    f"{path} was changed since it was written: what was there before is in "
                    f"{self.folder / RECORD}"
                )
            if current_text != replaced.before:
                is_ours = (
                    replaced.before is None
                    or current_text is None
                    or _is_project_file(path, current_text)
                )
                changes.append(
                    FileChange(path, current_text, replaced.before)
                    if is_ours
                    else include_files.build_foreign_edit(path, current_text or "", replaced.before)
                )
        states: dict[str, str] = {}
        rows = self._do(words, changes, states, len(changes), record=False)
        if not self.dry_run:
            self._keep(steps[:-1])
        return rows

    def _do(
        self,
        words: Sequence[str],
        changes: list[FileChange],
        states: dict[str, str],
        count: int,
        record: bool = True,
    ) -> list[tuple[str, str]]:
        if not changes:
            self.say("Nothing to do.")
        for change in changes:
            self.say(change.diff() or f"{change.path}: permissions become 0644\n", end="")
            states[str(change.path)] = "would be written" if self.dry_run else "written"
            if change.new is None:
                states[str(change.path)] = "would be removed" if self.dry_run else "removed"
        self._tell(words, changes)
        if self.dry_run:
            if changes:
                self.say(f"Nothing written: --dry-run. {len(changes)} of {count} files differ.")
            return list(states.items())
        steps = self._steps() if record and changes else ()
        include_files.write_file_changes(changes)
        if record and changes:
            step = tuple(
                Replaced(str(change.path.absolute()), change.old, change.new)
                for change in changes
                if change.old != change.new
            )
            self._keep((*steps, step) if step else steps)
        for change in changes:
            self.say(f"{'Removed' if change.new is None else 'Wrote'} {change.path}")
        return list(states.items())

    def _tell(self, words: Sequence[str], changes: Sequence[FileChange]) -> None:
        """Say what the services are told otherwise, whatever the files look like."""
        services = effective.services_by_part(words)
        by_service: dict[
            effective.ConfiguredService, dict[Path, tuple[str | None, str | None]]
        ] = {}
        for change in changes:
            part = settings.COMPUTE if change.owner else _PARTS.get(change.path.name)
            if part is not None and change.old != change.new:
                files = by_service.setdefault(services[part], {})
                files[change.path] = (change.old, change.new)
        for service, files in by_service.items():
            option_changes = effective.find_option_changes(service, files)
            lines = [line for option_change in option_changes for line in option_change.lines()]
            if lines:
                self.say(f"What changes for {service.name}:")
            for line in lines:
                self.say(f"  {line}")
            new = {
                path: text
                for path, (_, text) in files.items()
                if text is not None and include_files.has_project_mark(text)
            }
            for note in effective.find_hidden_options(service, new):
                self.say(note)

    # -- the record ------------------------------------------------------------------------

    def _steps(self) -> tuple[Step, ...]:
        assert self.folder is not None
        path = self.folder / RECORD
        text = include_files.read_plain_file(path)
        try:
            return () if text is None else undo_record.read_undo(text)
        except WireError as error:
            raise CommandError(f"{path}: {error}; move it away") from error

    def _keep(self, steps: tuple[Step, ...]) -> None:
        assert self.folder is not None
        path = self.folder / RECORD
        old = include_files.read_plain_file(path)
        new = undo_record.write_undo(steps[-_MOST:]) if steps else None
        if old != new:
            include_files.write_file_changes(
                [FileChange(path, old, new, _choose_record_mode(steps))]
            )


def _is_project_file(path: Path, text: str) -> bool:
    """Whether this project wrote it: include files, and the declaration."""
    return include_files.has_project_mark(text) or path.suffix == ".yaml"


def _choose_record_mode(steps: Sequence[Step]) -> int:
    """Of the record: what it repeats of a file of others is read by nobody else."""
    paths = [Path(replaced.path) for step in steps for replaced in step]
    texts = [replaced.before or replaced.after or "" for step in steps for replaced in step]
    ours = all(_is_project_file(path, text) for path, text in zip(paths, texts, strict=True))
    return 0o644 if ours else 0o600
