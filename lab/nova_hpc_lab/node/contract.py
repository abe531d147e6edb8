# SPDX-License-Identifier: Apache-2.0
"""The types that the parts of a virtual node share with each other and with the rest of the lab.

The control plane of the lab (``nova_hpc_lab``) and the virtual node (``nova_hpc_lab.node``) use
each other only through these types.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs

from nova_hpc_lab.state import write

#: Address in a node that leads to the loopback of the machine that runs the lab: QEMU's
#: user-mode network maps it to 127.0.0.1 of the host.
HOST_ADDRESS: Final = "10.0.2.2"

#: Called with a short line of text when a step begins or proceeds, and with the part that is done,
#: from 0.0 to 1.0, or None if unknown.
Progress = Callable[[str, float | None], None]


class NodeCloud(Protocol):
    """Interface to the cloud that a node joins."""

    def compute_files(self, host: str, host_address: str) -> Mapping[str, str]:
        """Return the configuration of nova-compute on node *host*.

        :param host: the node's name, which is also Nova's ``[DEFAULT]host``.
        :param host_address: the address under which the node reaches the
            services of the cloud (:data:`HOST_ADDRESS`).
        :returns: file name -> content. ``nova.conf`` is required. Further files are written
            beside it in ``/etc/nova`` of the node; nova-compute reads ``nova.conf.d/*.conf``
            after it.
        """


class State(enum.Enum):
    """The state of a virtual node."""

    ABSENT = "absent"  #: not started, or stopped
    STARTING = "starting"  #: QEMU runs, nova-compute has not reported that it is up
    UP = "up"  #: heartbeats arrive and libvirt and nova-compute are running
    SILENT = "silent"  #: no heartbeat for too long; the supervisor restarts it
    FAILED = "failed"  #: given up; ``reason`` contains the reason


@attrs.frozen
class NodeStatus:
    """The present state of one virtual node: processes, ports, times in seconds, and devices."""

    name: str
    state: State
    #: Process ids on the machine that runs the lab; None if not running.
    supervisor_pid: int | None = None
    qemu_pid: int | None = None
    #: Loopback port that leads to the node's SSH.
    ssh_port: int | None = None
    #: Seconds since QEMU was started, and since the last heartbeat.
    uptime: float | None = None
    heartbeat_age: float | None = None
    #: The number of times that the supervisor started a silent or dead node again.
    restarts: int = 0
    #: Reason of the last restart, with the kernel's message if its kernel died.
    restart_cause: str = ""
    #: Lines of the form "0000:22:00.0 gpu0 vgamem 16 MiB", as planned by the
    #: shape and confirmed by the node once it is up.
    devices: tuple[str, ...] = ()
    #: The node's own report on its start ("booting", "libvirt", "up", an error).
    reason: str = ""


@attrs.frozen
class Plan:
    """The programs that a node's supervisor runs; ``plan.json`` in the node's folder."""

    argv: tuple[str, ...]
    disk: str
    backing: str
    heartbeat: str
    qmp: str
    ssh_port: int
    #: The log of the node's serial console; "" in the plan of an earlier release.
    serial: str = ""

    def save(self, folder: Path) -> None:
        """Write the plan for the supervisor to read."""
        write(folder / "plan.json", json.dumps(attrs.asdict(self), indent=1), mode=0o600)

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read the plan.

        :raises OSError, ValueError, TypeError, KeyError: there is no plan, or it is broken.
        """
        document = json.loads((folder / "plan.json").read_text())
        return cls(**{**document, "argv": tuple(document["argv"])})
