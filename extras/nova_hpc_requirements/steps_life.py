# SPDX-License-Identifier: Apache-2.0
"""The life of one VM, step by step, through Nova's and Neutron's public APIs."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError
from nova_hpc_client.openstack.rest import GoneError
from nova_hpc_requirements.guest_shell import GuestAnswer, NoLoginError, ask_guest
from nova_hpc_requirements.step_context import (
    NAME,
    PLATFORM,
    StepContext,
    describe_server,
    explain_step_errors,
)
from nova_hpc_requirements.verdicts import EvidenceError

Output = dict[str, Any]
_SSH_PORT: Final = 22
_TAGS: Final = {"CreatedBy": "nova-hpc requirements"}
#: Nova's first microversion in which a live migration chooses its host and its disks.
_MOVES: Final = "2.30"


def launch_instance(context: StepContext) -> Output:
    """Create a key pair, a security group if a network is given, and a server."""
    options = context.options
    if not options.flavor or not options.image:
        raise EvidenceError("name the server's flavor and image: --flavor FLAVOR --image IMAGE")
    flavor = context.cloud.flavor(options.flavor)
    image = context.cloud.image(options.image)
    network = context.cloud.network(options.network) if options.network else ""
    name = f"{NAME}-{secrets.token_hex(4)}"
    made: Output = {"platform": PLATFORM, "requested_key_name": name, "vpc_id": network}
    try:
        made["key_file"] = _make_key(context, name)
        if network:
            made["security_group_id"] = _make_security_group(context, name)
        made["instance_id"] = _make_server(context, name, str(flavor["id"]), image, made)
        context.server_id = made["instance_id"]
        record = context.wait_for("ACTIVE")
        if network and options.ssh_user:
            # The suite's next check logs in once, and does not wait.
            _ask_over_ssh(context, record, str(made["key_file"]))
    except BaseException:
        # Nothing stays behind, whatever has happened; the first error is the one to report.
        with contextlib.suppress(Exception):
            remove_made(context, made, name)
        raise
    output = {**made, **describe_server(record), "instance_type": str(flavor["name"])}
    output["vpc_id"] = network or context.rest.project
    passed = output["key_name"] == name
    output["tests"] = {"specified_key": {"passed": passed, "message": output["key_name"]}}
    return {**output, "ssh_user": options.ssh_user, "success": True}


def _make_key(context: StepContext, name: str) -> str:
    """Make a key pair; the file of its private part."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    folder = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
    file = folder / "id_ed25519"
    file.touch(mode=0o600)
    file.write_bytes(private)
    body = {"keypair": {"name": name, "public_key": public.decode()}}
    try:
        context.rest.nova("POST", "/os-keypairs", body)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return str(file)


def _make_security_group(context: StepContext, name: str) -> str:
    body = {"security_group": {"name": name, "description": _TAGS["CreatedBy"]}}
    group = str(context.rest.neutron("POST", "/security-groups", body)["security_group"]["id"])
    rule = {
        "security_group_id": group,
        "direction": "ingress",
        "ethertype": "IPv4",
        "protocol": "tcp",
        "port_range_min": _SSH_PORT,
        "port_range_max": _SSH_PORT,
    }
    try:
        context.rest.neutron("POST", "/security-group-rules", {"security_group_rule": rule})
    except BaseException:
        with contextlib.suppress(Exception):
            context.rest.neutron("DELETE", f"/security-groups/{group}")
        raise
    return group


def _make_server(context: StepContext, name: str, flavor: str, image: str, made: Output) -> str:
    server: dict[str, Any] = {
        "name": name,
        "flavorRef": flavor,
        "imageRef": image,
        "key_name": name,
        "metadata": {**_TAGS, "Name": name},
        "networks": [{"uuid": made["vpc_id"]}] if made["vpc_id"] else "none",
    }
    if "security_group_id" in made:
        server["security_groups"] = [{"name": made["security_group_id"]}]
    return str(context.rest.nova("POST", "/servers", {"server": server})["server"]["id"])


