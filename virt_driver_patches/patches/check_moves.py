"""A gated patch: a move is checked where it goes, before anything is touched.

In a resize, a cold migration or an evacuation the destination claims devices
first, and the driver is called much later, when the guest is already off. So
the resource tracker's claims of moves are wrapped: a claim that does not fit
is dropped again and refused. Nova then tries another host where it can, and
otherwise the server keeps its state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from nova import exception
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Claim
from virt_driver_patches.errors import rollback
from virt_driver_patches.patches import compat

LOG = logging.getLogger(__name__)

_NEEDED = ("context", "instance", "nodename")

#: Takes a context, an instance and its claim; raises a NovaException to refuse.
Check = Callable[[Any, Any, Claim], object]


def install(virtapi: Any, check: Check) -> None:
    """Wrap the resource tracker behind *virtapi*.

    :raises nova.exception.InvalidConfiguration: it is not as expected.
    """
    tracker = getattr(compat.manager_of(virtapi), "rt", None)
    compat.expect(tracker, "drop_move_claim", "context", "instance", "nodename", "flavor")
    _wrap(tracker, "resize_claim", check, *_NEEDED, "flavor")
    _wrap(tracker, "rebuild_claim", check, *_NEEDED)  # an evacuation


def _wrap(tracker: Any, name: str, check: Check, *needed: str) -> None:
    plain, signature = compat.expect(tracker, name, *needed)

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        context, instance = given["context"], given["instance"]
        flavor = given.get("flavor") or instance.flavor
        ticket = plain(*args, **kwargs)
        claim = Claim.of_move(instance, flavor)
        try:
            if claim is not None:
                check(context, instance, claim)
        except exception.NovaException as error:
            LOG.warning("The move is refused: %s", error, instance=instance)
            tracker.drop_move_claim(context, instance, given["nodename"], flavor=flavor)
            instance.drop_migration_context()
            raise rollback(error) from error
        return ticket

    setattr(tracker, name, wrapper)
