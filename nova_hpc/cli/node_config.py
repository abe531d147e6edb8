"""The configuration of this node's nova-compute, for commands that run beside it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from oslo_config import cfg

from nova_hpc import conf

NOVA_CONF: Final = Path("/etc/nova/nova.conf")


class ConfigError(Exception):
    """The configuration cannot be read; the text says why."""


def add_option(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Declare ``--config-file``; returns the parser."""
    parser.add_argument(
        "--config-file",
        type=Path,
        action="append",
        metavar="FILE",
        help="configuration of this node's nova-compute "
        f"(default: {NOVA_CONF} where it exists); may be repeated",
    )
    return parser


def read(files: Sequence[Path] | None, needed: Iterable[str]) -> cfg.ConfigOpts:
    """The configuration as nova-compute of this node has it.

    :param files: None: the default.
    :param needed: options of group ``[hpc]`` that are used later.
    :raises ConfigError: it cannot be read, or one of these has no value that can be used.
    """
    if files is None:
        files = [NOVA_CONF] if NOVA_CONF.exists() else []
    options = cfg.ConfigOpts()
    conf.register(options)
    # Nova's own, in which the state files are by default.
    options.register_opt(cfg.StrOpt("state_path", default="/var/lib/nova"))
    try:
        options(
            [],
            project="nova",
            default_config_files=[str(path) for path in files],
            default_config_dirs=None if files == [NOVA_CONF] else [],
        )
        # Read now what would fail later.
        for name in needed:
            getattr(options.hpc, name)
    except (cfg.Error, OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"the configuration cannot be read: {text}") from error
    return options
