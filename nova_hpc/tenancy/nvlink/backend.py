# SPDX-License-Identifier: Apache-2.0
"""The questions to a manager of an NVLink fabric, whoever made it.

Backends are found by the entry points of the namespace
``nova_hpc.nvlink_backends`` and chosen by ``[hpc]nvlink_backend``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.conf import plugin
from nova_hpc.tenancy.nvlink.partitions import NvlinkFabricError, NvlinkPartition

NAMESPACE: Final = "nova_hpc.nvlink_backends"
#: The value of the option where nothing has to be made active: no NVLinks, or
#: GPUs with direct links to one another, or switches that guests own.
NONE: Final = "none"


class BackendError(Exception):
    """``[hpc]nvlink_*`` cannot be used; the text says which option and the cure."""


class WaitsError(NvlinkFabricError):
    """The manager is there and refuses everything but the list of active partitions.

    So it does after a restart, and while it is starting.
    """


class NotSharedError(NvlinkFabricError):
    """The manager is there, but is not set to share the fabric between servers."""


@attrs.frozen
class NvlinkSettings:
    """``[hpc]nvlink_*``."""

    #: ``host:port``, or the path of a Unix socket.
    address: str
    #: Seconds that one call may take.
    timeout: float
    #: Shared library of the manager, a name or a path.
    library: str
    #: The manager's number of a GPU -> its normalised PCI address here.
    gpus: Mapping[int, str] = attrs.field(factory=dict, hash=False)


#: Runs a program with a limit in seconds and returns exit status and output;
#: raises :class:`~nova_hpc.tenancy.nvlink.partitions.NvlinkFabricError` when it does not end.
Run = Callable[[Sequence[str], float], tuple[int, str]]


class NvlinkBackend(abc.ABC):
    """A manager of an NVLink fabric.

    One object serves all threads of a service, one call after the other: it
    keeps no state. Every call ends within the time of the settings.
    """

    def __init__(self, settings: NvlinkSettings, run: Run) -> None:
        """Keep the settings; nothing is called yet.

        :raises BackendError: they cannot be used.
        """
        self.settings = settings
        self.run = run

    @abc.abstractmethod
    def partitions(self) -> tuple[NvlinkPartition, ...]:
        """The table, by id.

        :raises WaitsError: it has to be told first which are active.
        :raises NotSharedError: it has no such table.
        :raises NvlinkFabricError: it cannot be had.
        """

    @abc.abstractmethod
    def activate(self, partition: int) -> None:
        """Link the GPUs of a partition.

        :raises NvlinkFabricError: they are not linked, or that is unknown.
        """

    @abc.abstractmethod
    def deactivate(self, partition: int) -> None:
        """Cut the links of a partition; one that has none is no error.

        :raises NvlinkFabricError: they are still there, or that is unknown.
        """

    @abc.abstractmethod
    def set_active(self, partitions: Sequence[int]) -> None:
        """Tell a manager that was restarted which partitions servers have.

        :raises NvlinkFabricError: it did not take the list.
        """


def load_nvlink_backend(name: str, settings: NvlinkSettings, run: Run) -> NvlinkBackend | None:
    """The backend of that name; None for :data:`NONE`.

    :raises BackendError: there is none that can be loaded, or it cannot use
        the settings.
    """
    if name == NONE:
        return None
    try:
        backend: NvlinkBackend = plugin.load_plugin(
            "nvlink_backend", NAMESPACE, name, NvlinkBackend, settings, run
        )
    except plugin.PluginError as error:
        raise BackendError(str(error)) from error
    return backend
