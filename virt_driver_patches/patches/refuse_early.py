"""A gated patch: refuse an action before Nova has begun it.

Nova powers a server off before it asks the driver to rescue it. It takes a refused
reboot of a stopped server, and a refused unrescue, for a broken server, and tells
the user of a running one nothing. It lets a refused snapshot hang, and takes away
a server's allocation in Placement when its rebuild is refused. So the manager's
methods are wrapped: the driver is asked first, and a refusal ends there, with
Nova's own handling of errors around it: the server keeps its state, and the reason
is in the action's events.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from nova import exception
from nova.compute import manager as compute_manager
from nova.compute import utils as compute_utils
from oslo_log import log as logging

from virt_driver_patches.patches import compat

LOG = logging.getLogger(__name__)

#: Takes an instance; raises a NovaException to refuse.
Check = Callable[[Any], None]


def install(virtapi: Any, checks: Mapping[str, Check]) -> None:
    """Wrap methods of the compute manager behind *virtapi*.

    :param checks: name of a method -> what is asked before it.
    :raises nova.exception.InvalidConfiguration: one is not as expected.
    """
    manager = compat.manager_of(virtapi)
    for name, check in checks.items():
        _wrap(manager, name, check)


def _wrap(manager: Any, name: str, check: Check) -> None:
    plain, signature = compat.expect(manager, name, "context", "instance")
    refuse = _refusal(name)

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        context, instance = given["context"], given["instance"]
        if given.get("recreate"):  # an evacuation; its devices are claimed later
            return plain(*args, **kwargs)
        try:
            check(instance)
        except exception.NovaException as error:
            LOG.warning("%s is refused: %s", name, error, instance=instance)
            if "image_id" in given:  # of the snapshot, which the API has made
                compute_utils.delete_image(
                    context, instance, manager.image_api, given["image_id"], log_exc_info=True
                )
            return refuse(manager, context, instance=instance, error=error)
        return plain(*args, **kwargs)

    setattr(manager, name, wrapper)


def _refusal(name: str) -> Callable[..., Any]:
    """A method of the manager's name that only fails, as Nova's methods fail."""

    def refuse(self: Any, context: Any, instance: Any, error: exception.NovaException) -> None:
        raise error

    refuse.__name__ = name  # the event is called after it
    method = compute_manager.wrap_instance_fault(refuse)
    method = compute_utils.wrap_instance_event(prefix="compute")(method)
    method = compute_manager.reverts_task_state(method)
    return compute_manager.wrap_exception()(method)
