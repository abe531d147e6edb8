# SPDX-License-Identifier: Apache-2.0
"""Host list, keys and environment of a cluster's members, as files.

They are made from the host list in the server's metadata. A file is written as a whole, and only if
it changes. The private keys come with the user data, before sshd starts; this module only copies
them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from . import host_list, own_metadata
from .files import GuestFileError, Root
from .host_list import HostList
from .own_metadata import OwnMetadata, ServiceError

FOLDER: Final = "/etc/nova-hpc"
HOSTS: Final = f"{FOLDER}/hosts"
RANKS: Final = f"{FOLDER}/rankfile"
KNOWN: Final = f"{FOLDER}/known_hosts"
ENVIRONMENT: Final = f"{FOLDER}/environment"
LOGIN_KEY: Final = f"{FOLDER}/login_key"
#: Folder of each account, by its name: its key for other members, and the keys that it accepts.
ACCOUNTS: Final = f"{FOLDER}/ssh"
IDENTITY, AUTHORIZED = "id_ed25519", "authorized_keys"
RESOLVER: Final = "/etc/hosts"
#: PAM reads it for each session, also for a command of ssh without a login shell (pam_env(8)).
SESSIONS: Final = "/etc/environment"
#: Path at which cloud-init leaves the metadata of a configuration drive.
DRIVE: Final = "/run/cloud-init/instance-data.json"

_MARK: Final = b" # nova-hpc cluster"
_BEGIN: Final = b"# Of nova-hpc cluster:\n"
_END: Final = b"# End of nova-hpc cluster.\n"
_BLOCK: Final = re.compile(b"^%s(?:[A-Z].*\n)*%s" % (_BEGIN, _END), re.MULTILINE)
_ACCOUNT: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)


class _Account(NamedTuple):
    name: str
    user: int
    group: int


def read_member_metadata(root: Root, url: str) -> tuple[OwnMetadata, bool]:
    """Read the server's metadata, and whether the service gave it: a drive is as old as the boot.

    :raises ServiceError: neither gives it.
    """
    try:
        return own_metadata.read_own_metadata(url), True
    except ServiceError:
        with contextlib.suppress(GuestFileError, ValueError, KeyError, TypeError, RecursionError):
            stored = json.loads(root.read(DRIVE) or b"")["ds"]["meta_data"]
            return own_metadata.parse_own_metadata(json.dumps(stored).encode()), False
        raise


def write_cluster_files(
    root: Root, hosts: HostList, public_keys: tuple[str, ...], variables: dict[str, str]
) -> list[str]:
    """Write the files of a cluster's member; return lines on the changes that were made.

    :param public_keys: accounts that one of them opens can log in to other members.
    :param variables: of the environment of jobs.
    :raises GuestFileError: something cannot be written.
    """
    lines = "".join(f"{name}={value}\n" for name, value in variables.items())
    files = {
        HOSTS: format_host_file(hosts),
        RANKS: format_rank_file(hosts),
        KNOWN: format_known_hosts(hosts),
        ENVIRONMENT: lines,
    }
    logins = dict.fromkeys(host.keys.login for host in hosts.everyone)
    opens = "".join(f"ssh-ed25519 {key} {hosts.cluster}\n" for key in logins)
    report = []
    login_key = root.read_own(LOGIN_KEY)
    accounts = find_opened_accounts(root, public_keys) if login_key else []
    if login_key is None:
        report.append(f"there is no {LOGIN_KEY}: has cloud-init run the server's user data?")
    elif not accounts:
        report.append("no account has the server's key pair, so none can log in to other members")
    for account in accounts:
        place = f"{ACCOUNTS}/{account.name}"
        files[f"{place}/{AUTHORIZED}"] = opens
        owner = (account.user, account.group)
        if root.write(f"{place}/{IDENTITY}", login_key or b"", owner):
            report.append(f"wrote {place}/{IDENTITY}")
    report += [f"wrote {path}" for path, text in files.items() if root.write(path, text.encode())]
    for name in set(root.names(ACCOUNTS)) - {account.name for account in accounts}:
        for file in (IDENTITY, AUTHORIZED):
            root.remove(f"{ACCOUNTS}/{name}/{file}")
    if root.write(RESOLVER, merge_hosts(root.read(RESOLVER) or b"", hosts)):
        report.append(f"wrote {RESOLVER}")
    present = root.read(SESSIONS) or b""
    sessions = merge_variables(present, lines.encode())
    if sessions != present and root.write(SESSIONS, sessions):
        report.append(f"wrote {SESSIONS}")
    return report


def merge_hosts(present: bytes, hosts: HostList) -> bytes:
    """Return ``/etc/hosts`` with head and members first: Debian's own line has 127.0.1.1.

    Lines of others stay. The cluster's lines have a mark each, so none outlives a file that others
    cut.
    """
    ours = [
        f"{host.address} {hosts.name_of(host)}".encode() + _MARK + b"\n" for host in hosts.everyone
    ]
    lines = present.splitlines(keepends=True)
    return b"".join((*ours, *(line for line in lines if not line.rstrip().endswith(_MARK))))


def merge_variables(present: bytes, ours: bytes) -> bytes:
    """Return ``/etc/environment`` with our lines first: a later line of others counts.

    A mark in their lines would leave its space in the values: pam_env(8) takes all before a #.
    """
    return (_BEGIN + ours + _END if ours else ours) + _BLOCK.sub(b"", present)


def format_host_file(hosts: HostList) -> str:
    """Format Open MPI's host file: a line for each member; the head is left out."""
    slots = f" slots={hosts.slots}" if hosts.slots else ""
    return "".join(f"{hosts.name_of(host)}{slots}\n" for host in hosts.hosts)


