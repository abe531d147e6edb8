# SPDX-License-Identifier: Apache-2.0
"""Checks members' names for other programs: readers of host files, and the one of ``--drain``.

Nova accepts any text as a server's name, and its owner can write its metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nova_hpc_common.outside.host_names import OutsideError, quote_bad_name, require_host_name
from nova_hpc_common.outside.text import shell_command
from nova_hpc_common.wire import position


def check_names(servers: Iterable[tuple[str, str]], words: Collection[str] = ()) -> None:
    """Check that each name is a valid host name, and that no two are equal.

    :param servers: id and name of each server.
    :param words: words with another meaning for the program, in lower case.
    :raises OutsideError: a name is invalid; the text names the server and the cure.
    """
    taken: dict[str, str] = {}
    for server, name in servers:
        require_host_name(name, _format_rename_cure(server))
        # Host names are compared without regard to case (RFC 1035, 2.3.3).
        holder = taken.setdefault(name.lower(), server)
        if holder != server:
            raise OutsideError(
                f"server {holder} is called {name}, too; {_format_rename_cure(server)}"
            )
        if name.lower() in words:
            raise OutsideError(f"{name} has another meaning there; {_format_rename_cure(server)}")


def check_domains(server: str, domains: Mapping[str, str]) -> None:
    """Check that the names of a member's domains have the form that nodes write.

    :param server: id of the member.
    :param domains: level -> name of the domain.
    :raises OutsideError: a name is invalid; the text names the server and the cure.
    """
    for level, name in domains.items():
        if not position.is_position_name(name):
            cure = shell_command("openstack", "server", "unset", "--property", position.KEY, server)
            raise OutsideError(
                f"{quote_bad_name(name)} is no name of a {level}; server {server}: {cure}"
            )


def _format_rename_cure(server: str) -> str:
    command = shell_command("openstack", "server", "set", "--name", "NAME", server)
    return f"server {server} needs another one: {command}"
