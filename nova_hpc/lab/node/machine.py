"""One virtual node: its files, its supervisor, its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nova_hpc.lab.node.contract import NodeCloud, NodePaths, NodeStatus
from nova_hpc.lab.node.shape import Shape


class Node:
    """A virtual HPC node of the lab.

    :param index: 1 for the first node; gives the name (``hpc1``), the SSH
        port, and the identities of the devices.
    """

    def __init__(self, index: int, shape: Shape, paths: NodePaths, cloud: NodeCloud) -> None:
        self.index = index
        self.name = f"hpc{index}"
        self.shape = shape
        #: Everything of this node: disk, keys, logs (``serial.log``,
        #: ``supervisor.log``), ``status.json``.
        self.folder: Path = paths.state / "nodes" / self.name
        self.log: Path = self.folder / "serial.log"

    def start(self) -> None:
        """Start the node in the background; does nothing if it runs already.

        Writes the configuration (:meth:`write_config` with the cloud's files
        if that was not called before), makes a fresh overlay disk unless one
        is kept, and starts the supervisor, which outlives this process.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Shut the node down and wait for it; does nothing if it does not run."""
        raise NotImplementedError

    def status(self) -> NodeStatus:
        """What is known right now; never raises for a node in a bad state."""
        raise NotImplementedError

    def ssh_argv(self, command: Sequence[str] = ()) -> list[str]:
        """The ``ssh`` command line that runs *command* as root in the node.

        Each word is quoted for the remote shell; without a command it gives a
        login shell.
        """
        raise NotImplementedError

    def write_config(self, files: Mapping[str, str]) -> None:
        """Make the node's configuration disk; read by the node at its next start.

        :param files: as :meth:`NodeCloud.compute_files` returns them. The
            project's own code, keys and the shape are added here.
        """
        raise NotImplementedError