def format_rank_file(hosts: HostList) -> str:
    """Format Open MPI's rank file: host after host, a core for each rank."""
    places = [(hosts.name_of(host), core) for host in hosts.hosts for core in range(hosts.slots)]
    return "".join(f"rank {at}={name} slot={core}\n" for at, (name, core) in enumerate(places))


def format_known_hosts(hosts: HostList) -> str:
    """Format the host keys of all members and the head, by name and address (sshd(8))."""
    return "".join(
        f"{hosts.name_of(host)},{host.address} ssh-ed25519 {host.keys.host}\n"
        for host in hosts.everyone
    )


def find_opened_accounts(root: Root, public_keys: tuple[str, ...]) -> list[_Account]:
    """Find the accounts of people, and root's, that one of these keys opens without a condition."""
    wanted = {tuple(key.split()[:2]) for key in public_keys}
    return [
        account
        for account, home in _read_accounts(root)
        if any(tuple(line.split()[:2]) in wanted for line in _read_key_lines(root, home))
    ]


def _read_accounts(root: Root) -> Iterator[tuple[_Account, str]]:
    for line in (root.read("/etc/passwd") or b"").decode("utf-8", "replace").splitlines():
        name, *rest = line.split(":")
        if len(rest) != 6 or not _ACCOUNT.fullmatch(name) or not rest[4].startswith("/"):
            continue
        with contextlib.suppress(ValueError):
            account = _Account(name, int(rest[1]), int(rest[2]))
            if account.user == 0 or 1000 <= account.user < 60000:
                yield account, rest[4]


def _read_key_lines(root: Root, home: str) -> list[str]:
    with contextlib.suppress(GuestFileError):
        data = root.read(f"{home}/.ssh/authorized_keys") or b""
        return data.decode("utf-8", "replace").splitlines()
    return []


def read_listed_hosts(own: OwnMetadata) -> HostList | None:
    """Parse the host list of this server's cluster; None if the metadata have none.

    :raises host_list.WrongHostListError: the list must not be used.
    """
    text = host_list.from_items(own.items)
    return None if text is None else host_list.read_host_list(text)
