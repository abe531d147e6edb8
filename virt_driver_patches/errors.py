# SPDX-License-Identifier: Apache-2.0
"""The driver's errors, and the user's text for errors of Nova and its libraries.

A message becomes the server's fault, which its user reads. It contains counts, levels, the kind
of thing that failed and the id of the request. The operator finds the details in the logs by
this id. It contains no address, no path and no host name.
"""

from __future__ import annotations

import enum
import errno
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final

import nova.conf
from nova import exception
from os_brick import exception as brick_exception
from os_vif import exception as vif_exception

CONF = nova.conf.CONF


class ClaimRefused(exception.GroupAffinityViolation):
    """The claimed devices do not meet the flavor's requirements; the node is healthy.

    Nova tries another host after a GroupAffinityViolation and does not count
    it as a failed build, which would make the scheduler avoid the host
    (``_do_build_and_run_instance`` of nova/compute/manager.py, 32 to 34).
    """


class DeviceFault(exception.NovaException):
    """A claimed device cannot be given to the server; the node is at fault.

    Nova tries another host and counts a failed build of this one.
    """


class StartFault(exception.NovaException):
    """A server could not be started, for a reason that is complete only in the log."""


def wrap_for_rollback(error: exception.NovaException) -> exception.InstanceFaultRollback:
    """Wrap *error* so that Nova restores the server's former state."""
    return exception.InstanceFaultRollback(inner_exception=error)


# -- the user's text for a failure -----------------------------------------------

#: Longest message of a fault, in characters (InstanceFault.message of Nova's database).
LONGEST: Final = 255


class FaultKind(enum.Enum):
    """The kind of thing that failed, in the words of the user's fault."""

    NETWORK = "its network could not be set up"
    VOLUME = "a volume could not be attached"
    DEVICE = "a PCI device could not be given to it"
    MEMORY = "its memory could not be reserved"
    OTHER = "something on the host failed"


def _nova_exceptions_of(*names: str) -> tuple[type[Exception], ...]:
    """Return Nova's classes of these *names*; a release may lack some of them."""
    return tuple(getattr(exception, name) for name in names if hasattr(exception, name))


_CLASSES: Final[dict[FaultKind, tuple[type[BaseException], ...]]] = {
    FaultKind.MEMORY: (
        MemoryError,
        *_nova_exceptions_of(
            "LockMemoryForbidden", "MemoryPagesUnsupported", "MemoryPageSizeNotSupported"
        ),
    ),
    FaultKind.DEVICE: (
        DeviceFault,
        *(
            value
            for name, value in vars(exception).items()
            if name.startswith("PciDevice") and isinstance(value, type)
        ),
    ),
    FaultKind.NETWORK: (
        vif_exception.ExceptionBase,
        *_nova_exceptions_of(
            *("VirtualInterfaceCreateException", "VirtualInterfaceMacAddressException"),
            *("VirtualInterfacePlugException", "VirtualInterfaceUnplugException"),
            *("ExternalNetworkAttachForbidden", "FixedIpAlreadyInUse", "FixedIpInvalidOnHost"),
            *("NetworkAmbiguous", "NetworkNotFound", "NetworksWithQoSPolicyNotSupported"),
            *("NoMoreFixedIps", "PortBindingActivationFailed", "PortBindingFailed", "PortInUse"),
            *("PortLimitExceeded", "PortNotFound", "PortNotUsable", "PortUpdateFailed"),
            "UnableToAutoAllocateNetwork",
        ),
    ),
    FaultKind.VOLUME: (
        brick_exception.BrickException,
        *_nova_exceptions_of(
            *("CinderConnectionFailed", "DevicePathInUse", "InvalidBDM", "InvalidVolume"),
            *("VolumeAttachFailed", "VolumeAttachmentNotFound", "VolumeDriverNotFound"),
            *("VolumeEncryptionNotSupported", "VolumeNotCreated", "VolumeNotFound"),
        ),
    ),
}
#: Modules that identify Nova's current action if the error's class does not (an OSError of
#: the tap device, an error of a command). Frames are searched from the innermost outwards.
_MODULES: Final = (
    (
        FaultKind.NETWORK,
        ("nova.virt.libvirt.vif", "nova.network", "nova.privsep.linux_net", "os_vif", "vif_plug_"),
    ),
    (
        FaultKind.VOLUME,
        ("nova.virt.libvirt.volume", "nova.virt.block_device", "nova.volume", "os_brick"),
    ),
    (FaultKind.DEVICE, ("nova.pci",)),
)
#: Libvirt's error domains. QEMU's errors share one domain, whatever failed.
_DOMAINS: Final = {
    FaultKind.NETWORK: ("VIR_FROM_NETWORK", "VIR_FROM_INTERFACE", "VIR_FROM_NETWORKPORT"),
    FaultKind.VOLUME: ("VIR_FROM_STORAGE",),
    FaultKind.DEVICE: ("VIR_FROM_PCI", "VIR_FROM_NODEDEV"),
}
#: Patterns for those errors, in the order in which they are tried. Memory comes first: a VFIO
#: device fails if its memory cannot be pinned, and the cause is a lack of memory.
_WORDS: Final = (
    (FaultKind.MEMORY, r"cannot allocate memory|out of memory|guest (memory|ram)|huge ?page"),
    (
        FaultKind.DEVICE,
        r"\bvfio|\bpci\b|hostdev|iommu|node device|[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.\d",
    ),
    (FaultKind.NETWORK, r"/dev/net/tun|\btap|\bnetdev|network|interface|bridge"),
    (FaultKind.VOLUME, r"/dev/|\bdisk|storage|volume|iscsi|\brbd|blockdev|block device"),
)
#: Identifiers of a host: PCI and MAC addresses, IP addresses, paths.
_SECRET: Final = re.compile(
    r"[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\b|([\da-f]{2}:){5}[\da-f]{2}|\b\d+\.\d+\.\d+\.\d+\b"
    r"|\b[\da-f]{1,4}(:[\da-f]{0,4}){3,}|(?<![\w/])/\w+/\w+",
    re.IGNORECASE,
)


