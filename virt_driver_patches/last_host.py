"""A gated patch: let a refusal reach the server's fault.

When a build fails and no other host is left, Nova's conductor replaces the
reason by "Exhausted all hosts available". For flavors with ``hpc:`` keys the
compute service is told that it need not reschedule where there is nowhere to
go: it then keeps the reason of the last host, exactly as it does for a forced
host. Only the one manager of this process is wrapped, and only where this
project is in use.
"""

from __future__ import annotations

import functools
from typing import Any

from nova_hpc.placement import flavor
from virt_driver_patches import compat

_METHOD = "_do_build_and_run_instance"


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
