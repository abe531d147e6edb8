# SPDX-License-Identifier: Apache-2.0
"""Distinguishes a server that is being created from an existing one that moves."""

from __future__ import annotations

from nova import exception, objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def is_new_server(spec: objects.RequestSpec) -> bool:
    """Whether *spec* is for a server that has never had a host.

    Nova keeps a build request of every server until it has a host (conductor/manager.py:
    585-594 and 2037-2051 of release 34), and the specification itself does not show it.
    It costs one query of the API database, so it is not used for every request.

    :returns: True if it cannot be determined.
    """
    uuid = spec.instance_uuid if "instance_uuid" in spec else None
    if uuid is None:
        return True
    try:
        objects.BuildRequest.get_by_instance_uuid(spec._context, uuid)
    except exception.BuildRequestNotFound:
        return False
    except Exception:
        LOG.exception("It is unknown whether server %s is new", uuid)
    return True
