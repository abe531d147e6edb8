# SPDX-License-Identifier: Apache-2.0
"""Lists all guest domains of the node from libvirt, with a time limit.

A hanging libvirt blocks its caller for minutes or forever, and Nova sets no
limit. So a separate thread makes the call, and is left behind when the
time is up. Until it ends no other call is made, and the answer is "unknown".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.guest_domains import NodeGuestDomains

LOG = logging.getLogger(__name__)

#: Seconds that libvirt has for all domains of a node.
PATIENCE: Final = 30.0


class LibvirtDomains:
    """The guest domains of the node of one driver.

    :param host: returns Nova's connection to libvirt (``nova.virt.libvirt.host.Host``).
        A function, because Nova creates the connection late.
    :param patience: seconds.
    :param root: the folder that contains ``sys`` and ``dev``.
    """

    def __init__(
        self, host: Callable[[], Any], patience: float = PATIENCE, root: Path = Path("/")
    ) -> None:
        self._host = host
        self._root = root
        self._patience = patience
        #: Held while a call has no answer; the thread of the last call releases it.
        self._asking = threading.Lock()

    def read(self) -> NodeGuestDomains:
        """Return all current domains, including those without a server of Nova. Never raises."""
        if not self._asking.acquire(timeout=self._patience):
            return self._late()
        answers: list[NodeGuestDomains] = []
        done = threading.Event()

        def ask() -> None:
            try:
                answers.append(self._ask())
            finally:
                self._asking.release()
                done.set()

        try:
            threading.Thread(target=ask, name="hpc-domains", daemon=True).start()
        except RuntimeError as error:  # there are too many threads
            self._asking.release()
            return guest_domains.unknown_guest_domains(str(error))
        done.wait(self._patience)
        return answers[0] if answers else self._late()

    def _ask(self) -> NodeGuestDomains:
        try:
            # Nova's wrapper of each domain lets eventlet switch to other work
            # (list_instance_domains of nova/virt/libvirt/host.py, 32 to 34). With
            # only_running=False it filters nothing, and includes foreign domains.
            return guest_domains.read_guest_domains(
                lambda: self._host().list_instance_domains(only_running=False), _is_gone, self._root
            )
        except Exception as error:
            LOG.exception("The guest domains cannot be read")
            return guest_domains.unknown_guest_domains(f"{type(error).__name__}: {error}")

    def _late(self) -> NodeGuestDomains:
        return guest_domains.unknown_guest_domains(f"no answer within {self._patience:g} seconds")


def _is_gone(error: Exception) -> bool:
    """Whether libvirt reports that the domain no longer exists."""
    libvirt = libvirt_host.libvirt
    return (
        libvirt is not None
        and isinstance(error, libvirt.libvirtError)
        and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
    )
