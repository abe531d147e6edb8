# SPDX-License-Identifier: Apache-2.0
"""Distinguishes Nova's own rebuild from a user's request with Nova's mark in a hint."""

from __future__ import annotations

from typing import Final

from nova import objects
from nova.scheduler import utils

#: Text for the user; operators find the server in the log.
FORGED: Final = (
    "The scheduler hint _nova_check_type is Nova's own; leave it out and create the server again"
)


def is_own_rebuild(spec: objects.RequestSpec) -> bool:
    """Whether Nova itself checks that a server may be rebuilt on its host.

    Nova marks the request with the hint ``_nova_check_type``, forces the server's one host and
    node, and removes the id of the record, so that the mark is never saved (compute/api.py,
    API.rebuild of 32 to 34). A user's request has that id: it was read from the record, or
    has just been saved. Nova before 32.2.1 and 33.0.2 accepted the hint from users as well
    (CVE-2026-46448), and records of that time keep it on later releases.
    """
    return (
        utils.request_is_rebuild(spec)
        and not spec.obj_attr_is_set("id")
        and len(_hosts(spec, "force_hosts")) == 1
        and len(_hosts(spec, "force_nodes")) == 1
    )


def has_forged_check(spec: objects.RequestSpec) -> bool:
    """Whether a user's hint makes Nova treat *spec* as a rebuild, which claims nothing."""
    return utils.request_is_rebuild(spec) and not is_own_rebuild(spec)


def _hosts(spec: objects.RequestSpec, name: str) -> list[str]:
    return list(getattr(spec, name) or ()) if spec.obj_attr_is_set(name) else []
