# SPDX-License-Identifier: Apache-2.0
"""The guests' WireGuard tunnel: a key for each boot, which never leaves its guest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..files import Root, describe_error
from .port_rule import TUNNEL_PORT
from .records import KEY
from .system import ProgramError, Programs

INTERFACE: Final = "hpc-gpu0"
#: Below /run, and so only of this boot.
_FOLDER: Final = "/run/nova-hpc-gpu"
#: WireGuard's own overhead on an Ethernet of 1500.
_MTU: Final = "1420"
#: Seconds: a client behind a stateful filter is reached again.
_KEEPALIVE: Final = "20"


class TunnelError(Exception):
    """The guest can have no tunnel; the text gives the reason."""


def make_own_key(root: Root, programs: Programs) -> tuple[str, str]:
    """Return the path of the private key, which is made once a boot, and the public half.

    :raises TunnelError: WireGuard's tools are missing, or the file cannot be written.
    """
    folder = root.place(_FOLDER)
    path = f"{folder}/key"
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise TunnelError(f"{_FOLDER}: others may read it")
        if not Path(path).exists():
            private = programs.run("wg", "genkey").strip()
            if not KEY.fullmatch(private):
                raise TunnelError("wg genkey gave no key")
            beside = f"{path}.{os.getpid()}"
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w") as stream:
                stream.write(f"{private}\n")
            # Both ends' services may begin at one moment: the first key is the boot's.
            with contextlib.suppress(FileExistsError):
                os.link(beside, path)
            Path(beside).unlink()
        public = programs.run("wg", "pubkey", given=Path(path).read_text()).strip()
    except ProgramError as error:
        raise TunnelError(f"no tunnel is possible here: {error}") from error
    except OSError as error:
        raise TunnelError(f"{_FOLDER}/key: {describe_error(error)}") from error
    if not KEY.fullmatch(public):
        raise TunnelError("wg pubkey gave no key")
    return path, public


def set_up(
    programs: Programs,
    private_key: str,
    inside: str,
    port: int,
    peers: Sequence[tuple[str, str, str]],
) -> list[str]:
    """Give the interface exactly these peers; returns lines on failures.

    :param inside: this guest's own address in the tunnel.
    :param peers: for each the public key, its address inside, and its address outside.
    """
    if not private_key:
        return ["encrypted slots are not served: this guest has no key of WireGuard's"]
    try:
        there = programs.try_run("wg", "show", INTERFACE, "peers")
        if there is None:
            programs.run("ip", "link", "add", INTERFACE, "type", "wireguard")
        for words in _commands_of(private_key, inside, port, peers, (there or "").split()):
            programs.run(*words)
    except ProgramError as error:
        return [f"the tunnel: {error}"]
    return []


def _commands_of(
    private_key: str,
    inside: str,
    port: int,
    peers: Sequence[tuple[str, str, str]],
    there: Sequence[str],
) -> list[tuple[str, ...]]:
    """Return the commands that bring the interface from the peers *there* to *peers*, in order.

    :param peers: public key, address inside the tunnel, and address outside of each peer.
    """
    wanted = {key for key, _, _ in peers}
    own = ("wg", "set", INTERFACE)
    commands: list[tuple[str, ...]] = [
        (*own, "listen-port", str(port), "private-key", private_key),
        *((*own, "peer", key, "remove") for key in there if key not in wanted),
    ]
    for key, peer_inside, outside in peers:
        commands.append(
            (
                *(*own, "peer", key, "allowed-ips", f"{peer_inside}/32"),
                *("endpoint", f"{outside}:{TUNNEL_PORT}", "persistent-keepalive", _KEEPALIVE),
            )
        )
    commands.append(("ip", "address", "replace", f"{inside}/32", "dev", INTERFACE))
    commands.append(("ip", "link", "set", INTERFACE, "mtu", _MTU, "up"))
    for _, peer_inside, _ in peers:
        commands.append(("ip", "route", "replace", f"{peer_inside}/32", "dev", INTERFACE))
    return commands


def take_down(programs: Programs) -> None:
    """Remove the interface, if it is there."""
    if programs.try_run("ip", "link", "show", "dev", INTERFACE) is not None:
        programs.try_run("ip", "link", "delete", INTERFACE)
