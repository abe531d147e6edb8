# SPDX-License-Identifier: Apache-2.0
"""Cleaners: how a device of one role is made ready for the next server.

A cleaner resets its devices and makes the checks that depend on their model. The comparison with
the baseline is the same for all cleaners. Cleaners of vendors are entry points of the namespace
``nova_hpc.cleaners``; ``[hpc]cleaners`` chooses one for a role.

A cleaner may declare resets that the kernel does not have (``Cleaner.resets``). They run in the
same place as the kernel's reset: below the device's lock, with its VFIO group held, and with a
deadline.
"""

from __future__ import annotations

import abc
import contextlib
import csv
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import attrs

from nova_hpc.conf import plugin
from nova_hpc.tenancy.hygiene import own_reset
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.own_reset import OwnReset
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.vfio import Vfio

NAMESPACE: Final = "nova_hpc.cleaners"
GENERIC: Final = "generic"

_TOOL: Final = "nvidia-smi"
_DRIVER: Final = "nvidia"
_QUERY: Final = "memory.used,ecc.errors.uncorrected.volatile.total"
#: MiB that the driver itself may use on a GPU that is not in use.
_OWN_MEMORY: Final = 1024


class CleanError(Exception):
    """A device could not be cleaned; the text gives the reason, for operators."""


class CleanerError(Exception):
    """``[hpc]cleaners`` names a cleaner that cannot be used; the text contains its name."""


class ResetCall(Protocol):
    """Interface of a function that resets the PCI device at an address."""

    def __call__(self, address: str, own: OwnReset | None = None, /) -> None:
        """Reset the device by the kernel, or by a reset that the class of its cleaner declares.

        :raises ResetError: it is not reset, or that is unknown.
        """


@attrs.frozen
class CleanerTools:
    """The tools of a cleaner: root of sysfs, time limit in seconds, and the reset function."""

    #: The folder that contains the node's ``sys``.
    root: Path
    #: Seconds that one reset, or one program, may take.
    timeout: float
    reset: ResetCall
    #: A device that the kernel cannot reset is quarantined.
    need_reset: bool = True


class Cleaner(abc.ABC):
    """Makes devices of one role ready for the next server.

    One object serves all devices and threads of a service: it keeps no state.
    """

    #: Prefixes of class codes of storage devices. :meth:`clean` erases all of their data, and
    #: raises CleanError if the device does not prove it. Others are never offered.
    erases: ClassVar[tuple[str, ...]] = ()

    #: The resets of its own. nova-compute and its privileged helper read them from the class, and
    #: make no other ones.
    resets: ClassVar[tuple[OwnReset, ...]] = ()

    def __init__(self, tools: CleanerTools) -> None:
        self.tools = tools

    @abc.abstractmethod
    def clean(self, function: PciFunction) -> None:
        """Clean a device that is not in use.

        :param function: as it was just read.
        :raises CleanError: it is not clean, or that is unknown.
        :raises nova_hpc.tenancy.hygiene.reset.ResetError: likewise.
        """

    @classmethod
    def choose_reset(cls, function: PciFunction) -> OwnReset | None:
        """Choose one of :attr:`resets` for a device; None if the kernel resets it.

        A cleaner that resets some of its devices by the kernel overrides it. It is also called to
        judge whether a device can be offered, so it looks at *function* only.
        """
        return next(iter(cls.resets), None)


class Generic(Cleaner):
    """A PCI function: the kernel resets it (FLR, power management, bus, ...).

    A class that extends it and has *resets* resets by these instead, also a device that a driver
    of the host has: no other reset was made. Its *choose_reset* may return None for such devices.
    """

    def clean(self, function: PciFunction) -> None:
        """Reset the function, unless a driver of the host has it back."""
        own = self.choose_reset(function)
        if own is not None:
            self.tools.reset(function.address, own)
            return
        if function.driver is not None and (not function.on_vfio or function.vfio is Vfio.VENDOR):
            # Either libvirt gave it back (managed: yes) after vfio had reset it, or the vendor's
            # own driver has it and clears its parts (a vGPU). A reset now would happen below a
            # working driver.
            return
        if function.reset_methods != () or self.tools.need_reset:
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
    """The cleaner of each device role, and the default one for other roles."""

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
    """Return role -> prefixes of the PCI classes that its cleaner provably erases. Never raises.

    :param names: ``[hpc]cleaners``. A cleaner that cannot be loaded erases nothing.
    :param cleaning: ``[hpc]clean_devices``.
    """
    erased = {}
    for role, name in names.items() if cleaning else ():
        try:
            kind = find_cleaner_class(name)
        except CleanerError:
            continue
        if kind.erases:
            erased[role] = tuple(kind.erases)
    return erased


