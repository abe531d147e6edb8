# SPDX-License-Identifier: Apache-2.0
"""The files that ``nova-hpc configure`` shows and writes, and removes with ``--undo``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_tools.adopt import option_changes as effective
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.site import include_files, settings
from nova_hpc_tools.site.include_files import FileChange

#: Earlier releases kept the texts that they replaced in this file, also of operators' files.
OLD_RECORD: Final = "nova-hpc-undo.json"
#: File name -> part of the settings in it; the last three are names of Kolla-Ansible.
_PARTS: Final = {
    **{settings.file_name(part): part for part in settings.PARTS},
    "nova-compute.conf": settings.COMPUTE,
    "nova-scheduler.conf": settings.CONTROLLER,
    "placement.conf": settings.PLACEMENT,
}


def check_folder(folder: Path) -> None:
    """Check that *folder* is a directory for include files, so that a mistyped name creates none.

    :raises CommandError: *folder* is not a directory, and not the name of a missing ``conf.d``
        directory in an existing one.
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
    """Writer of include files into one directory, which prints each change."""

    folder: Path | None
    dry_run: bool
    say: Callable[..., None]

    def write(
        self, words: Sequence[str], files: Mapping[str, str], declaration: FileChange | None
    ) -> list[tuple[str, str]]:
        """Print the differences and write the files.

        :param words: the ``--config-file=`` and ``--config-dir=`` of Nova's services.
        :param files: name -> text.
        :param declaration: the change of the node's declaration; None without a change.
        :returns: every file and its state.
        """
        assert self.folder is not None
        changes = include_files.compare_include_files(self.folder, files)
        if declaration is not None:
            changes.append(declaration)
        states = {str(self.folder / name): "unchanged" for name in files}
        return self._do(words, changes, states, len(files) + (declaration is not None))

    def undo(self, words: Sequence[str], names: Iterable[str]) -> list[tuple[str, str]]:
        """Remove files that this project has written; files of others stay.

        :param names: of the files.
        :raises CommandError: none of them exists with the project's mark.
        """
        assert self.folder is not None
        changes = []
        for path in (self.folder / name for name in names):
            text = include_files.read_plain_file(path)
            if text is not None and include_files.has_project_mark(text):
                changes.append(FileChange(path, text, None))
            elif text is not None:
                self.say(f"{path} was not written by this command and stays.")
        if not changes:
            raise CommandError(f"nothing to undo: {self.folder} has no file of this command")
        rows = self._do(words, changes, {}, len(changes))
        record = self.folder / OLD_RECORD
        if record.exists():
            self.say(
                f"{record} stays: it has the former texts of all files that earlier releases "
                "changed, yours included. Restore the lines that you miss, then remove it."
            )
        return rows

    def _do(
        self, words: Sequence[str], changes: list[FileChange], states: dict[str, str], count: int
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
        include_files.write_file_changes(changes)
        for change in changes:
            self.say(f"{'Removed' if change.new is None else 'Wrote'} {change.path}")
        return list(states.items())

    def _tell(self, words: Sequence[str], changes: Sequence[FileChange]) -> None:
        """Print the options whose value changes for a service, not the lines of the files."""
        services = effective.services_by_part(words)
        by_service: dict[
            effective.ConfiguredService, dict[Path, tuple[str | None, str | None]]
        ] = {}
        for change in changes:
            part = _PARTS.get(change.path.name)
            if part is not None and change.old != change.new:
                files = by_service.setdefault(services[part], {})
                files[change.path] = (change.old, change.new)
        for service, files in by_service.items():
            option_changes = effective.find_option_changes(service, files)
            lines = [line for option_change in option_changes for line in option_change.lines()]
            if lines:
                self.say(f"Changes for {service.name}:")
            for line in lines:
                self.say(f"  {line}")

    def find_hidden_options(self, words: Sequence[str], files: Mapping[str, str]) -> list[str]:
        """Return refusals for options that a foreign file, read later, sets to another value.

        :param words: ``--config-file=`` and ``--config-dir=`` of the command.
        :param files: name -> text of the files to write.
        """
        if self.folder is None:
            return []
        services = effective.services_by_part(words)
        by_service: dict[effective.ConfiguredService, dict[Path, str]] = {}
        for name, text in files.items():
            path = self.folder / name
            if path.name in _PARTS:
                by_service.setdefault(services[_PARTS[path.name]], {})[path] = text
        return [
            refusal
            for service, texts in by_service.items()
            for refusal in effective.find_hidden_options(service, texts)
        ]
