# SPDX-License-Identifier: Apache-2.0
"""Queries of a command to the libvirt of this node: read-only, and with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.guest_domains import LIST_ALL, NodeGuestDomains
from nova_hpc_common.outside.host_names import is_uuid
from nova_hpc_common.outside.text import printable_text

#: Major, minor and release.
Version = tuple[int, int, int]
Answer = TypeVar("Answer")


class DomainUnreadError(Exception):
    """The XML of a guest domain cannot be read. The text names the cure."""


#: The URI of Nova if ``[libvirt]connection_uri`` is not set
#: (``_uri`` of nova/virt/libvirt/driver.py, 32 to 34, for KVM and QEMU).
DEFAULT_URI: Final = "qemu:///system"
#: Seconds to wait for libvirt.
PATIENCE: Final = 30.0


def guest_domain_reader(options: Any) -> Callable[[], NodeGuestDomains]:
    """Return a function that reads the domains of the libvirt that this node's nova-compute uses.

    :param options: with the groups ``[libvirt]`` and ``[hpc]``.
    """
    uri = options.libvirt.connection_uri or DEFAULT_URI
    return lambda: ask_guest_domains(uri, root=Path(options.hpc.sysfs_root))


def ask_guest_domains(
    uri: str, patience: float = PATIENCE, root: Path = Path("/")
) -> NodeGuestDomains:
    """Read all guest domains of the libvirt at *uri*. Never raises.

    The result has the problem if they cannot be read.

    :param patience: seconds.
    :param root: the folder with ``sys`` and ``dev``.
    """

    def ask(libvirt: Any) -> NodeGuestDomains:
        def listing() -> Any:
            return libvirt.openReadOnly(uri).listAllDomains(LIST_ALL)

        def gone(error: Exception) -> bool:
            return (
                isinstance(error, libvirt.libvirtError)
                and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
            )

        return guest_domains.read_guest_domains(listing, gone, root)

    try:
        answer = _ask_libvirt(ask, patience)
    except ImportError:
        return guest_domains.unknown_guest_domains(
            "libvirt-python is not installed here: run the command where nova-compute runs"
        )
    if answer is not None:
        return answer
    return guest_domains.unknown_guest_domains(f"{uri} gave no answer within {patience:g} seconds")


def libvirt_version_of(uri: str, patience: float = PATIENCE) -> Version | None:
    """Query the version of the libvirt at *uri*; None if it does not answer. Never raises.

    :param patience: seconds.
    """

    def ask(libvirt: Any) -> Version | None:
        try:
            number = libvirt.openReadOnly(uri).getLibVersion()
        except libvirt.libvirtError:
            return None
        # virConnectGetLibVersion: 1,000,000 * major + 1,000 * minor + release.
        return number // 1_000_000, number // 1_000 % 1_000, number % 1_000

    try:
        return _ask_libvirt(ask, patience)
    except ImportError:
        return None


def read_domain_xml(uri: str, name: str, patience: float = PATIENCE) -> str:
    """Read the present XML of one guest domain.

    :param name: its UUID, or its name in libvirt.
    :param patience: seconds.
    :raises DomainUnreadError: it cannot be read; the text names the cure.
    """

    def ask(libvirt: Any) -> tuple[str | None, str]:
        try:
            connection = libvirt.openReadOnly(uri)
            by = connection.lookupByUUIDString if is_uuid(name) else connection.lookupByName
            return str(by(name).XMLDesc(0)), ""
        except libvirt.libvirtError as error:
            return None, printable_text(str(error))

    try:
        answer = _ask_libvirt(ask, patience)
    except ImportError as error:
        reason = "libvirt-python is not installed here: run the command where nova-compute runs"
        raise DomainUnreadError(reason) from error
    if answer is None:
        raise DomainUnreadError(f"{uri} gave no answer within {patience:g} seconds")
    xml, reason = answer
    if xml is None:
        raise DomainUnreadError(f"{uri}: {reason}; run the command on the node that has the server")
    return xml


def _ask_libvirt(question: Callable[[Any], Answer], patience: float) -> Answer | None:
    """Run *question* in a thread; return its result, or None without one within *patience* seconds.

    :raises ImportError: libvirt-python is not installed.
    """
    import libvirt

    answers: list[Answer] = []
    # Errors of libvirt are in the answer, so libvirt need not print them on the terminal.
    libvirt.registerErrorHandler(lambda *_: None, None)
    thread = threading.Thread(target=lambda: answers.append(question(libvirt)), daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else None