def find_cleaner_class(name: str) -> type[Cleaner]:
    """Load the class of a cleaner, whose *resets* can be used.

    :param name: of an entry point of :data:`NAMESPACE`.
    :raises CleanerError: it cannot be loaded, or two distributions register the name.
    """
    # Its own are there however the project was installed.
    own = _OWN.get(name)
    if own is not None:
        return own
    try:
        kind: type[Cleaner] = plugin.find_plugin("cleaners", NAMESPACE, name, Cleaner)
    except plugin.PluginError as error:
        raise CleanerError(str(error)) from error
    except Exception as error:  # the vendor's module
        text = f"[hpc]cleaners: {name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise CleanerError(text) from error
    reason = own_reset.explain_bad_declaration(kind.resets)
    if reason is not None:
        raise CleanerError(f"[hpc]cleaners: {name!r} cannot be used: {reason}")
    return kind


def _load_cleaner(name: str, tools: CleanerTools) -> Cleaner:
    kind = find_cleaner_class(name)
    try:
        return kind(tools)
    except Exception as error:  # the vendor's constructor
        text = f"[hpc]cleaners: {name!r} cannot be made: {type(error).__name__}: {error}"
        raise CleanerError(text) from error


# -- resets of cleaners -----------------------------------------------------------------


def find_declared_reset(names: Mapping[str, str], role: str | None, reset: str) -> OwnReset:
    """Find a reset that the cleaner of a role declares.

    :param names: ``[hpc]cleaners``.
    :param reset: its name, which may come from a service that an attacker controls.
    :raises CleanerError: the role's cleaner has none of that name, or cannot be loaded.
    """
    name = names.get(role or "", GENERIC)
    for own in find_cleaner_class(name).resets:
        if own.name == reset:
            return own
    raise CleanerError(
        f"[hpc]cleaners: {name!r}, the cleaner of role {role}, has no reset {reset[:40]!r}"
    )


@attrs.frozen
class OwnResets:
    """The roles whose cleaners declare resets, to judge devices without a reset of the kernel."""

    root: Path = Path("/")
    of_role: Mapping[str, type[Cleaner]] = attrs.field(factory=dict, hash=False)

    @classmethod
    def from_options(cls, hpc: Any, root: Path | None = None) -> OwnResets:
        """Collect the resets of the cleaners in group ``[hpc]`` of the configuration.

        A cleaner that cannot be loaded declares nothing; nova-compute refuses to start with it.

        :param root: the directory that contains ``sys``; None: ``[hpc]sysfs_root``.
        """
        of_role = {}
        for role, name in hpc.cleaners.items() if hpc.clean_devices else ():
            with contextlib.suppress(CleanerError):
                kind = find_cleaner_class(name)
                if kind.resets:
                    of_role[role] = kind
        return cls(root or Path(hpc.sysfs_root), of_role)

    def judge(self, node: Node, roles: Mapping[str, str | None]) -> dict[str, str]:
        """Check whether the resets of the devices' cleaners can be made.

        :param roles: address -> role, of the devices to judge.
        :returns: address -> why its cleaner's reset cannot be made, or "" if it can. Devices that
            the kernel resets are left out.
        """
        judged = {}
        for address, role in roles.items():
            kind = self.of_role.get(role or "")
            function = node.function(address)
            if kind is None or function is None:
                continue
            try:
                own = kind.choose_reset(function)
            except Exception as error:  # the vendor's code
                judged[address] = f"its cleaner failed: {type(error).__name__}: {error}"
                continue
            if own is None:
                continue
            reason: str | None = f"its cleaner chose {own}, which it does not declare"
            if own in kind.resets:
                reason = own_reset.explain_unready_reset(self.root, address, own)
            judged[address] = reason or ""
        return judged


__all__ = [
    "CleanError",
    "Cleaner",
    "CleanerError",
    "CleanerTools",
    "Generic",
    "NvidiaGpu",
    "OwnResets",
    "ResetCall",
    "ResetError",
    "RoleCleaners",
    "VirtualFunction",
    "check_gpu_memory",
    "find_cleaner_class",
    "find_declared_reset",
    "find_erasing_cleaners",
    "load_cleaners",
]
