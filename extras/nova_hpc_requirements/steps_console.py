# SPDX-License-Identifier: Apache-2.0
"""Access to a server's console, tested with a user that is made for the test."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
from keystoneauth1.identity import v3
from keystoneauth1.session import Session

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError
from nova_hpc_requirements.step_context import NAME, PLATFORM, StepContext
from nova_hpc_requirements.steps_life import wait_for_console
from nova_hpc_requirements.verdicts import EvidenceError

Output = dict[str, Any]
_ROLE: Final = "member"
_OK: Final = 200
_REFUSALS: Final = (403, 404)
#: Of Nova's policy, in the words of its rule.
_ACTION: Final = "os_compute_api:os-console-output"


def serial_console(context: StepContext) -> Output:
    """Read the server's console, and request a console that accepts input."""
    text = wait_for_console(context)
    output: Output = {
        "success": True,
        "platform": PLATFORM,
        "instance_id": context.server_id,
        "console_available": bool(text),
        "output_length": len(text),
    }
    body = {"remote_console": {"protocol": "serial", "type": "serial"}}
    try:
        context.rest.nova("POST", f"/servers/{context.server_id}/remote-consoles", body)
    except ClusterCloudError as error:
        return {**output, "serial_access_enabled": False, "serial_access_error": str(error)}
    return {**output, "serial_access_enabled": True}


def component_key_access(context: StepContext) -> Output:
    """Report whether the server's key opens the console. Nova has no console by a key."""
    record = context.read_server()
    error = "consoles are opened by a token of Nova's, never by an ssh key"
    return {
        "success": True,
        "platform": PLATFORM,
        "instance_id": record["id"],
        "key_name": str(record.get("key_name") or ""),
        "tests": {
            "sol_access": {"passed": False, "error": error},
            # Users of a cloud see no switch.
            "network_device_access": {"passed": True, "provider_hidden": True},
        },
    }


@attrs.frozen
class ConsoleUser:
    """A temporary user for the test of rights to the console.

    :ivar ask: project in, HTTP status of Nova's answer out.
    :ivar give_role: gives it a role in a project.
    """

    project: str
    ask: Callable[[str], int]
    give_role: Callable[[str], None]


def console_rbac(context: StepContext) -> Output:
    """Request the console as a user of another project, and as one of the server's."""
    server = context.server_id
    owner = str(context.read_server()["tenant_id"])
    with make_console_user(context, server) as user:
        before = user.ask(user.project)
        user.give_role(owner)
        allowed = user.ask(owner)
        scoped = user.ask(user.project)
    return {**describe_console_rights(before, allowed, scoped), "instance_id": server}


def describe_console_rights(before: int, allowed: int, scoped: int) -> Output:
    """Build the step's output from the HTTP status of three answers of Nova.

    :param before: to a user of another project.
    :param allowed: to the same user, with a role in the server's project.
    :param scoped: to that user, with a token for the other project.
    :raises EvidenceError: an answer is neither a success nor a refusal.
    """
    for status in (before, allowed, scoped):
        if status != _OK and status not in _REFUSALS:
            raise EvidenceError(f"Nova answered HTTP {status} to a request for a console")
    refused = before in _REFUSALS
    tests = {
        "denied_principal_cannot_access_console": (refused, before),
        "allowed_principal_can_access_console": (allowed == _OK, allowed),
        "allowed_principal_is_resource_scoped": (scoped in _REFUSALS, scoped),
    }
    return {
        "success": True,
        "platform": PLATFORM,
        "test_name": "console_rbac",
        "rbac_model": "keystone",
        "access_restricted": refused,
        "restricted_actions": [_ACTION],
        "tests": {
            name: {"passed": passed, "message": f"HTTP {status}"}
            | ({} if passed else {"error": f"HTTP {status}"})
            for name, (passed, status) in tests.items()
        },
    }


@contextlib.contextmanager
def make_console_user(context: StepContext, server: str) -> Iterator[ConsoleUser]:
    """Create a project and a user in it; both are deleted afterwards.

    :raises EvidenceError: the caller may not make them.
    """
    identity = context.connection.identity
    name, password = f"{NAME}-{secrets.token_hex(4)}", secrets.token_urlsafe(24)
    role = identity.find_role(_ROLE)
    if role is None:
        raise EvidenceError(f"Keystone has no role {_ROLE}: keystone-manage bootstrap makes it")
    with contextlib.ExitStack() as stack:
        project = identity.create_project(name=name, domain_id="default")
        stack.callback(identity.delete_project, project, ignore_missing=True)
        user = identity.create_user(name=name, password=password, domain_id="default")
        stack.callback(identity.delete_user, user, ignore_missing=True)

        def give_role(target: str) -> None:
            identity.assign_project_role_to_user(target, user, role)

        give_role(project.id)
        yield ConsoleUser(
            project.id,
            lambda target: _ask_console(context, user.id, password, target, server),
            give_role,
        )


def _ask_console(context: StepContext, user: str, password: str, project: str, server: str) -> int:
    """Request a server's console as this user; return the HTTP status of Nova's answer."""
    connection = context.connection
    auth = v3.Password(
        auth_url=connection.config.get_auth_args()["auth_url"],
        user_id=user,
        password=password,
        project_id=project,
    )
    verify, cert = connection.config.get_requests_verify_args()
    session = Session(auth=auth, verify=verify, cert=cert)
    url = f"{connection.compute.get_endpoint().rstrip('/')}/servers/{server}/action"
    answer = session.post(url, json={"os-getConsoleOutput": {}}, raise_exc=False)
    return int(answer.status_code)
