# SPDX-License-Identifier: Apache-2.0
"""The sources of a cloud for commands: a file, or the entry points ``nova_hpc.readers``."""

from __future__ import annotations

import argparse
import importlib.metadata
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from nova_hpc.topology.model import Node
from nova_hpc_tools.adopt import source_options
from nova_hpc_tools.adopt.nova_rules import NovaRefusal, PciSettings
from nova_hpc_tools.snapshot import Snapshot, SnapshotError
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.snapshot.cloud_records import CloudRecords
from nova_hpc_tools.snapshot.group_fleet import GroupLine, Reaped
from nova_hpc_tools.snapshot.node_health import NodeHealth
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest

READERS: Final = "nova_hpc.readers"

#: Goes through a sequence, and shows how far it is.
Track = Callable[[Sequence[Any]], Iterable[Any]]
#: What an entry point of READERS is: --config-file=FILE and --config-dir=DIR as
#: Nova's services take them (none: the usual ones) and an image (or None) in, a
#: snapshot out; raises SnapshotError.
Reader = Callable[[Sequence[str], str | None], Snapshot]
#: The same with a server or a request instead, and what was asked for it out.
AskedReader = Callable[[Sequence[str], str | None, str | None], UnplacedRequest]
#: The same without an image, and what nodes say about their devices out.
HealthReader = Callable[[Sequence[str]], Sequence[NodeHealth]]
#: The same, and what reads all that Nova and Placement have of the cloud.
RecordsReader = Callable[[Sequence[str]], Callable[[Track], CloudRecords]]
#: The same, and what Placement holds of server groups, or what was taken away of it.
FabricGroupsReader = Callable[[Sequence[str]], Sequence[GroupLine]]
#: What a node's nova-compute is told of PCI devices in, what Nova refuses of it out.
PciReader = Callable[[PciSettings, Node, Path], Sequence[NovaRefusal]]
FabricReaper = Callable[[Sequence[str]], Reaped]


def add_snapshot_arguments(parser: argparse.ArgumentParser, snapshot: bool = True) -> None:
    """Declare the options that say where the cloud is read.

    :param snapshot: also offer ``--snapshot``.
    """
    group = parser.add_argument_group("where the cloud is read")
    if snapshot:
        group.add_argument(
            "--snapshot",
            type=Path,
            metavar="FILE",
            help="a snapshot that was taken with nova-hpc simulate snapshot; without it, the "
            "cloud itself is read, as nova-manage reads it",
        )
    source_options.add_config_options(group, "Nova's scheduler")


def obtain_snapshot(
    snapshot: Path | None, config: Sequence[str] = (), image: str | None = None
) -> Snapshot:
    """The snapshot in a file, or a fresh one of the cloud.

    :raises SnapshotError: it cannot be had, or both are named; the text names the cure.
    """
    if snapshot is not None:
        # argparse cannot say that one option excludes two that go together.
        for word in config:
            option = word.partition("=")[0]
            raise SnapshotError(
                f"--snapshot and {option} exclude each other: a snapshot is the cloud as it was, "
                f"and {option} says where the running cloud is read; leave one out"
            )
        return snapshot_document.read_snapshot_file(snapshot)
    return cast(Reader, _load_reader("nova"))(config, image)


def read_health(config: Sequence[str] = ()) -> Sequence[NodeHealth]:
    """Read the words of every node of the cloud on its devices.

    :raises SnapshotError: it cannot be had; the text names the cure.
    """
    return cast(HealthReader, _load_reader("nova_health"))(config)


def records_reader(config: Sequence[str]) -> Callable[[Track], CloudRecords]:
    """A function that reads all that Nova's databases and Placement have of the cloud.

    :raises SnapshotError: also when it is called: it cannot be had; the text names the cure.
    """
    return cast(RecordsReader, _load_reader("nova_records"))(config)


def read_asked(
    config: Sequence[str], name: str | None, request: str | None = None
) -> UnplacedRequest:
    """Read the wishes of a server without a host, or of a request.

    :raises SnapshotError: it cannot be had; the text names the cure.
    """
    return cast(AskedReader, _load_reader("nova_asked"))(config, name, request)


def read_fabric_groups(config: Sequence[str]) -> Sequence[GroupLine]:
    """Read what Placement holds of every server group.

    :raises SnapshotError: it cannot be had; the text names the cure.
    """
    return cast(FabricGroupsReader, _load_reader("nova_fabric_groups"))(config)


def reap_fabric(config: Sequence[str]) -> Reaped:
    """Take away what Placement holds of server groups that have nobody any more.

    :raises SnapshotError: it cannot be done; the text names the cure.
    """
    return cast(FabricReaper, _load_reader("nova_fabric_reap"))(config)


def check_pci_settings(told: PciSettings, node: Node, root: Path) -> Sequence[NovaRefusal]:
    """List what Nova itself refuses of entries and aliases for PCI devices.

    :raises SnapshotError: Nova is not here; the text names the cure.
    """
    return cast(PciReader, _load_reader("nova_pci_settings"))(told, node, root)


def _load_reader(name: str) -> Callable[..., Any]:
    (entry_point, *_) = [*importlib.metadata.entry_points(group=READERS, name=name), None]
    if entry_point is None:
        raise SnapshotError(
            "nova-hpc is not installed completely (no reader of Nova is registered); "
            "install it again, or use --snapshot FILE"
        )
    try:
        with warnings.catch_warnings():
            # What Nova's libraries think of each other is no news to operators.
            warnings.simplefilter("ignore")
            return cast(Callable[..., Any], entry_point.load())
    except ImportError as error:
        raise SnapshotError(
            f"Nova cannot be loaded here ({error}); run nova-hpc with the Python environment of "
            "Nova's services, where nova-manage runs, or use --snapshot FILE"
        ) from error
