# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc drain`` as an operator runs it, on the cloud of a test."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Sequence
from typing import Any
from unittest import mock

from keystoneauth1 import noauth, session
from openstack import connection

from nova_hpc_tools.cloud import drain_api, drain_command
from nova_hpc_tools.fabric import nova_aggregates
from nova_hpc_tools.main import NovaHpc
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import cloud_readers


def connect_as_admin(url: str, project: str) -> Any:
    """The compute API of Nova's own stack at *url*, for an administrator."""
    headers = {
        "X-Auth-User": "admin",
        "X-Auth-Project-Id": project,
        "X-Roles": "reader,member,admin",
    }
    found = connection.Connection(
        session=session.Session(auth=noauth.NoAuth(endpoint=url), additional_headers=headers),
        compute_endpoint_override=url,
    ).compute
    for name in ("openstack", "keystoneauth"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return found


def run_drain(
    compute: Any, words: Sequence[str], cloud: Any = drain_api.DrainCloud
) -> tuple[int, str, str]:
    """Run ``nova-hpc drain`` with *words*; its status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(nova_aggregates, "connect_compute_proxy", return_value=compute),
        mock.patch.object(drain_command, "DrainCloud", cloud),
        mock.patch.object(
            cloud_readers, "obtain_snapshot", side_effect=lambda *_: snapshot.take_cloud_snapshot()
        ),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        app = NovaHpc()
        app.command_manager.add_command("drain", drain_command.Drain)
        status = app.run(["drain", *words])
    return status, out.getvalue(), err.getvalue()
