# SPDX-License-Identifier: Apache-2.0
"""The ``nova-hpc`` command: one program, which finds its commands by entry points."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.metadata
import itertools
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final

from cliff.app import App
from cliff.command import Command

from nova_hpc_common.output.printing import InertStream, inert_streams
from nova_hpc_common.output.standard_streams import fill_descriptors, open_outlets
from nova_hpc_tools import command_help
from nova_hpc_tools.command_index import CommandIndex, PrintCompletion
from nova_hpc_tools.dropped import RENAMED, list_replacements

NAMESPACE: Final = "nova_hpc.command"
_USAGE: Final = 2
_TALKATIVE: Final = 2
_LIBRARIES: Final = ("amqp", "keystoneauth", "openstack", "os_service_types", "urllib3")
_INTERRUPTED: Final = 130
#: The first word of commands -> the wheel that has them.
_WHEELS: Final = {
    "lab": "nova-hpc-lab",
    "requirements": "nova-hpc-requirements",
    "simulate": "nova-hpc-simulate",
}
#: Signals that request a program to end.
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class NovaHpc(App):
    """The program ``nova-hpc``. It prints an error in one line, and a traceback only with
    --debug.
    """

    NAME = "nova-hpc"
    LOG = logging.getLogger("nova-hpc")
    CONSOLE_MESSAGE_FORMAT = "nova-hpc: %(message)s"
    # Messages of libraries are noise unless the user requests them.
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self) -> None:
        super().__init__(
            description="Turn an OpenStack cloud into virtual HPC clusters.",
            version=_installed_version(),
            command_manager=CommandIndex(NAMESPACE),
            deferred_help=True,
            stdout=InertStream(sys.stdout),
            stderr=InertStream(sys.stderr),
        )
        self.command_manager.add_command("complete", PrintCompletion)

    def run(self, argv: list[str]) -> int:
        """Run one command; without one, show the help and fail."""
        with inert_streams():
            if not argv:
                with contextlib.suppress(SystemExit):
                    super().run(["--help"])
                return _USAGE
            return int(super().run(argv) or 0)

    def build_option_parser(
        self,
        description: str | None,
        version: str | None,
        argparse_kwargs: dict[str, Any] | None = None,
    ) -> argparse.ArgumentParser:
        """Build the parser of the global options.

        It has the program's name also if the program was started as a module.
        """
        options = {"prog": self.NAME, **(argparse_kwargs or {})}
        parser: argparse.ArgumentParser = super().build_option_parser(description, version, options)
        command_help.shape_errors(parser)
        return parser

    def print_help_if_requested(self) -> None:
        """Print the global options and all commands, without an import of any command."""
        if not self.options.deferred_help:
            return
        names = sorted(name for name, _ in self.command_manager)
        lines = self.command_manager.format_commands(names)
        self.stdout.write("\n".join([self.parser.format_help(), "Commands:", *lines, ""]))
        raise SystemExit(0)

    def run_subcommand(self, argv: list[str]) -> int:
        """Run the command; refuse a dropped one; list the commands that begin with the words."""
        if renamed := RENAMED.get((*argv[:2],)):
            # The console shows no warnings.
            self.LOG.error(f"{' '.join(argv[:2])} is now nova-hpc {' '.join(renamed)}")
            argv = [*renamed, *argv[2:]]
        words = list(itertools.takewhile(lambda word: not word.startswith("-"), argv))
        names = dict(self.command_manager)
        if refusals := [*list_replacements(words[words[:1] == ["help"] :], names)]:
            for refusal in refusals:
                self.LOG.error(refusal)
            return _USAGE
        below = self.command_manager.list_names_below(words) if words else []
        wheel = _WHEELS.get(words[0]) if words else None
        is_command = any(" ".join(words[:count]) in names for count in range(1, len(words) + 1))
        if wheel and not is_command and find_spec(wheel.replace("-", "_")) is None:
            return self._refuse_without(wheel)
        if below and " ".join(words) not in names:
            lines = [f"{self.NAME} {' '.join(words)} has these commands:"]
            lines += self.command_manager.format_commands(below)
            self.stdout.write("\n".join([*lines, ""]))
            return _USAGE
        if (unknown := self._find_unknown(words or argv[:1])) is not None:
            near = difflib.get_close_matches(unknown, names, n=3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            self.LOG.error(f"there is no command {unknown!a}{hint}; see {self.NAME} --help")
            return _USAGE
        try:
            return int(super().run_subcommand(argv) or 0)
        except ModuleNotFoundError as error:
            if error.name != "nova_hpc_client":
                raise
            return self._refuse_without("nova-hpc-client")

    def _find_unknown(self, words: list[str]) -> str | None:
        """Return the words that begin no command, also behind ``help``; None if one is meant."""
        if words[:1] == ["help"] and words[1:2] != ["check"]:
            words = words[1:]
            if self.command_manager.list_names_below(words):
                return None
        names = [name.split() for name, _ in self.command_manager]
        # cliff takes the beginnings of a command's words, too.
        for name in names:
            pairs = zip(name, words, strict=False)
            if len(words) >= len(name) and all(full.startswith(word) for full, word in pairs):
                return None
        return " ".join(words) or None

    def _refuse_without(self, wheel: str) -> int:
        self.LOG.error(f"this command needs the wheel {wheel}: install it beside nova-hpc-tools")
        return _USAGE

    def configure_logging(self) -> None:
        """Log this program's messages, but only errors of libraries unless more is requested."""
        super().configure_logging()
        if not self.options.debug and self.options.verbose_level < _TALKATIVE:
            for name in _LIBRARIES:
                logging.getLogger(name).setLevel(logging.ERROR)

    def interact(self) -> None:
        """Refuse a command line without a command: there is no interactive mode."""
        self.parser.error("a command is missing; see nova-hpc --help")

    def prepare_to_run_command(self, cmd: Command) -> None:
        """Make SIGTERM and SIGHUP clean up as Ctrl-C does."""
        for number in _ENDING:
            signal.signal(number, _raise_interrupt)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handlers of a caller in the same process: it must still end on a signal."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is _raise_interrupt:
                signal.signal(number, handler)


def _raise_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _installed_version() -> str:
    try:
        return importlib.metadata.version("nova-hpc-tools")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``nova-hpc``; return the exit status (2 for bad usage, 130 on Ctrl-C).

    It is 141 if the command succeeded but the reader of its output closed it early.
    """
    fill_descriptors()
    with open_outlets() as streams, _signals_kept():
        try:
            status = NovaHpc().run(list(sys.argv[1:] if argv is None else argv))
        except KeyboardInterrupt:
            status = _INTERRUPTED
        except SystemExit as error:  # of argparse: after a help, or an error in the options
            streams.out.stops = True
            if streams.end(0, NovaHpc.NAME) == 0:
                raise
            status = error.code if isinstance(error.code, int) else 0
        return streams.end(status, NovaHpc.NAME)


if __name__ == "__main__":
    sys.exit(main())
