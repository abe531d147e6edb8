# SPDX-License-Identifier: Apache-2.0
"""File systems that members of a cluster mount: ``SERVER:/EXPORT:/DIRECTORY``.

Every user of the project can change the description, and its words go into root's files in new
members. So each reader accepts few signs: no space, no quote, nothing that systemd expands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from nova_hpc_common.outside.host_names import (
    OutsideError,
    explain_wrong_host,
    quote_bad_name,
    require_ip_address,
)

#: Without =, because mount(8) takes the text behind it for the value of a tag such as LABEL.
_SIGNS: Final = re.compile(r"[A-Za-z0-9._@+,:/\[\]~-]+", re.ASCII)
_DIRECTORY: Final = re.compile(r"(?:/[A-Za-z0-9._@+,~-]+)+", re.ASCII)
_ADDRESS: Final = re.compile(r"\[([0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)\]|[0-9.]+", re.ASCII)
#: These and all below them belong to the system: a mount there would hide files that members need.
_SYSTEM: Final = (
    *("/bin", "/boot", "/dev", "/efi", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc"),
    *("/root", "/run", "/sbin", "/sys", "/usr", "/var"),
)
#: cloud-init writes files directly into these at boot.
_KEPT: Final = ("/home", "/tmp")  # nosec B108


class MountError(ValueError):
    """A mount is not possible for members. The text contains the reason and the remedy."""


class Mount(NamedTuple):
    """A file system of an NFS server, and its place in each member."""

    #: In the form of mount(8): ``SERVER:/EXPORT``, an address of IPv6 in brackets.
    source: str
    #: An absolute path.
    target: str

    def __str__(self) -> str:
        return f"{self.source}:{self.target}"


def parse_mount(text: str) -> Mount:
    """Read ``SERVER:/EXPORT:/DIRECTORY``; the last colon separates.

    :raises MountError: members cannot have it.
    """
    shown = quote_bad_name(text)
    if not _SIGNS.fullmatch(text):
        raise MountError(f"{shown} has other signs than letters, digits and ._@+,:/[]~-")
    source, _, target = text.rpartition(":")
    server, separator, _ = source.partition(":/")
    if not separator:
        raise MountError(
            f"{shown} is not SERVER:/EXPORT:/DIRECTORY; a share of Manila is attached by hand"
        )
    _check_server(server, shown)
    _check_target(target, shown)
    return Mount(source, target)


def check_mounts(mounts: Iterable[Mount]) -> None:
    """Refuse mounts that conflict with each other.

    :raises MountError: two have the same directory, or one lies in the other's.
    """
    targets: list[str] = []
    for mount in mounts:
        for target in targets:
            if mount.target == target:
                raise MountError(f"{target} is mounted twice: choose another directory for one")
            if _is_within(mount.target, target) or _is_within(target, mount.target):
                raise MountError(
                    f"of {target} and {mount.target} one lies in the other, so members would wait "
                    "for two servers: choose directories beside each other"
                )
        targets.append(mount.target)


def _check_server(server: str, shown: str) -> None:
    address = _ADDRESS.fullmatch(server)
    if address:
        try:
            require_ip_address(address[1] or server, "it is the server of a mount")
        except OutsideError as error:
            raise MountError(f"{shown}: {error}") from error
    elif ":" in server or "[" in server:
        raise MountError(f"{shown}: an address of IPv6 stands in brackets: [2001:db8::1]:/EXPORT")
    elif wrong := explain_wrong_host(server):
        raise MountError(f"{shown}: {quote_bad_name(server)} cannot name a host: {wrong}")


def _check_target(target: str, shown: str) -> None:
    if not _DIRECTORY.fullmatch(target) or {".", ".."} & {*target.split("/")}:
        raise MountError(
            f"{shown}: {quote_bad_name(target)} is no absolute path without . and .. and without "
            "a slash at its end, such as /data"
        )
    if target in _KEPT or any(target == path or _is_within(target, path) for path in _SYSTEM):
        raise MountError(
            f"{shown}: {target} would hide files that members need; use a directory such as "
            "/data, /srv/data or /home/shared"
        )


def _is_within(path: str, folder: str) -> bool:
    return PurePosixPath(folder) in PurePosixPath(path).parents
