# SPDX-License-Identifier: Apache-2.0
"""Ask libvirt for all guest domains of the node, and never wait for it for ever.

A libvirt that hangs holds whoever calls it, for minutes or for good, and Nova has no
limit for it. So it is asked by a thread of its own, which is left behind when its
time is up; until that has ended nobody asks again, and the answer is "unknown".
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

    :param host: finds Nova's connection to libvirt (``nova.virt.libvirt.host.Host``);
        called when it is needed, since Nova makes it late.
    :param patience: seconds.
    :param root: where ``sys`` and ``dev`` are.
    """

    def __init__(
        self, host: Callable[[], Any], patience: float = PATIENCE, root: Path = Path("/")
    ) -> None:
        self._host = host
        self._root = root
        self._patience = patience
        #: Held as long as a question has no answer; who asked it last releases it.
        self._asking = threading.Lock()

    def read(self) -> NodeGuestDomains:
        """All domains as they are now, also those that Nova knows nothing of. Never raises."""
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
            # Nova's own wrapping of each domain lets eventlet go on meanwhile
            # (list_instance_domains of nova/virt/libvirt/host.py, 32 to 34); with
            # only_running=False it filters nothing, foreign domains included.
            return guest_domains.read_guest_domains(
                lambda: self._host().list_instance_domains(only_running=False), _is_gone, self._root
            )
        except Exception as error:
            LOG.exception("The guest domains cannot be read")
            return guest_domains.unknown_guest_domains(f"{type(error).__name__}: {error}")

    def _late(self) -> NodeGuestDomains:
        return guest_domains.unknown_guest_domains(f"no answer within {self._patience:g} seconds")


def _is_gone(error: Exception) -> bool:
    """Whether libvirt says that there is no such domain any more."""
    libvirt = libvirt_host.libvirt
    return (
        libvirt is not None
        and isinstance(error, libvirt.libvirtError)
        and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
    )