def list_instances(context: StepContext) -> Output:
    """List the servers of the server's network, or of the project if it has no network."""
    record = context.read_server()
    networks = {port["device_id"]: port["network_id"] for port in _list_ports(context)}
    own = networks.get(record["id"])
    servers = [
        {**describe_server(server), "vpc_id": networks.get(server["id"], context.rest.project)}
        for server in context.rest.servers()
    ]
    there = [server for server in servers if own is None or server["vpc_id"] == own]
    ids = {server["instance_id"] for server in there}
    return {
        "success": True,
        "platform": PLATFORM,
        "instances": there,
        "count": len(there),
        "target_instance": record["id"],
        "found_target": record["id"] in ids,
    }


def _list_ports(context: StepContext) -> Iterator[dict[str, Any]]:
    for port in context.rest.ports(fields=("id", "device_id", "network_id")):
        if port.get("device_id") and port.get("network_id"):
            yield port


def verify_tags(context: StepContext) -> Output:
    """Report the tags of the server, which are its metadata in Nova."""
    record = context.read_server()
    tags = dict(record.get("metadata") or {})
    return {
        "success": True,
        "platform": PLATFORM,
        "instance_id": record["id"],
        "tags": tags,
        "tag_count": len(tags),
    }


def describe_instance(context: StepContext) -> Output:
    """Describe the server, and read its guest's answer over ssh if possible."""
    record = context.read_server()
    output = {**describe_server(record), **_own_options(context), "success": True}
    answer, error = _ask_over_ssh(context, record)
    facts = None
    if answer is not None:
        facts = {**answer.facts, "accepted_os": list(context.options.accept_os)}
        if answer.report is not None:
            output["guest_check"] = dict(answer.report)
        elif answer.complaint:
            output["guest_check_error"] = answer.complaint
    return {**output, "guest": facts, "ssh_ready": answer is not None, "ssh_error": error}


def _own_options(context: StepContext) -> Output:
    options = context.options
    return {"key_file": options.key_file, "ssh_user": options.ssh_user}


def _ask_over_ssh(
    context: StepContext, record: dict[str, Any], key_file: str = ""
) -> tuple[GuestAnswer | None, str]:
    """Query the guest over ssh; return its answer, or the reason if it gives none.

    :param key_file: of a server that was just made; "" for the caller's option.
    """
    options = context.options
    key_file = key_file or options.key_file
    address = describe_server(record)["public_ip"]
    try:
        return ask_guest(address, options.ssh_user, key_file, options.ssh_timeout), ""
    except NoLoginError as error:
        return None, str(error)


def stop_instance(context: StepContext) -> Output:
    """Stop the server and wait until Nova reports it as stopped."""
    _ask_for(context, "os-stop")
    record = context.wait_for("SHUTOFF")
    return {**describe_server(record), "stop_initiated": True, "success": True}


def start_instance(context: StepContext) -> Output:
    """Start the server, and wait until its guest answers over ssh."""
    _ask_for(context, "os-start")
    record = context.wait_for("ACTIVE")
    answer, error = _ask_over_ssh(context, record)
    return {
        **describe_server(record),
        **_own_options(context),
        "start_initiated": True,
        "ssh_ready": answer is not None,
        "ssh_error": error,
        "console_length": len(wait_for_console(context)),
        "success": True,
    }


def wait_for_console(context: StepContext) -> str:
    """Wait for text on the console and return it; "" if the guest writes none, or Nova refuses."""
    from openstack import exceptions as sdk
    from openstack import utils as sdk_utils

    try:
        for _ in sdk_utils.iterate_timeout(context.options.ssh_timeout, "no text", 3.0):
            with contextlib.suppress(ClusterCloudError):
                text = context.read_console()
                if text.strip():
                    return text
    except sdk.ResourceTimeout:
        pass
    return ""


def reboot_instance(context: StepContext) -> Output:
    """Reboot the server, and check whether its guest has started again."""
    record = context.read_server()
    before, _ = _ask_over_ssh(context, record)
    console = wait_for_console(context)
    _ask_for(context, "reboot", {"type": "SOFT"})
    record = context.wait_for("ACTIVE")
    length = len(_read_console_or_nothing(context))
    after, error = _ask_over_ssh(context, record)
    output: Output = {
        **describe_server(record),
        **_own_options(context),
        "reboot_initiated": True,
        "ssh_ready": after is not None,
        "ssh_error": error,
        # QEMU's log of the console is emptied only if QEMU starts again.
        "console_restarted": length < len(console),
        "success": True,
    }
    uptimes = [answer.uptime if answer else None for answer in (before, after)]
    if uptimes[1] is not None:
        output["uptime_seconds"] = uptimes[1]
    if None not in uptimes:
        output["reboot_confirmed"] = uptimes[1] < uptimes[0]  # type: ignore[operator]
    return output


