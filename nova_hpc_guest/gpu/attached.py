# SPDX-License-Identifier: Apache-2.0
"""``gpu client``: on a client, the environment of its share, and none without a share.

``/etc/nova-hpc/gpu.env`` is a file for ``EnvironmentFile=`` of systemd, and the input of ``gpu
run`` and ``gpu env``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from ..files import Root
from . import port_rule, records, tunnel
from .engines import fill_environment, find_release, load_engine
from .records import GpuClient
from .system import Programs

ENVIRONMENT: Final = "/etc/nova-hpc/gpu.env"
_HEAD: Final = "# Written by nova-hpc-guest gpu client; it goes when the share is detached.\n"
_PREFIX: Final = "NOVA_HPC_GPU_"
#: Lists of files or folders: the user's own entries stay, behind the engine's.
_LISTS: Final = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")
_LINE: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"', re.ASCII)


class NoShareError(Exception):
    """This machine has no share; the text names the command that attaches one."""


def build_environment(root: Root, own_id: str, client: GpuClient) -> dict[str, str]:
    """Build all environment variables of a client of a share.

    :param own_id: id of this server.
    :raises nova_hpc_guest.gpu.engines.EngineError: the engine is not part of this image.
    """
    engine = load_engine(root, client.engine)
    release = find_release(root, engine)
    address = port_rule.SHARE_INSIDE if client.key else client.address
    own = {
        "SHARE": client.share,
        "CLIENT": own_id,
        "ADDRESS": address,
        "PORT": str(client.port),
        "ENGINE": engine.name,
        "RELEASE": release,
        "MATCH": engine.match,
    }
    return {
        **fill_environment(engine.client_environment, address=address, port=client.port),
        **{_PREFIX + key: value for key, value in own.items()},
    }


def format_environment(environment: Mapping[str, str]) -> str:
    """Format the file of environment variables, as systemd and shells read it."""
    lines = []
    for key, value in sorted(environment.items()):
        quoted = re.sub(r'([\\"$`])', r"\\\1", value)
        lines.append(f'{key}="{quoted}"\n')
    return _HEAD + "".join(lines)


def read_environment(root: Root) -> dict[str, str]:
    """Read the environment variables of this machine's share.

    :raises NoShareError: it has none.
    """
    data = root.read_own(ENVIRONMENT)
    found = {}
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match:
            found[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
    needed = {_PREFIX + key for key in ("SHARE", "CLIENT", "ADDRESS", "PORT", "ENGINE", "RELEASE")}
    if not needed <= found.keys() or not found[f"{_PREFIX}PORT"].isdigit():
        raise NoShareError(
            "no share of a GPU is attached to this machine (openstack hpc gpu attach SHARE "
            "SERVER), or nova-hpc-guest gpu client does not run"
        )
    return found


def format_exports(environment: Mapping[str, str]) -> list[str]:
    """Format the variables as a shell reads them, for ``eval``; lists of the shell stay behind."""
    return [
        f"export {key}={shlex.quote(value)}" + (f'"${{{key}:+:${key}}}"' if key in _LISTS else "")
        for key, value in sorted(environment.items())
    ]


def join_environments(own: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Join the environment of a job: the user's *own*, with the *new* variables before it."""
    joined = {**own, **new}
    for key in _LISTS:
        if own.get(key) and key in new:
            joined[key] = f"{new[key]}:{own[key]}"
    return joined


def follow_once(
    root: Root, programs: Programs, own_id: str, items: Mapping[str, str], private_key: str
) -> list[str]:
    """Adjust this client to its metadata; returns lines on faults.

    :param private_key: path of the tunnel's key; empty if it can have none.
    """
    if records.CLIENT_KEY not in items:
        root.remove(ENVIRONMENT)
        if records.SHARE_KEY not in items:
            tunnel.take_down(programs)
        return []
    try:
        client = records.read_client(items[records.CLIENT_KEY])
    except records.RecordError as error:
        # The place of its share is unknown: the state before may still be right.
        return [str(error)]
    problems = []
    if client.port != port_rule.port_of_address(client.own):
        root.remove(ENVIRONMENT)
        return [f"port {client.port} is not the one of address {client.own}: attach it again"]
    if client.key:
        problems += tunnel.set_up(
            programs,
            private_key,
            port_rule.inside_address_of(client.port),
            port_rule.TUNNEL_PORT,
            [(client.key, port_rule.SHARE_INSIDE, client.address)],
        )
    else:
        tunnel.take_down(programs)
    try:
        text = format_environment(build_environment(root, own_id, client))
    except ValueError as error:
        root.remove(ENVIRONMENT)
        return [*problems, str(error)]
    root.write(ENVIRONMENT, text.encode())
    return problems
