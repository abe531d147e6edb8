"""Cleaners: how a device of one role is made ready for the next server.

A cleaner resets, and checks what only it can know; that the device then looks
as its baseline says is checked for all of them. Others than these are found
by the entry points of the namespace ``nova_hpc.cleaners``, and chosen for a
role by ``[hpc]cleaners``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.conf import plugin
from nova_hpc.tenancy.health import is_vfio
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.topology.model import Function

NAMESPACE: Final = "nova_hpc.cleaners"
GENERIC: Final = "generic"


class CleanError(Exception):
    """A device could not be cleaned; the text says why, for operators."""


class CleanerError(Exception):
    """``[hpc]cleaners`` names a cleaner that cannot be used; the text says which."""


@attrs.frozen
class Tools:
    """What a cleaner works with."""

    #: Where ``sys`` of the node is.
    root: Path
    #: Seconds that one reset, or one program, may take.
    timeout: float
    #: Resets the device at an address; raises ResetError.
    reset: Callable[[str], None]
    #: A device that the kernel cannot reset is quarantined.
    need_reset: bool = True


class Cleaner(abc.ABC):
    """Makes devices of one role ready for the next server.

    One object serves all devices and threads of a service: it keeps no state.
    """

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @abc.abstractmethod
    def clean(self, function: Function) -> None:
        """Clean a device that nobody has.

        :param function: as it was just read.
        :raises CleanError: it is not clean, or nobody knows.
        :raises nova_hpc.tenancy.hygiene.reset.ResetError: likewise.
        """


class Generic(Cleaner):
    """A PCI function: the kernel resets it (FLR, power management, bus, ...)."""

    def clean(self, function: Function) -> None:
        """Reset the function, unless a driver of the host has it back."""
        if function.driver is not None and not is_vfio(function.driver):
            # libvirt gave it back (managed: yes) after vfio had reset it. A
            # reset now would be one below a working driver.
            return
        if function.reset_methods == () and not self.tools.need_reset:
            return
        self.tools.reset(function.address)


class VirtualFunction(Generic):
    """A virtual function: as any other, and its names are taken away."""

    def clean(self, function: Function) -> None:
        """Reset the function, then forget the identity that a server gave it."""
        super().clean(function)
        self.clear_identity(function)

    def clear_identity(self, function: Function) -> None:
        """Take away what only the cleaner of an adapter knows of.

        Nothing here: GUIDs and MAC were put back before, by who has set them.
        """


@attrs.frozen
class Cleaners:
    """The cleaner of each role."""

    of_role: Mapping[str, Cleaner] = attrs.field(hash=False)
    default: Cleaner

    def of(self, role: str | None) -> Cleaner:
        """The cleaner of a role, or of a device without one."""
        return self.of_role.get(role or "", self.default)


def load(names: Mapping[str, str], tools: Tools) -> Cleaners:
    """Find the cleaners that ``[hpc]cleaners`` names.

    :param names: role -> name of an entry point of :data:`NAMESPACE`.
    :raises CleanerError: there is none of that name, or it cannot be loaded.
    """
    return Cleaners(
        of_role={role: _find(name, tools) for role, name in names.items()},
        default=_find(GENERIC, tools),
    )


_OWN: Final[Mapping[str, type[Cleaner]]] = {GENERIC: Generic, "vf": VirtualFunction}


def _find(name: str, tools: Tools) -> Cleaner:
    # Its own are there however the project was installed.
    own = _OWN.get(name)
    if own is not None:
        return own(tools)
    try:
        found: Cleaner = plugin.load("cleaners", NAMESPACE, name, Cleaner, tools)
    except plugin.PluginError as error:
        raise CleanerError(str(error)) from error
    return found


__all__ = [
    "CleanError",
    "Cleaner",
    "CleanerError",
    "Cleaners",
    "Generic",
    "ResetError",
    "Tools",
    "VirtualFunction",
    "load",
]
