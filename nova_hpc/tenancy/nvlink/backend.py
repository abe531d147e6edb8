# SPDX-License-Identifier: Apache-2.0
"""The interface to a manager of an NVLink fabric, for any vendor.

Entry points of the namespace ``nova_hpc.nvlink_backends`` provide the backends, and
``[hpc]nvlink_backend`` selects one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.conf import plugin
from nova_hpc.tenancy.nvlink.partitions import NvlinkFabricError, NvlinkPartition

NAMESPACE: Final = "nova_hpc.nvlink_backends"
#: The value of the option if no partition has to be activated: no NVLinks, or
#: GPUs with direct links to one another, or switches that guests own.
NONE: Final = "none"


class BackendError(Exception):
    """An option ``[hpc]nvlink_*`` is unusable; the text names the option and the cure."""


class WaitsError(NvlinkFabricError):
    """The manager refuses every call except setting the list of active partitions.

    It does so while it starts, and after a restart.
    """


class NotSharedError(NvlinkFabricError):
    """The manager runs, but is not configured to share the fabric between servers."""


@attrs.frozen
class NvlinkSettings:
    """The values of the options ``[hpc]nvlink_*``."""

    #: ``host:port``, or the path of a Unix socket.
    address: str
    #: Seconds that one call may take.
    timeout: float
    #: Shared library of the manager, a name or a path.
    library: str
    #: The manager's number of a GPU -> its normalised PCI address here.
    gpus: Mapping[int, str] = attrs.field(factory=dict, hash=False)


#: Runs a program with a limit in seconds and returns exit status and output;
#: raises :class:`~nova_hpc.tenancy.nvlink.partitions.NvlinkFabricError` if it does not end.
Run = Callable[[Sequence[str], float], tuple[int, str]]


class NvlinkBackend(abc.ABC):
    """A manager of an NVLink fabric.

    One object serves all threads of a service, one call after the other: it
    keeps no state. Every call ends within the time limit of the settings.
    """

    def __init__(self, settings: NvlinkSettings, run: Run) -> None:
        """Store the settings; make no call yet.

        :raises BackendError: the settings are unusable.
        """
        self.settings = settings
        self.run = run

    @abc.abstractmethod
    def partitions(self) -> tuple[NvlinkPartition, ...]:
        """Return the manager's table, by id.

        :raises WaitsError: the manager first needs the list of active partitions.
        :raises NotSharedError: it has no such table.
        :raises NvlinkFabricError: it gives no answer.
        """

    @abc.abstractmethod
    def activate(self, partition: int) -> None:
        """Activate a partition, so that its GPUs are linked with each other.

        :param partition: its number in the manager's table.
        :raises NvlinkFabricError: they are not linked, or their state is unknown.
        """

    @abc.abstractmethod
    def deactivate(self, partition: int) -> None:
        """Cut the links of a partition; an inactive one raises no error.

        :raises NvlinkFabricError: the links remain, or their state is unknown.
        """

    @abc.abstractmethod
    def set_active(self, partitions: Sequence[int]) -> None:
        """Send the partitions that servers have to a restarted manager.

        :raises NvlinkFabricError: it did not accept the list.
        """


def load_nvlink_backend(name: str, settings: NvlinkSettings, run: Run) -> NvlinkBackend | None:
    """Return the backend of that name; None for :data:`NONE`.

    :raises BackendError: it cannot be loaded, or it cannot use
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
