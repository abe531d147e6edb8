"""Where commands get a snapshot from: a file, or the cloud itself."""

from __future__ import annotations

import argparse
import importlib.metadata
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from nova_hpc.cli import node_config
from nova_hpc.cloud.snapshot import Snapshot, SnapshotError
from nova_hpc.cloud.snapshot import document as snapshot_document

READERS: Final = "nova_hpc.readers"

#: What an entry point of READERS is: --config-file=FILE and --config-dir=DIR as
#: Nova's services take them (none: the usual ones) and an image (or None) in, a
#: snapshot out; raises SnapshotError.
Reader = Callable[[Sequence[str], str | None], Snapshot]


def add_arguments(parser: argparse.ArgumentParser, snapshot: bool = True) -> None:
    """Declare the options that say where the cloud is read.

    :param snapshot: also offer ``--snapshot``.
    """
    group = parser.add_argument_group("where the cloud is read")
    one = group.add_mutually_exclusive_group() if snapshot else group
    if snapshot:
        one.add_argument(
            "--snapshot",
            type=Path,
            metavar="FILE",
            help="a snapshot that was taken with nova-hpc simulate snapshot; without it, the "
            "cloud itself is read, as nova-manage reads it",
        )
    node_config.add_options(one, "Nova's scheduler")


def read(snapshot: Path | None, config: Sequence[str] = (), image: str | None = None) -> Snapshot:
    """The snapshot in a file, or a fresh one of the cloud.

    :raises SnapshotError: it cannot be had; the text names the cure.
    """
    if snapshot is not None:
        return snapshot_document.read(snapshot)
    return _reader()(config, image)


def _reader() -> Reader:
    (found, *_) = [
        *importlib.metadata.entry_points(group=READERS, name="nova"),
        None,
    ]
    if found is None:
        raise SnapshotError(
            "nova-hpc is not installed completely (no reader of Nova is registered); "
            "install it again, or use --snapshot FILE"
        )
    try:
        with warnings.catch_warnings():
            # What Nova's libraries think of each other is no news to operators.
            warnings.simplefilter("ignore")
            return cast(Reader, found.load())
    except ImportError as error:
        raise SnapshotError(
            f"Nova cannot be loaded here ({error}); run nova-hpc with the Python environment of "
            "Nova's services, where nova-manage runs, or use --snapshot FILE"
        ) from error