def _read_console_or_nothing(context: StepContext) -> str:
    try:
        return context.read_console()
    except ClusterCloudError:
        return ""


def migrate_instance(context: StepContext) -> Output:
    """Move the server to another host: live, or cold if Nova refuses that."""
    before = context.read_server()
    host = before.get("OS-EXT-SRV-ATTR:host")
    output: Output = {
        "platform": PLATFORM,
        "instance_id_before": before["id"],
        "instance_id": before["id"],
        "success": True,
    }
    if host is None:
        return {**output, "moved": False, "why_not": "hosts are shown to the admin role alone"}
    if len(context.fabric.hosts()) < 2:
        return {**output, "moved": False, "why_not": "this cloud has one compute host"}
    how, why = _move_server(context)
    record = context.wait_for("ACTIVE", "SHUTOFF")
    moved = record.get("OS-EXT-SRV-ATTR:host") not in (None, host)
    return {
        **output,
        **describe_server(record),
        "moved": moved,
        "how": how,
        "why_not": "" if moved else why or "the server is on the host it was on",
    }


def _move_server(context: StepContext) -> tuple[str, str]:
    """Request that the server moves; return the kind of move, and Nova's objection."""
    try:
        live = {"host": None, "block_migration": "auto", "force": False}
        _ask_for(context, "os-migrateLive", live, _MOVES)
        return "live", "Nova has begun to move it live, and left it where it was"
    except GoneError:
        raise
    except ClusterCloudError as error:
        refused = str(error)
    try:
        _ask_for(context, "migrate")
    except GoneError:
        raise
    except ClusterCloudError as error:
        return "", f"live: {refused}; cold: {error}"
    record = context.wait_for("VERIFY_RESIZE", "ACTIVE", "SHUTOFF")
    if record.get("status") == "VERIFY_RESIZE":
        _ask_for(context, "confirmResize")
    return "cold", f"live: {refused}; cold: no other host takes it"


def _ask_for(
    context: StepContext, action: str, body: Any = None, microversion: str | None = None
) -> None:
    more = {} if microversion is None else {"microversion": microversion}
    context.rest.nova("POST", f"/servers/{context.server_id}/action", {action: body}, **more)


def tear_down(context: StepContext) -> Output:
    """Delete everything that :func:`launch_instance` created."""
    options = context.options
    made = {
        "instance_id": context.options.server,
        "key_file": options.key_file,
        "security_group_id": options.security_group,
    }
    deleted, failed = remove_made(context, made, options.key_name)
    return {
        "success": not failed,
        "platform": PLATFORM,
        "resources_deleted": deleted,
        "resources_failed": failed,
        **({"error": f"still there: {'; '.join(failed)}"} if failed else {}),
    }


def remove_made(context: StepContext, made: Output, key: str) -> tuple[list[str], list[str]]:
    """Delete everything that was created; a deletion that fails does not stop the others.

    :returns: the deleted things, and the remaining ones with the reason.
    """
    deleted: list[str] = []
    failed: list[str] = []

    def remove(what: str, *steps: Any) -> None:
        try:
            with explain_step_errors():
                for step in steps:
                    with contextlib.suppress(GoneError):
                        step()
        except EvidenceError as error:
            failed.append(f"{what}: {error}")
        else:
            deleted.append(what)

    rest = context.rest
    server, group = made.get("instance_id"), made.get("security_group_id")
    if server:
        remove(
            f"server {server}",
            lambda: rest.nova("DELETE", f"/servers/{server}"),
            lambda: context.wait_until_gone(server),
        )
    if group:
        remove(
            f"security group {group}", lambda: rest.neutron("DELETE", f"/security-groups/{group}")
        )
    if key.startswith(NAME):
        remove(f"key pair {key}", lambda: rest.nova("DELETE", f"/os-keypairs/{key}"))
    file = Path(made.get("key_file") or "")
    # Never a key of the caller's own.
    if file.parent.name.startswith(NAME) and file.is_file():
        remove(f"key file {file}", lambda: shutil.rmtree(file.parent))
    return deleted, failed
