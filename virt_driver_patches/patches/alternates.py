# SPDX-License-Identifier: Apache-2.0
"""Drops a server's alternates that other servers have taken, before Nova tries them.

After a failed build nova-conductor claims the alternates of the server one after the other.
If Placement refuses all of them, the conductor sends a notification of an exception that was
never raised. With versioned notifications that is an error of its own: the ports of the server
stay bound, and its user gets no reason (``docs/source/contributor/upstream/index.rst``,
reschedule-lost). The conductor loads no code of this project. But nova-compute sends it there,
and can query Placement first. If no alternate is free any more, the server keeps the last host's
reason, like a server without alternates.

An alternate can still be lost in the milliseconds between the query and the claim.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
from nova import objects
from oslo_log import log as logging

from nova_hpc.from_nova import providers

LOG = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class _AlternateBuild:
    """One attempt of Nova to build a server, with the alternate hosts that are left."""

    #: Nova's properties of this attempt: without ``retry`` Nova does not try again.
    properties: dict[str, Any]
    #: Nova's own list, which Nova passes on.
    hosts: list[objects.Selection]


_BUILD: Final[contextvars.ContextVar[_AlternateBuild | None]] = contextvars.ContextVar(
    "hpc_build", default=None
)


@contextlib.contextmanager
def remember_alternates(
    properties: dict[str, Any], hosts: list[objects.Selection]
) -> Iterator[None]:
    """Remember a server's alternates during its build.

    :param properties: the filter properties that Nova reads after a failed build.
    """
    token = _BUILD.set(_AlternateBuild(properties, hosts))
    try:
        yield
    finally:
        _BUILD.reset(token)


def forget_lost_alternates(instance: objects.Instance) -> None:
    """Drop the alternates whose resources are taken; Nova does not try again if none is left."""
    build = _BUILD.get()
    if build is None:
        return
    # Nova's conductor claims the first of the remaining ones that is free, in this order.
    build.hosts[:] = [host for host in build.hosts if not _is_lost(host)]
    if not build.hosts:
        LOG.info(
            "Every alternate of the server has been taken by another; it is not tried again",
            instance=instance,
        )
        build.properties.pop("retry", None)


def _is_lost(host: objects.Selection) -> bool:
    """Whether Placement lacks the resources that the alternate names."""
    try:
        allocations = json.loads(host.allocation_request)["allocations"]
        return any(
            providers.has_free_resources(provider, allocation["resources"]) is False
            for provider, allocation in allocations.items()
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        # The allocation request is another scheduler's: leave the check to the conductor.
        return False
