# SPDX-License-Identifier: Apache-2.0
"""The guest domains of this node, asked of libvirt by a command: read-only, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.guest_domains import LIST_ALL, GuestDomains

#: What Nova connects to when ``[libvirt]connection_uri`` says nothing
#: (``_uri`` of nova/virt/libvirt/driver.py, 32 to 34, for KVM and QEMU).
DEFAULT_URI: Final = "qemu:///system"
#: Seconds that libvirt has.
PATIENCE: Final = 30.0


def reader(options: Any) -> Callable[[], GuestDomains]:
    """What asks the libvirt that nova-compute of this node uses.

    :param options: with group ``[libvirt]``, as node_config reads it.
    """
    uri = options.libvirt.connection_uri or DEFAULT_URI
    return lambda: read(uri)


def read(uri: str, patience: float = PATIENCE) -> GuestDomains:
    """All guest domains of the libvirt at *uri*. Never raises.

    :param patience: seconds.
    """
    try:
        import libvirt
    except ImportError:
        return guest_domains.unanswered(
            "libvirt-python is not installed here: run the command where nova-compute runs"
        )
    answers: list[GuestDomains] = []

    def ask() -> None:
        def listing() -> Any:
            return libvirt.openReadOnly(uri).listAllDomains(LIST_ALL)

        def gone(error: Exception) -> bool:
            return (
                isinstance(error, libvirt.libvirtError)
                and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
            )

        answers.append(guest_domains.read(listing, gone))

    # What libvirt has to say of an error is in the answer, and not on the terminal.
    libvirt.registerErrorHandler(lambda *_: None, None)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    if answers:
        return answers[0]
    return guest_domains.unanswered(f"{uri} gave no answer within {patience:g} seconds")
