# SPDX-License-Identifier: Apache-2.0
"""Alternates that somebody else has taken meanwhile are forgotten before Nova goes there.

After a failed build nova-conductor claims the alternates of the server one after the other.
Where Placement refuses them all, it notifies of an exception that was never raised, and
with versioned notifications that is an error of its own: the ports of the server stay
bound, and its user reads nothing (:doc:`/contributor/upstream/reschedule-lost`). It loads
nothing of this project's. But nova-compute sends it there, and can ask Placement first: if
no alternate is free any more, the last host's reason is the server's, as for a server
without alternates.

Between the question and the claim are some milliseconds, in which an alternate can still be
lost.
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
    """A build that has somewhere else to go."""

    #: Nova's properties of this attempt: without ``retry`` Nova does not try again.
    properties: dict[str, Any]
    #: Nova's own list, which it hands on.
    hosts: list[objects.Selection]


_BUILD: Final[contextvars.ContextVar[_AlternateBuild | None]] = contextvars.ContextVar(
    "hpc_build", default=None
)


@contextlib.contextmanager
def remember_alternates(
    properties: dict[str, Any], hosts: list[objects.Selection]
) -> Iterator[None]:
    """While a server is built that has these alternates.

    :param properties: the filter properties that Nova looks at when the build has failed.
    """
    token = _BUILD.set(_AlternateBuild(properties, hosts))
    try:
        yield
    finally:
        _BUILD.reset(token)


def forget_lost_alternates(instance: objects.Instance) -> None:
    """Drop the alternates whose resources are taken; without any, Nova does not try again."""
    build = _BUILD.get()
    if build is None:
        return
    # Nova's conductor takes what it can of the others, in this order.
    build.hosts[:] = [host for host in build.hosts if not _is_lost(host)]
    if not build.hosts:
        LOG.info(
            "Every alternate of the server has been taken by another; it is not tried again",
            instance=instance,
        )
        build.properties.pop("retry", None)


def _is_lost(host: objects.Selection) -> bool:
    """Whether Placement says that it does not have what the alternate names."""
    try:
        allocations = json.loads(host.allocation_request)["allocations"]
        return any(
            providers.has_free_resources(provider, allocation["resources"]) is False
            for provider, allocation in allocations.items()
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        # Of another scheduler's form: the conductor will see.
        return False
