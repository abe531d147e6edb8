# SPDX-License-Identifier: Apache-2.0
"""What else may happen at a step, and how a world does it.

A kill of nova-compute is one fault of several: the others happen right before a step,
too, and nova-compute goes on. Only a server that is deleted without its node
needs a nova-compute that is down.
"""

from __future__ import annotations

import enum
import uuid
from typing import Any, Final

import attrs
from nova import context as nova_context
from nova import exception
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional.kills.agent import AGENT
from tests.functional.kills.hypervisor import Hypervisor
from tests.functional.kills.service import ServiceVms


@attrs.frozen
class Phase:
    """A part of a life in which faults happen, step by step."""

    name: str
    #: What is ordered: ``create``, ``delete`` or ``clean``.
    act: str
    #: GPUs have a stage between two servers.
    stage: bool = False
    #: Only a vendor's cleaner resets devices, and nova-compute is not root.
    vendor: bool = False


#: In the order in which they are tried.
PHASES: Final = (
    Phase("spawn", "create"),
    Phase("destroy", "delete"),
    Phase("spawn with a stage", "create", stage=True),
    Phase("destroy with a stage", "delete", stage=True),
    Phase("clean", "clean", stage=True),
    Phase("spawn with a vendor's reset", "create", vendor=True),
    Phase("destroy with a vendor's reset", "delete", vendor=True),
    Phase("clean with a vendor's reset", "clean", stage=True, vendor=True),
)


class Fault(enum.Enum):
    """What happens right before a step; the value is the word of the command."""

    #: nova-compute is killed.
    KILL = "kill"
    #: The same, and the user deletes the server before it starts again.
    LOCAL_DELETE = "local-delete"
    #: The server's QEMU ends; in a stage that of the service VM.
    GUEST_DIES = "guest-dies"
    #: The guest resets itself, and begins to use its devices anew.
    GUEST_RESETS = "guest-resets"
    #: libvirt does not answer until the operation has ended.
    LIBVIRT = "libvirt"
    #: A consumer that nobody knows has a free device in Placement.
    ALLOCATION = "allocation"

    def happens_in(self, phase: Phase) -> bool:
        """Whether it is tried in a phase.

        Where GPUs have a stage, a kill is: what else may happen to a server does not meet it.
        In the stage itself there is no server that could be deleted, or reset itself.
        """
        if not phase.stage or self is Fault.KILL:
            return True
        in_stage = (Fault.GUEST_DIES, Fault.LIBVIRT, Fault.ALLOCATION)
        return phase.act == "clean" and self in in_stage

    @property
    def kills(self) -> bool:
        """Whether nova-compute has to start again."""
        return self in (Fault.KILL, Fault.LOCAL_DELETE)


#: Whom nobody knows.
NOBODY: Final = str(uuid.UUID(int=0x0B0D4, version=4))


class Faults:
    """Those of a world's orders that do and undo faults."""

    hypervisor: Hypervisor
    host_name: str
    computes: Any
    placement: Any
    api: Any
    with_stage: bool
    service: ServiceVms

    def prepare(self) -> None:
        """Let libvirt be away at times; after nova-compute has started."""
        AGENT.strike = self.strike
        host = self.computes[self.host_name].driver._host
        connection = host.get_connection()

        def connect() -> Any:
            if AGENT.away is not None:
                raise exception.HypervisorUnavailable(host=self.host_name)
            return connection

        host.get_connection = connect

    def strike(self, word: str) -> None:
        """Let a fault happen now."""
        fault = Fault(word)
        if fault is Fault.GUEST_DIES:
            for domain in self._running():
                domain.destroy()
            if self.with_stage:
                self.service.does("die")
                self.service.end()
        elif fault is Fault.GUEST_RESETS:
            for domain in self._running():
                self.hypervisor.used(domain.UUIDString())
        elif fault is Fault.LIBVIRT:
            AGENT.away = _gone
            if self.with_stage:
                self.service.does("fail")
                self.service.end()
        elif fault is Fault.ALLOCATION:
            self._leave()

    def _running(self) -> list[Any]:
        connection = self.computes[self.host_name].driver._host.get_connection()
        return [each for each in connection._vms.values() if each.isActive()]

    def _leave(self) -> None:
        body = self.placement.get("/resource_providers", version="1.14").body
        for provider in body["resource_providers"]:
            if "_" not in provider["name"]:
                continue
            url = f"/resource_providers/{provider['uuid']}/inventories"
            classes = self.placement.get(url).body["inventories"]
            allocation = {
                "allocations": {provider["uuid"]: {"resources": dict.fromkeys(classes, 1)}},
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
                "project_id": "nobody",
                "user_id": "nobody",
            }
            answer = self.placement.put(f"/allocations/{NOBODY}", allocation, version="1.38")
            if answer.status == 204:
                return
        raise AssertionError("no device is free that somebody could have")

    # -- orders ---------------------------------------------------------------------

    def do_strike(self, word: str) -> None:
        """After the last step."""
        self.strike(word)

    def do_return(self) -> None:
        """libvirt answers again, and service VMs do what they have to."""
        AGENT.away = None
        if self.with_stage:
            self.service.does("pass")

    def do_force_down(self, down: bool) -> None:
        """What an operator says of a nova-compute that is down."""
        (service,) = self.api.get_services(host=self.host_name, binary="nova-compute")
        self.api.put_service_force_down(service["id"], down)

    def do_reap(self) -> None:
        """Nova ends the guests of servers that it has deleted; else it waits for half an hour."""
        manager = self.computes[self.host_name].manager
        manager._cleanup_running_deleted_instances(nova_context.get_admin_context())

    def do_remove(self) -> None:
        """What an operator does about an allocation that was left behind."""
        self.placement.delete(f"/allocations/{NOBODY}")


def _gone() -> Exception:
    error: Exception = fakelibvirt.make_libvirtError(
        fakelibvirt.libvirtError,
        "internal error: client socket is closed",
        error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
        error_domain=fakelibvirt.VIR_FROM_REMOTE,
    )
    return error
