# SPDX-License-Identifier: Apache-2.0
"""The steps that bring up the virtual nodes, and the image that servers boot there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions

from nova_hpc_lab import bootstrap, node, observe
from nova_hpc_lab.errors import InterruptedStepError, LabError
from nova_hpc_lab.node.guest import COMMAND_LINE
from nova_hpc_lab.node.shape import Adapter, Shape
from nova_hpc_lab.progress import Report, Step
from nova_hpc_lab.state import Paths, Settings

#: Seconds in which a node has to come up; its supervisor has tried several times by then.
_START_LIMIT: Final = 1800.0
#: Seconds to get Debian's packages over a slow network.
_IMAGE_LIMIT: Final = 3600.0
#: Seconds for the whole step; by then, its own limits have reported the missing part.
_LATEST: Final = _START_LIMIT + 300.0
_PAUSE: Final = 2.0

#: Properties of the image that servers boot.
IMAGE_PROPERTIES: Final = {
    "os_command_line": COMMAND_LINE,
    # Passthrough of PCI Express devices needs a PCI Express machine.
    "hw_machine_type": "q35",
}


def sdk(work: Callable[[], None]) -> Callable[[Report], None]:
    """Wrap *work* as a step that uses the cloud's APIs; their errors become errors of the lab."""

    def call(report: Report) -> None:
        try:
            work()
        except (sdk_exceptions.SDKException, keystone_exceptions.ClientException) as err:
            raise bootstrap.explain(err) from err

    return call


def steps(
    paths: Paths, settings: Settings, nodes: Sequence[node.Node], aborted: threading.Event
) -> list[Step]:
    """Return the steps for the image, the nodes, and their registration with the cloud."""

    def image(report: Report) -> None:
        node.prepare_image(paths, report)

    def guest() -> None:
        kernel, initramfs = node.guest_image(paths)
        bootstrap.upload_guest(settings, kernel, initramfs, IMAGE_PROPERTIES)

    def up(machine: node.Node) -> Callable[[Report], None]:
        def work(report: Report) -> None:
            machine.start()
            _wait_up(machine, report, aborted)

        return work

    def joined(machine: node.Node) -> Callable[[Report], None]:
        return lambda report: _wait_joined(settings, machine, report, aborted)

    services = ("catalog", "placement", "nova-conductor", "nova-scheduler", "nova-api")
    found = [
        Step("image", "Image of the virtual nodes", image, limit=_IMAGE_LIMIT),
        Step("guest", "Image for servers", sdk(guest), ("image", "catalog", "glance")),
    ]
    for machine in nodes:
        # The node boots while the control plane starts, and needs it only at the end.
        found.append(Step(machine.name, f"Node {machine.name}", up(machine), ("image",), _LATEST))
        found.append(
            Step(
                f"{machine.name}-joined",
                f"Devices of {machine.name} in Placement",
                joined(machine),
                (machine.name, *services),
                _LATEST,
            )
        )
    return found


def _wait_up(machine: node.Node, report: Report, aborted: threading.Event) -> None:
    deadline = time.monotonic() + _START_LIMIT
    while True:
        status = machine.status()
        if status.state is node.State.UP:
            return
        if status.state is node.State.FAILED:
            raise LabError(f"node {machine.name} does not start: {status.reason}; {_look(machine)}")
        if time.monotonic() > deadline:
            raise LabError(
                f"node {machine.name} is not up after {_START_LIMIT:.0f} s (last it said"
                f" {status.reason or 'nothing'!r}); {_look(machine)}"
            )
        report(f"{status.reason or status.state.value}{started_again(status)}", None)
        _pause(aborted)


def started_again(status: node.NodeStatus) -> str:
    """Format the number of a node's restarts and the last reason; "" without restarts."""
    if not status.restarts:
        return ""
    times = "once" if status.restarts == 1 else f"{status.restarts} times"
    return f", started again {times}" + (f" ({cause})" if (cause := status.restart_cause) else "")


def _wait_joined(
    settings: Settings, machine: node.Node, report: Report, aborted: threading.Event
) -> None:
    """Wait until the scheduler can use the node's devices."""
    deadline = time.monotonic() + _START_LIMIT
    cloud = bootstrap.connect(settings)
    while True:
        try:
            there = reported(cloud, machine) and any(
                one.name == machine.name for one in cloud.compute.hypervisors()
            )
            offered = [one for one in observe.providers(cloud) if one.host == machine.name]
        except (sdk_exceptions.SDKException, keystone_exceptions.ClientException) as err:
            raise bootstrap.explain(err) from err
        if there and (offered or not counts_devices(machine.shape)):
            report(f"{len(offered)} providers", None)
            return
        status = machine.status()
        if status.state is node.State.FAILED:
            raise LabError(f"node {machine.name} failed: {status.reason}; {_look(machine)}")
        missing = "its devices" if there else "nova-compute"
        if time.monotonic() > deadline:
            raise LabError(
                f"node {machine.name} runs, but {missing} did not appear in the cloud;"
                f" {_look(machine)}"
            )
        report(f"waiting for {missing}", None)
        _pause(aborted)


def counts_devices(shape: Shape) -> bool:
    """Whether a node has devices in Placement: Nova does not count devices for ports there."""
    return any(
        not (isinstance(device, Adapter) and device.network) for _, device in shape.devices()
    )


def reported(cloud: Any, machine: node.Node) -> bool:
    """Whether nova-compute gave a sign of life since the node was started.

    By then it has reported its devices: the first sign of life follows the first update of
    resources (``Service.start`` in nova/service.py, Nova 34). The devices in Placement are not
    enough, because those of an earlier start stay there while the node is down.
    """
    uptime = machine.status().uptime
    return uptime is not None and time.time() - uptime < observe.last_report(cloud, machine.name)


def _look(machine: node.Node) -> str:
    return f"see: nova-hpc lab logs {machine.name}"


def _pause(aborted: threading.Event) -> None:
    if aborted.wait(_PAUSE):
        raise InterruptedStepError
