# SPDX-License-Identifier: Apache-2.0
"""User data of members: the user's own, and the keys and mounts of the cluster.

Our part is a boothook. Every cloud-init runs it before sshd starts. It needs no module of the
image's configuration, and cloud-init does not merge it with the user's cloud-config.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from collections.abc import Sequence
from typing import Final

import attrs
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from nova_hpc_client.cluster.mount_units import format_mount_hook
from nova_hpc_common.wire.mounts import Mount
from nova_hpc_guest.host_list import PublicKeys

#: Longest user data that Nova takes, in base64 (Nova's schema of servers).
MOST: Final = 65535
#: Bytes in base64 that the compressed user data of a new cluster leaves free: the keys of later
#: members differ, and may compress less well.
SPARE: Final = 512
_GZIP: Final = b"\x1f\x8b"
#: First characters of the formats that cloud-init reads (cloudinit/handlers/__init__.py, 22.4 to
#: 26.1).
_STARTS: Final = (b"#!", b"#cloud-", b"#include", b"#part-handler", b"## template: jinja")
#: Bytes in which cloud-init looks for the MIME header (cloudinit/user_data.py, convert_string).
_HEAD: Final = 4096

_HOOK: Final = """\
#!/bin/sh
# Written by openstack hpc cluster, for a member of {cluster}.
umask 077
put() {{ cat >"$1.new" && chmod "$2" "$1.new" && mv -f "$1.new" "$1"; }}
"""
#: nova-hpc-guest reads the keys.
_KEY_FILES: Final = """\
mkdir -p /etc/nova-hpc && chmod 755 /etc/nova-hpc
put /etc/nova-hpc/login_key 600 <<'END'
{login}END
put /etc/nova-hpc/host_key 600 <<'END'
{host}END
[ ! -d /etc/ssh/sshd_config.d ] || put /etc/ssh/sshd_config.d/10-nova-hpc.conf 600 <<'END'
HostKey /etc/nova-hpc/host_key
AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys2 /etc/nova-hpc/ssh/%u/authorized_keys
END
[ ! -d /etc/ssh/ssh_config.d ] || put /etc/ssh/ssh_config.d/10-nova-hpc.conf 644 <<'END'
Host {cluster}-* !*.*
    IdentityFile /etc/nova-hpc/ssh/%u/id_ed25519
    GlobalKnownHostsFile /etc/nova-hpc/known_hosts
    StrictHostKeyChecking yes
END
"""


class UserDataError(ValueError):
    """User data that cannot be given to members; the text contains the reason and the cure."""


@attrs.frozen
class MemberKeys:
    """The SSH keys of all members that one command makes.

    :ivar login: private key with which users log in to other members.
    :ivar host: private host key of the members.
    :ivar public: the public keys of both.
    """

    login: str = attrs.field(repr=False)
    host: str = attrs.field(repr=False)
    public: PublicKeys


def make_member_keys() -> MemberKeys:
    """Make two new Ed25519 key pairs, one for logins and one for hosts."""
    (login, login_public), (host, host_public) = _make_key(), _make_key()
    return MemberKeys(login, host, PublicKeys(login_public, host_public))


def _make_key() -> tuple[str, str]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), public.decode().split()[1]


def merge_user_data(
    own: bytes,
    keys: MemberKeys | None,
    cluster: str,
    mounts: Sequence[Mount] = (),
    spare: int = 0,
) -> bytes:
    """Build a MIME message of our part and the user's own data, which stays unchanged.

    The result is compressed with gzip if the user's data was, or if it is too long otherwise.

    :param keys: None if members do not log in to each other.
    :param spare: bytes in base64 that gzip has to leave free for keys of later members; ignored
        without keys.
    :raises UserDataError: the user's data is broken gzip or in a format that cloud-init does not
        read, or the result is too long.
    """
    packed = own.startswith(_GZIP)
    try:
        plain = gzip.decompress(own) if packed else own
    except (OSError, EOFError, zlib.error) as error:
        raise UserDataError(f"the user data is broken gzip: {error}") from error
    mime = b"mime-version:" in plain[:_HEAD].lower()
    if plain and not mime and not plain.lstrip().lower().startswith(_STARTS):
        raise UserDataError(
            "the user data is for no cloud-init (#!, #cloud-config, MIME), so the members' "
            + (
                "mounts cannot be beside it: leave --mount out"
                if mounts
                else "keys cannot be beside it: --no-hosts leaves them out"
            )
        )
    hook = _HOOK.format(cluster=cluster)
    if keys is not None:
        hook += _KEY_FILES.format(cluster=cluster, login=keys.login, host=keys.host)
    hook += format_mount_hook(mounts)
    parts = [b"Content-Type: text/cloud-boothook\n\n" + hook.encode()]
    if mime:
        parts.append(plain)
    elif plain:
        parts.append(_format_part(plain))
    # No part contains the digest of all parts, so it can separate them.
    boundary = hashlib.sha256(b"".join(parts)).hexdigest().encode()
    lines = [b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="%s"\n' % boundary]
    lines += [b"\n--%s\n%s" % (boundary, part) for part in parts]
    data = b"".join((*lines, b"\n--%s--\n" % boundary))
    if not packed and encoded_size_of(data) <= MOST:
        return data
    data = gzip.compress(data, mtime=0)
    left_free = spare if keys is not None else 0
    if encoded_size_of(data) > MOST - left_free:
        alone = encoded_size_of(gzip.compress(plain, mtime=0))
        ours = " and ".join(["keys"] * (keys is not None) + ["mounts"] * bool(mounts))
        less = f", less {left_free} for the keys of later members" if left_free else ""
        raise UserDataError(
            f"the user data has {encoded_size_of(data)} bytes in gzip and base64 with the members' "
            f"{ours} ({alone} without), longer than Nova takes: {MOST}{less}"
        )
    return data


def encoded_size_of(data: bytes) -> int:
    """Return the size of *data* in base64, in bytes: Nova's limit counts these."""
    return (len(data) + 2) // 3 * 4


def _format_part(data: bytes) -> bytes:
    """Format a MIME part whose type cloud-init detects from its content, as for plain user data."""
    head, body = b"Content-Type: text/plain\n\n", data
    # MIME readers change other line ends and non-ASCII bytes, so base64 protects these.
    if not data.isascii() or b"\r" in data or b"\0" in data:
        head = b"Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n"
        body = base64.encodebytes(data)
    return head + body
