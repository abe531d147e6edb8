# SPDX-License-Identifier: Apache-2.0
"""The libvirt of this node, asked by a command: read-only, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from nova_hpc.outside.host_names import is_uuid
from nova_hpc.outside.text import printable_text
from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.guest_domains import LIST_ALL, NodeGuestDomains

#: Major, minor and release.
Version = tuple[int, int, int]
Answer = TypeVar("Answer")


class DomainUnreadError(Exception):
    """The XML of a domain cannot be had; the text names the cure."""


#: What Nova connects to when ``[libvirt]connection_uri`` says nothing
#: (``_uri`` of nova/virt/libvirt/driver.py, 32 to 34, for KVM and QEMU).
DEFAULT_URI: Final = "qemu:///system"
#: Seconds that libvirt has.
PATIENCE: Final = 30.0


def guest_domain_reader(options: Any) -> Callable[[], NodeGuestDomains]:
    """A function that asks the libvirt that nova-compute of this node uses.

    :param options: with group ``[libvirt]``, as node_config reads it.
    """
    uri = options.libvirt.connection_uri or DEFAULT_URI
    return lambda: ask_guest_domains(uri, root=Path(options.hpc.sysfs_root))


def ask_guest_domains(
    uri: str, patience: float = PATIENCE, root: Path = Path("/")
) -> NodeGuestDomains:
    """All guest domains of the libvirt at *uri*. Never raises.

    :param patience: seconds.
    :param root: where ``sys`` and ``dev`` are.
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
    """The version of the libvirt at *uri*; None: it does not say. Never raises.

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
    """The XML of one guest domain, as it is now.

    :param name: its UUID, or libvirt's name of it.
    :param patience: seconds.
    :raises DomainUnreadError: it cannot be had; the text names the cure.
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
    """The answer of libvirt; None: none within *patience* seconds.

    :raises ImportError: libvirt-python is not there.
    """
    import libvirt

    answers: list[Answer] = []
    # What libvirt has to say of an error is in the answer, and not on the terminal.
    libvirt.registerErrorHandler(lambda *_: None, None)
    thread = threading.Thread(target=lambda: answers.append(question(libvirt)), daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else None
