# SPDX-License-Identifier: Apache-2.0
"""The systemd units of the file systems that members mount, and the commands that start them.

systemd mounts a directory when a program opens it. So a file server that does not answer delays
that program, and not the member's boot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from nova_hpc_common.wire.mounts import Mount

#: Files in this directory disappear at a shutdown. So each boot gets the units of its own user
#: data, and an image that is made from a member contains none.
_FOLDER: Final = "/run/systemd/system"
#: Characters that systemd does not escape in the name of a unit (systemd.unit(5), String Escaping).
_PLAIN: Final = re.compile(r"[A-Za-z0-9:_.]", re.ASCII)
_MOUNT: Final = """\
[Unit]
Description={mount.target} of the cluster

[Mount]
What={mount.source}
Where={mount.target}
Type=nfs
Options=_netdev,nofail
"""
#: The automount unit starts after cloud-init's network stage. A mount needs the network, so a
#: program of that stage that opened the directory would wait for itself.
_AUTOMOUNT: Final = """\
[Unit]
Description={mount.target} of the cluster, once it is opened
DefaultDependencies=no
After=cloud-init.service cloud-init-network.service
Before=cloud-config.service remote-fs.target umount.target
Conflicts=umount.target

[Automount]
Where={mount.target}
"""


def unit_name_of(target: str) -> str:
    """Return a directory's unit name without suffix, as ``systemd-escape --path`` prints it."""
    path = target.strip("/")
    return "".join(_escape_sign(sign, first=not at) for at, sign in enumerate(path))


def _escape_sign(sign: str, first: bool) -> str:
    if sign == "/":
        return "-"
    plain = _PLAIN.fullmatch(sign) and not (first and sign == ".")
    return sign if plain else f"\\x{ord(sign):02x}"


def build_mount_units(mounts: Sequence[Mount]) -> dict[str, str]:
    """Return unit name -> text, with a mount and an automount unit for each mount."""
    return {
        f"{unit_name_of(mount.target)}.{kind}": text.format(mount=mount)
        for mount in mounts
        for kind, text in (("mount", _MOUNT), ("automount", _AUTOMOUNT))
    }


def format_mount_hook(mounts: Sequence[Mount]) -> str:
    """Format shell lines that write and start the units at each boot; "" without mounts.

    The caller's script defines the function ``put FILE MODE``.
    """
    units = build_mount_units(mounts)
    if not units:
        return ""
    files = "".join(
        f"put '{_FOLDER}/{name}' 644 <<'END'\n{text}END\n" for name, text in units.items()
    )
    names = " ".join(f"'{name}'" for name in units if name.endswith(".automount"))
    start = f"systemctl daemon-reload\nsystemctl --no-block start {names}\n"
    return f"if [ -d {_FOLDER} ]; then\n{files}{start}fi\n"
