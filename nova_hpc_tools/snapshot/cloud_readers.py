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
from nova_hpc_tools.site import source_options
from nova_hpc_tools.site.nova_rules import NovaRefusal, PciSettings
from nova_hpc_tools.snapshot import Snapshot, SnapshotError
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.snapshot.cloud_records import CloudRecords
from nova_hpc_tools.snapshot.group_fleet import GroupLine, Reaped
from nova_hpc_tools.snapshot.node_health import NodeHealth
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest

READERS: Final = "nova_hpc.readers"

#: Iterates over a sequence, and shows the progress.
Track = Callable[[Sequence[Any]], Iterable[Any]]
#: Type of the entry point ``nova``. Its arguments are --config-file=FILE and --config-dir=DIR in
#: the form of Nova's services (Nova's defaults if there are none), and an image or None. It
#: returns a snapshot, and raises SnapshotError.
Reader = Callable[[Sequence[str], str | None], Snapshot]
#: The same with a server and a request instead of the image; returns the user's request.
AskedReader = Callable[[Sequence[str], str | None, str | None], UnplacedRequest]
#: The same without an image; returns the nodes' reports on their devices.
HealthReader = Callable[[Sequence[str]], Sequence[NodeHealth]]
#: The same; returns a function that reads all records of the cloud in Nova and Placement.
RecordsReader = Callable[[Sequence[str]], Callable[[Track], CloudRecords]]
#: The same; returns Placement's records of server groups.
FabricGroupsReader = Callable[[Sequence[str]], Sequence[GroupLine]]
#: Takes the PCI settings of a node's nova-compute, and returns Nova's refusals of them.
PciReader = Callable[[PciSettings, Node, Path], Sequence[NovaRefusal]]
#: As FabricGroupsReader; removes records of empty groups, and returns the removed ones.
FabricReaper = Callable[[Sequence[str]], Reaped]


def add_snapshot_arguments(parser: argparse.ArgumentParser, snapshot: bool = True) -> None:
    """Add the options that choose between a snapshot and the running cloud to *parser*.

    :param snapshot: also offer ``--snapshot``.
    """
    group = parser.add_argument_group("where the cloud is read")
    if snapshot:
        group.add_argument(
            "--snapshot",
            type=Path,
            metavar="FILE",
            help="a snapshot that was taken with nova-hpc simulate snapshot. Without it, the "
            "running cloud is read, as nova-manage reads it",
        )
    source_options.add_config_options(group, "Nova's scheduler")


def obtain_snapshot(
    snapshot: Path | None, config: Sequence[str] = (), image: str | None = None
) -> Snapshot:
    """Read the snapshot in a file, or take one of the running cloud.

    :param snapshot: the file; None to read the cloud.
    :param config: ``--config-file=FILE`` and ``--config-dir=DIR`` of Nova's services.
    :param image: image whose properties are taken into account; not used with a file.
    :raises SnapshotError: it cannot be read, or both sources are named; the text names the cure.
    """
    if snapshot is not None:
        # argparse has no rule for one option that excludes two others that may be combined.
        for word in config:
            option = word.partition("=")[0]
            raise SnapshotError(
                f"--snapshot and {option} exclude each other: a snapshot is the cloud as it "
                f"was, and {option} sets where the running cloud is read; leave one out"
            )
        return snapshot_document.read_snapshot_file(snapshot)
    return cast(Reader, _load_reader("nova"))(config, image)


def read_health(config: Sequence[str] = ()) -> Sequence[NodeHealth]:
    """Read the report of every node of the cloud on its devices.

    :raises SnapshotError: the reports cannot be read; the text names the cure.
    """
    return cast(HealthReader, _load_reader("nova_health"))(config)


def records_reader(config: Sequence[str]) -> Callable[[Track], CloudRecords]:
    """Return a function that reads all records of the cloud in Nova's databases and Placement.

    :raises SnapshotError: the records cannot be read; the text names the cure. The returned
        function raises it, too.
    """
    return cast(RecordsReader, _load_reader("nova_records"))(config)


def read_asked(
    config: Sequence[str], name: str | None, request: str | None = None
) -> UnplacedRequest:
    """Read the user's request for a server without a host, or for all servers of one request.

    :param name: name or id of the server; None if *request* is given.
    :param request: id of the request.
    :raises SnapshotError: it cannot be read; the text names the cure.
    """
    return cast(AskedReader, _load_reader("nova_asked"))(config, name, request)


def read_fabric_groups(config: Sequence[str]) -> Sequence[GroupLine]:
    """Read Placement's records of every server group.

    :raises SnapshotError: they cannot be read; the text names the cure.
    """
    return cast(FabricGroupsReader, _load_reader("nova_fabric_groups"))(config)


def reap_fabric(config: Sequence[str]) -> Reaped:
    """Remove Placement's records of server groups without members.

    :raises SnapshotError: they cannot be removed; the text names the cure.
    """
    return cast(FabricReaper, _load_reader("nova_fabric_reap"))(config)


def check_pci_settings(told: PciSettings, node: Node, root: Path) -> Sequence[NovaRefusal]:
    """List the entries and aliases for PCI devices that Nova itself refuses.

    :raises SnapshotError: Nova is not installed here; the text names the cure.
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
            # Warnings of Nova's libraries about each other do not help operators.
            warnings.simplefilter("ignore")
            return cast(Callable[..., Any], entry_point.load())
    except ImportError as error:
        raise SnapshotError(
            f"Nova cannot be loaded here ({error}); run nova-hpc with the Python environment of "
            "Nova's services, where nova-manage runs, or use --snapshot FILE"
        ) from error
