"""Reads the configuration of a service as the service itself does.

oslo.config looks for ``nova.conf`` and ``nova-compute.conf``, then for the
directories ``nova.conf.d`` and ``nova-compute.conf.d``, each in ``~/.nova``, ``~``,
``/etc/nova`` and ``/etc``. ``--config-file`` replaces the files that it found and
``--config-dir`` the directories, each only its own kind. Every command that
needs to know what a service is told reads it here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from oslo_config import cfg

from nova_hpc import conf

_FILE: Final = "--config-file="
_FOLDER: Final = "--config-dir="


class ConfigError(Exception):
    """The configuration cannot be read; the text says why."""


def add_options(
    parser: argparse._ActionsContainer, whose: str = "this node's nova-compute"
) -> None:
    """Declare ``--config-file`` and ``--config-dir``.

    ``config`` becomes the words in the order in which they were given, as a service
    takes them: a later one wins.
    """
    for option, metavar, what in (
        (_FILE, "FILE", f"configuration of {whose}"),
        (_FOLDER, "DIR", "directory of which every *.conf is read, too"),
    ):
        parser.add_argument(
            option.rstrip("="),
            # argparse calls a type with the text that was given.
            type=(option + "{}").format,
            action="append",
            dest="config",
            default=[],
            metavar=metavar,
            help=f"{what} (default: where the service itself looks); may be repeated",
        )


def files(
    words: Sequence[str], prog: str = "nova-compute", project: str = "nova"
) -> tuple[Path, ...]:
    """The files that a service reads, in its order: a later one wins.

    :param words: ``--config-file=`` and ``--config-dir=`` as it is started with.
    :param prog: the service: ``nova-compute.conf`` is its own.
    :raises ConfigError: a directory that was named is not there.
    """
    found: list[Path] = []
    # The order of oslo.config (ConfigOpts._parse_config_files): its own finds come first.
    if not any(word.startswith(_FILE) for word in words):
        found += map(Path, cfg.find_config_files(project, prog))
    if not any(word.startswith(_FOLDER) for word in words):
        for each in cfg.find_config_dirs(project, prog):
            found += _all(Path(each))
    for word in words:
        if word.startswith(_FOLDER):
            folder = Path(word.removeprefix(_FOLDER))
            if not folder.is_dir():
                raise ConfigError(f"the configuration cannot be read: no directory {folder}")
            found += _all(folder)
        else:
            found.append(Path(word.removeprefix(_FILE)))
    return tuple(found)


def _all(folder: Path) -> list[Path]:
    """What oslo.config reads of a directory: no hidden files."""
    return [path for path in sorted(folder.glob("*.conf")) if not path.name.startswith(".")]


def load(
    paths: Iterable[Path], more: Mapping[str, Sequence[cfg.Opt]] | None = None
) -> cfg.ConfigOpts:
    """What these files say of this project's options, and of others.

    :param more: group -> options of the services themselves that are read, too.
    :raises ConfigError: a file cannot be read.
    """
    options = cfg.ConfigOpts()
    conf.register(options)
    # Nova's own, in which the state files are by default.
    options.register_opt(cfg.StrOpt("state_path", default="/var/lib/nova"))
    for group, opts in (more or {}).items():
        options.register_opts(opts, group=group)
    try:
        options([], default_config_files=[str(path) for path in paths], default_config_dirs=[])
    except (cfg.Error, OSError, ValueError) as error:
        raise _unreadable(error) from error
    return options


def read(words: Sequence[str], needed: Iterable[str]) -> cfg.ConfigOpts:
    """The configuration as nova-compute of this node has it.

    :param words: as :func:`add_options` leaves them.
    :param needed: options of group ``[hpc]`` that are used later.
    :raises ConfigError: it cannot be read, or one of these has no value that can be used.
    """
    options = load(files(words))
    check(options, "hpc", needed)
    return options


def check(options: cfg.ConfigOpts, group: str, needed: Iterable[str]) -> None:
    """Read now what would fail later.

    :raises ConfigError: one of these options has no value that can be used.
    """
    try:
        for name in needed:
            getattr(options[group], name)
    except (cfg.Error, ValueError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ConfigError:
    return ConfigError(f"the configuration cannot be read: {' '.join(str(error).split())}")
