# SPDX-License-Identifier: Apache-2.0
"""The driver's errors, and the user's text for errors of others.

A message is the server's fault as its user reads it: counts, levels, the kind of thing
that failed and the id of the request, by which the operator finds the rest in the logs;
no address, no path and no host name.
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
    """The claimed devices are not what the flavor asks for; the node is well.

    Nova tries another host after a GroupAffinityViolation and does not count
    it as a failed build, which would make the scheduler avoid the host
    (``_do_build_and_run_instance`` of nova/compute/manager.py, 32 to 34).
    """


class DeviceFault(exception.NovaException):
    """A claimed device cannot be given; the node is to blame.

    Nova tries another host and counts a failed build of this one.
    """


class StartFault(exception.NovaException):
    """A server could not be started, for a reason that only the log says in full."""


def wrap_for_rollback(error: exception.NovaException) -> exception.InstanceFaultRollback:
    """Wrap *error* so that Nova gives the server its former state back."""
    return exception.InstanceFaultRollback(inner_exception=error)


# -- what the user reads of a failure --------------------------------------------

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
    """Classes of Nova; a release need not have all of them."""
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
#: What Nova was doing when something without a class of its own was raised (an OSError of
#: the tap device, an error of a command): modules, from the innermost frame outwards.
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
#: Libvirt's error domains; QEMU's own errors all come as one.
_DOMAINS: Final = {
    FaultKind.NETWORK: ("VIR_FROM_NETWORK", "VIR_FROM_INTERFACE", "VIR_FROM_NETWORKPORT"),
    FaultKind.VOLUME: ("VIR_FROM_STORAGE",),
    FaultKind.DEVICE: ("VIR_FROM_PCI", "VIR_FROM_NODEDEV"),
}
#: Then its words tell, the first that fits: a VFIO device whose memory cannot be pinned
#: lacks memory.
_WORDS: Final = (
    (FaultKind.MEMORY, r"cannot allocate memory|out of memory|guest (memory|ram)|huge ?page"),
    (
        FaultKind.DEVICE,
        r"\bvfio|\bpci\b|hostdev|iommu|node device|[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.\d",
    ),
    (FaultKind.NETWORK, r"/dev/net/tun|\btap|\bnetdev|network|interface|bridge"),
    (FaultKind.VOLUME, r"/dev/|\bdisk|storage|volume|iscsi|\brbd|blockdev|block device"),
)
#: Names of things of a host: PCI and MAC addresses, IP addresses, paths.
_SECRET: Final = re.compile(
    r"[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\b|([\da-f]{2}:){5}[\da-f]{2}|\b\d+\.\d+\.\d+\.\d+\b"
    r"|\b[\da-f]{1,4}(:[\da-f]{0,4}){3,}|(?<![\w/])/\w+/\w+",
    re.IGNORECASE,
)


def fault_kind_of(error: BaseException | None) -> FaultKind:
    """The kind of thing that failed, by the exception's class, then by where it was raised."""
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
    """An error and what it was raised for: os-vif's, for one, arrive as InternalError."""
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _fault_kind_of_libvirt(error: Any) -> FaultKind:
    numbers = vars(sys.modules[type(error).__module__])
    if error.get_error_code() == numbers.get("VIR_ERR_NO_MEMORY", 2):
        return FaultKind.MEMORY
    domain, text = error.get_error_domain(), str(error)
    for kind, names in _DOMAINS.items():
        if domain is not None and domain in map(numbers.get, names):
            return kind
    return next((kind for kind, words in _WORDS if re.search(words, text, re.I)), FaultKind.OTHER)


def _fault_kinds_of_frames(error: BaseException) -> Iterator[FaultKind]:
    modules = []
    trace = error.__traceback__
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    for module in reversed(modules):
        yield from (kind for kind, names in _MODULES if module.startswith(names))


def _is_secret(text: str) -> bool:
    """Whether a text names something of the host that its users need not know."""
    names = {str(CONF.host), str(CONF.my_ip), socket.gethostname()} - {""}
    named = any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) for name in names)
    return named or _SECRET.search(text) is not None


def word_start_failure(error: BaseException | None, reason: str, request: str) -> str:
    """The text for the user whose server failed to start.

    This project's own reasons are said as they are, and Nova's where they name nothing
    of the host. Otherwise the kind is said.

    :param error: what was raised.
    :param reason: Nova's text for it.
    :param request: the request's id.
    """
    if isinstance(error, (ClaimRefused, StartFault)):
        return reason
    return _append_request_id(_word_start_reason(error, reason), request)


def _word_start_reason(error: BaseException | None, reason: str) -> str:
    """The same without the request."""
    if isinstance(error, (ClaimRefused, StartFault)):
        return reason
    kind, is_novas = fault_kind_of(error), isinstance(error, exception.NovaException)
    if isinstance(error, DeviceFault) or (
        is_novas and kind is FaultKind.OTHER and not _is_secret(reason)
    ):
        return reason
    return f"The server could not be started on the host that was chosen: {kind.value}"


def word_build_abort(error: exception.BuildAbortException, request: str) -> str:
    """The same of a build that Nova has given up; its reasons are written for users.

    :param error: what Nova has raised.
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
    """*text*, cut so that what has to be said behind it is in the fault.

    :param before: characters that Nova puts before it.
    """
    end = f"{after}{_ID}{request}."
    return text.rstrip(".")[: LONGEST - before - len(end)] + end


def fault_of(error: Exception, request: str) -> StartFault | None:
    """The fault to raise for *error* of Nova's driver; None: *error* itself, which Nova knows.

    An error of libvirt, of os-brick or of the kernel is no NovaException: its user would
    read the name of a class (``exception_to_dict`` of nova/compute/utils.py, 32 to 34).
    Os-vif's arrives as InternalError (``_plug_os_vif`` of nova/virt/libvirt/vif.py).
    """
    if isinstance(error, exception.NovaException) and type(error) is not exception.InternalError:
        return None
    return StartFault(word_start_failure(error, str(error), request))
