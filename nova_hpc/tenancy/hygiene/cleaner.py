# SPDX-License-Identifier: Apache-2.0
"""Cleaners: how a device of one role is made ready for the next server.

A cleaner resets, and checks what only it can know; that the device then looks
as its baseline says is checked for all of them. Others than these are found
by the entry points of the namespace ``nova_hpc.cleaners``, and chosen for a
role by ``[hpc]cleaners``.
"""

from __future__ import annotations

import abc
import csv
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final

import attrs

from nova_hpc.conf import plugin
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.topology.model import PciFunction
from nova_hpc.topology.vfio import Vfio

NAMESPACE: Final = "nova_hpc.cleaners"
GENERIC: Final = "generic"

_TOOL: Final = "nvidia-smi"
_DRIVER: Final = "nvidia"
_QUERY: Final = "memory.used,ecc.errors.uncorrected.volatile.total"
#: MiB that the driver itself may use on a GPU that nobody has.
_OWN_MEMORY: Final = 1024


class CleanError(Exception):
    """A device could not be cleaned; the text gives the reason, for operators."""


class CleanerError(Exception):
    """``[hpc]cleaners`` names a cleaner that cannot be used; the text says which."""


@attrs.frozen
class CleanerTools:
    """The tools of a cleaner."""

    #: The folder that contains the node's ``sys``.
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

    #: Prefixes of class codes of storage devices. :meth:`clean` erases all of their data, and
    #: raises CleanError if the device does not prove it. Others are never offered.
    erases: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tools: CleanerTools) -> None:
        self.tools = tools

    @abc.abstractmethod
    def clean(self, function: PciFunction) -> None:
        """Clean a device that nobody has.

        :param function: as it was just read.
        :raises CleanError: it is not clean, or that is unknown.
        :raises nova_hpc.tenancy.hygiene.reset.ResetError: likewise.
        """


class Generic(Cleaner):
    """A PCI function: the kernel resets it (FLR, power management, bus, ...)."""

    def clean(self, function: PciFunction) -> None:
        """Reset the function, unless a driver of the host has it back."""
        if function.driver is not None and (not function.on_vfio or function.vfio is Vfio.VENDOR):
            # libvirt gave it back (managed: yes) after vfio had reset it, or its vendor's own
            # driver has it and clears what it gives (a vGPU). A reset now would be one below
            # a working driver.
            return
        if function.reset_methods == () and not self.tools.need_reset:
            return
        self.tools.reset(function.address)


class VirtualFunction(Generic):
    """A virtual function: cleaned like any other, and its identity is removed."""

    def clean(self, function: PciFunction) -> None:
        """Reset the function, then remove the identity that a server gave it."""
        super().clean(function)
        self.clear_identity(function)

    def clear_identity(self, function: PciFunction) -> None:
        """Remove settings that only the cleaner of an adapter can find.

        This class removes nothing: the step that set GUIDs and MAC has already restored them.
        """


class NvidiaGpu(Generic):
    """A GPU that is back with NVIDIA's driver, or any other GPU, by the kernel.

    ``nvidia-smi`` reaches a GPU only through NVIDIA's driver. A GPU that stays with
    vfio-pci (``managed: no``, as this project writes it) is reset by the kernel, like
    any other function. It was written from the manual page of nvidia-smi; it
    is untested on real hardware.
    """

    def clean(self, function: PciFunction) -> None:
        """Reset the GPU; with its driver, also check its memory."""
        if function.driver != _DRIVER or function.vfio is Vfio.VENDOR:
            super().clean(function)
            return
        if shutil.which(_TOOL) is None:
            raise CleanError(f"it is bound to the driver {_DRIVER}, and there is no {_TOOL}")
        self._ask(function, "--gpu-reset")
        output = self._ask(function, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
        check_gpu_memory(output)

    def _ask(self, function: PciFunction, *words: str) -> str:
        argv = [_TOOL, "-i", function.address, *words]
        status, output = hygiene_reset.run_with_deadline(argv, self.tools.timeout)
        if status:
            text = " ".join(output.split())[:200]
            raise CleanError(f"{_TOOL} {words[0].partition('=')[0]} failed: {text or status}")
        return output


def check_gpu_memory(output: str) -> None:
    """Judge nvidia-smi's answer about one GPU: MiB used, uncorrected errors.

    :raises CleanError: memory is in use or has errors, or the answer is unreadable.
    """
    rows = [[word.strip() for word in row] for row in csv.reader(output.splitlines()) if row]
    if len(rows) != 1 or len(rows[0]) != 2 or not rows[0][0].isdigit():
        raise CleanError(f"{_TOOL} gave no answer that can be read: {output[:100]!r}")
    used, errors = rows[0]
    if int(used) > _OWN_MEMORY:
        raise CleanError(f"{used} MiB of its memory are in use although nobody has it")
    # GPUs without ECC report [N/A].
    if errors.isdigit() and int(errors):
        raise CleanError(f"{errors} uncorrected errors in its memory (ECC)")


@attrs.frozen
class RoleCleaners:
    """The cleaner of each role."""

    of_role: Mapping[str, Cleaner] = attrs.field(hash=False)
    default: Cleaner

    def of(self, role: str | None) -> Cleaner:
        """Return the cleaner of a role, or of a device without one."""
        return self.of_role.get(role or "", self.default)


def load_cleaners(names: Mapping[str, str], tools: CleanerTools) -> RoleCleaners:
    """Find the cleaners that ``[hpc]cleaners`` names.

    :param names: role -> name of an entry point of :data:`NAMESPACE`.
    :raises CleanerError: there is none of that name, or it cannot be loaded.
    """
    return RoleCleaners(
        of_role={role: _load_cleaner(name, tools) for role, name in names.items()},
        default=_load_cleaner(GENERIC, tools),
    )


_OWN: Final[Mapping[str, type[Cleaner]]] = {
    GENERIC: Generic,
    "vf": VirtualFunction,
    "nvidia-gpu": NvidiaGpu,
}


def find_erasing_cleaners(
    names: Mapping[str, str], cleaning: bool = True
) -> dict[str, tuple[str, ...]]:
    """Role -> prefixes of the classes that its cleaner erases, and proves that. Never raises.

    :param names: ``[hpc]cleaners``. A cleaner that cannot be loaded erases nothing.
    :param cleaning: ``[hpc]clean_devices``.
    """
    erased = {}
    for role, name in names.items() if cleaning else ():
        own = _OWN.get(name)
        try:
            kind = own or plugin.find_plugin("cleaners", NAMESPACE, name, Cleaner)
        except plugin.PluginError:
            continue
        if kind.erases:
            erased[role] = tuple(kind.erases)
    return erased


def _load_cleaner(name: str, tools: CleanerTools) -> Cleaner:
    # Its own are there however the project was installed.
    own = _OWN.get(name)
    if own is not None:
        return own(tools)
    try:
        loaded: Cleaner = plugin.load_plugin("cleaners", NAMESPACE, name, Cleaner, tools)
    except plugin.PluginError as error:
        raise CleanerError(str(error)) from error
    return loaded


__all__ = [
    "CleanError",
    "Cleaner",
    "CleanerError",
    "CleanerTools",
    "Generic",
    "NvidiaGpu",
    "ResetError",
    "RoleCleaners",
    "VirtualFunction",
    "check_gpu_memory",
    "find_erasing_cleaners",
    "load_cleaners",
]
