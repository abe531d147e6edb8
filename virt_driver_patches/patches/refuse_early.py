# SPDX-License-Identifier: Apache-2.0
"""Refuses an action before Nova has begun it.

Nova powers a server off before it asks the driver to rescue it. A refused
reboot of a stopped server, or a refused unrescue, puts the server into ERROR, and the user of
a running one gets no message. A refused snapshot hangs, and a refused rebuild deletes
the server's allocation in Placement. So this module asks the driver
first, and a refusal ends there, with Nova's own handling of errors around it: the server
keeps its state, and the action's events contain the reason.

No bug is known to be filed: Nova asks a driver to act, and has no call to ask whether it would.
The manager's methods are the last place at which nothing has been changed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from nova import availability_zones, exception
from nova.compute import manager as compute_manager
from nova.compute import utils as compute_utils
from nova.virt import hardware
from oslo_log import log as logging

from nova_hpc.from_nova.gate import Call, Patch, wrap_method

LOG = logging.getLogger(__name__)

#: Takes an instance; raises a NovaException to refuse the action.
Check = Callable[[Any], None]


def _patch_of_action(
    name: str, lines: dict[int, tuple[int, int]], reason: str, *more: str
) -> Patch:
    return Patch(
        f"nova.compute.manager:ComputeManager.{name}",
        parameters=("context", "instance", *more),
        lines=lines,
        why=reason,
        until="drivers can refuse an action before it has begun",
    )


#: Name of a method of the compute manager -> its patch.
ACTIONS: Final = {
    patch.name: patch
    for patch in (
        _patch_of_action(
            "reboot_instance",
            {32: (4387, 4398), 33: (4537, 4549), 34: (4402, 4414)},
            "A reboot that the driver refuses puts a stopped server into ERROR, and the user of a "
            "running one reads nothing.",
        ),
        _patch_of_action(
            "rescue_instance",
            {32: (5175, 5238), 33: (5340, 5403), 34: (4860, 4923)},
            "The server is powered off before the driver is asked.",
        ),
        _patch_of_action(
            "unrescue_instance",
            {32: (5240, 5270), 33: (5405, 5435), 34: (4925, 4955)},
            "A refused unrescue puts the server into ERROR.",
        ),
        _patch_of_action(
            "rebuild_instance",
            {32: (3829, 4007), 33: (3979, 4157), 34: (3888, 4066)},
            "A refused rebuild loses the server's allocation in Placement.",
            "recreate",
        ),
        _patch_of_action(
            "snapshot_instance",
            {32: (4547, 4581), 33: (4698, 4742), 34: (4563, 4610)},
            "A refused snapshot leaves an image that is queued for ever.",
            "image_id",
        ),
        _patch_of_action(
            "backup_instance",
            {32: (4533, 4545), 33: (4684, 4696), 34: (4549, 4561)},
            "As for snapshot_instance.",
            "image_id",
        ),
        _patch_of_action(
            "revert_resize",
            {32: (5916, 5962), 33: (6081, 6127), 34: (5605, 5654)},
            "A revert destroys the guest before the source is asked for the devices that the "
            "server had: where they are gone, it ends in ERROR.",
            *("migration", "request_spec"),
        ),
    )
}


def install_early_refusals(manager: Any, checks: Mapping[str, Check]) -> None:
    """Wrap methods of the compute manager.

    :param checks: name of a method -> check that is called before it.
    :raises nova.exception.InvalidConfiguration: a method is not as expected.
    """
    for name, check in checks.items():
        _wrap_refusable_action(manager, ACTIONS[name], check)


def _wrap_refusable_action(manager: Any, patch: Patch, check: Check) -> None:
    """Run *check* before one method of the manager; after a refusal run one that only fails.

    A refused snapshot also deletes its image, and a refused revert keeps the resized server.
    """
    refuse = _build_refusing_method(patch.name)

    def around(call: Call) -> Any:
        context, instance = call.given["context"], call.given["instance"]
        if call.given.get("recreate"):  # an evacuation; its devices are claimed later
            return call()
        try:
            check(instance)
        except exception.NovaException as error:
            LOG.warning("%s is refused: %s", patch.name, error, instance=instance)
            image = call.given.get("image_id")  # of the snapshot, which the API has made
            if image is not None:
                compute_utils.delete_image(
                    context, instance, manager.image_api, image, log_exc_info=True
                )
            if patch.name == "revert_resize":
                _keep_resized(context, instance, call.given)
            return refuse(manager, context, instance=instance, error=error)
        return call()

    wrap_method(manager, patch, around)


def _keep_resized(context: Any, instance: Any, given: Mapping[str, Any]) -> None:
    """Undo changes of Nova's API for a revert in the cell's database, so the user can try again.

    (``revert_resize`` of nova/compute/api.py, 32 to 34.) The zone and the request specification are
    in the API database, which this service may be unable to reach.
    """
    migration, spec = given["migration"], given["request_spec"]
    migration.status = "finished"
    migration.save()
    try:
        instance.availability_zone = availability_zones.get_host_availability_zone(
            context, instance.host
        )
        if spec is not None and spec.flavor.id != instance.flavor.id:
            spec.flavor = instance.flavor
            spec.numa_topology = hardware.numa_get_constraints(instance.flavor, instance.image_meta)
            spec.save()
    except Exception as error:
        LOG.warning(
            "The zone and the request specification stay those of the revert: %s",
            error,
            instance=instance,
        )


def _build_refusing_method(name: str) -> Callable[..., Any]:
    """Build a method with the name of the manager's that only fails, as Nova's methods fail."""

    def refuse(self: Any, context: Any, instance: Any, error: exception.NovaException) -> None:
        raise error

    refuse.__name__ = name  # the name of the action's event
    method = compute_manager.wrap_instance_fault(refuse)
    method = compute_utils.wrap_instance_event(prefix="compute")(method)
    method = compute_manager.reverts_task_state(method)
    whole: Callable[..., Any] = compute_manager.wrap_exception()(method)
    return whole