def fault_kind_of(error: BaseException | None) -> FaultKind:
    """Return the kind of thing that failed, by the exception's class, then by its traceback."""
    chain = list(_causes_of_error(error))
    for cause in chain:
        for kind, classes in _CLASSES.items():
            if isinstance(cause, classes):
                return kind
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return FaultKind.MEMORY
        if type(cause).__name__ == "libvirtError":
            return _fault_kind_of_libvirt(cause)
    return next(
        (kind for cause in chain for kind in _fault_kinds_of_frames(cause)), FaultKind.OTHER
    )


def _causes_of_error(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: errors of os-vif, for one, arrive as InternalError."""
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _fault_kind_of_libvirt(error: Any) -> FaultKind:
    """Return the kind of thing from the error's code, else from its domain, else from its text."""
    numbers = vars(sys.modules[type(error).__module__])
    if error.get_error_code() == numbers.get("VIR_ERR_NO_MEMORY", 2):
        return FaultKind.MEMORY
    domain, text = error.get_error_domain(), str(error)
    for kind, names in _DOMAINS.items():
        if domain is not None and domain in map(numbers.get, names):
            return kind
    return next((kind for kind, words in _WORDS if re.search(words, text, re.I)), FaultKind.OTHER)


def _fault_kinds_of_frames(error: BaseException) -> Iterator[FaultKind]:
    """Yield the kind of fault of each known module in the error's traceback, innermost first."""
    modules = []
    trace = error.__traceback__
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    for module in reversed(modules):
        yield from (kind for kind, names in _MODULES if module.startswith(names))


def _is_secret(text: str) -> bool:
    """Whether a text contains identifiers of the host, which are not for its users."""
    names = {str(CONF.host), str(CONF.my_ip), socket.gethostname()} - {""}
    named = any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) for name in names)
    return named or _SECRET.search(text) is not None


def word_start_failure(error: BaseException | None, reason: str, request: str) -> str:
    """Return the text for the user of a server that failed to start.

    Reasons of this project are kept. Nova's reasons are kept if they contain no identifier
    of the host; otherwise the text names the kind of thing that failed.

    :param error: the exception.
    :param reason: Nova's text for it.
    :param request: the request's id.
    """
    if isinstance(error, (ClaimRefused, StartFault)):
        return reason
    return _append_request_id(_word_start_reason(error, reason), request)


def _word_start_reason(error: BaseException | None, reason: str) -> str:
    """Return the text of :func:`word_start_failure` without the request's id."""
    if isinstance(error, (ClaimRefused, StartFault)):
        return reason
    kind, is_novas = fault_kind_of(error), isinstance(error, exception.NovaException)
    if isinstance(error, DeviceFault) or (
        is_novas and kind is FaultKind.OTHER and not _is_secret(reason)
    ):
        return reason
    return f"The server could not be started on the host that was chosen: {kind.value}"


def word_build_abort(error: exception.BuildAbortException, request: str) -> str:
    """Return the text for a build that Nova has aborted; Nova writes its reasons for users.

    :param error: Nova's exception.
    """
    cause, reason = error.__context__, str(error.kwargs.get("reason", ""))
    before = len(error.format_message()) - len(reason)
    if isinstance(cause, (ClaimRefused, StartFault)):
        return reason
    if _is_secret(reason):
        return _append_request_id(_word_start_reason(cause, reason), request, before)
    kind = fault_kind_of(cause)
    return _append_request_id(
        reason, request, before, "" if kind is FaultKind.OTHER else f": {kind.value}"
    )


_ID: Final = ". Give your operator this request id: "


def _append_request_id(text: str, request: str, before: int = 0, after: str = "") -> str:
    """Append *after* and the request's id to *text*, which is cut to the length of a fault.

    :param before: number of characters that Nova puts in front of the text.
    """
    end = f"{after}{_ID}{request}."
    return text.rstrip(".")[: LONGEST - before - len(end)] + end


def fault_of(error: Exception, request: str) -> StartFault | None:
    """Return the fault to raise for *error* of Nova's driver; None to raise *error* itself.

    Nova handles its own exceptions. An error of libvirt, of os-brick or of the kernel is not a
    NovaException: its user would read only the name of a class (``exception_to_dict`` of
    nova/compute/utils.py, 32 to 34). An error of os-vif arrives as InternalError
    (``_plug_os_vif`` of nova/virt/libvirt/vif.py).
    """
    if isinstance(error, exception.NovaException) and type(error) is not exception.InternalError:
        return None
    return StartFault(word_start_failure(error, str(error), request))
