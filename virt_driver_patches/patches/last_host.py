"""A gated patch: let a refusal reach the server's fault.

When a build fails and no other host is left, Nova's conductor replaces the
reason by "Exhausted all hosts available". For flavors with ``hpc:`` keys the
compute service is told that it need not reschedule where there is nowhere to
go: it then keeps the reason of the last host, exactly as it does for a forced
host. What libvirt or the kernel say stays in the log, for it may name devices
of the host: the user reads Nova's and this project's own reasons only. Only the
one manager of this process is wrapped, and only where this
project is in use.
"""

from __future__ import annotations

import functools
from typing import Any

from nova import exception

from nova_hpc.placement import flavor
from virt_driver_patches.patches import compat

_METHOD = "_do_build_and_run_instance"
_ATTEMPT = "_build_and_run_instance"
#: What the user reads in place of a reason that is for the operator.
HIDDEN = "The server could not be started on the host that was chosen; no other host is left."


def keep_reason(virtapi: Any) -> None:
    """Wrap the compute manager behind *virtapi*.

    :raises nova.exception.InvalidConfiguration: it is not as expected.
    """
    manager = compat.manager_of(virtapi)
    build, signature = compat.expect(manager, _METHOD, "instance", "filter_properties", "host_list")

    @functools.wraps(build)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        wanted = bound.arguments["instance"].flavor.extra_specs or {}
        # An empty list: the scheduler named no other host. None: it cannot be told.
        if flavor.has_hpc_keys(wanted) and bound.arguments["host_list"] == []:
            properties = dict(bound.arguments["filter_properties"] or {})
            properties.pop("retry", None)
            bound.arguments["filter_properties"] = properties
        return build(*bound.args, **bound.kwargs)

    setattr(manager, _METHOD, wrapper)
    _hide_reasons(manager)


def _hide_reasons(manager: Any) -> None:
    """Keep the words of libvirt, and of whatever else is not Nova's, from the user."""
    attempt, signature = compat.expect(manager, _ATTEMPT, "instance")

    @functools.wraps(attempt)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return attempt(*args, **kwargs)
        except exception.RescheduledException as error:
            instance = signature.bind(*args, **kwargs).arguments["instance"]
            # Nova has logged it, with its traceback.
            known = isinstance(error.__context__, exception.NovaException)
            if not known and flavor.has_hpc_keys(instance.flavor.extra_specs or {}):
                error.kwargs["reason"] = HIDDEN
            raise

    setattr(manager, _ATTEMPT, wrapper)
