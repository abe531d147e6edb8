# SPDX-License-Identifier: Apache-2.0
"""Mounts of a cluster's members: which are taken, and which would harm a member."""

from __future__ import annotations

import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.wire.mounts import Mount, MountError, check_mounts, parse_mount


@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ("nfs:/export:/data", "nfs:/export", "/data"),
        ("nfs.example.org:/:/srv/data", "nfs.example.org:/", "/srv/data"),
        ("192.0.2.9:/a:b:/data", "192.0.2.9:/a:b", "/data"),
        ("[2001:db8::9]:/vol/a_1:/home/shared", "[2001:db8::9]:/vol/a_1", "/home/shared"),
        ("nfs:/x:/opt/a-b.c~d@e+f,g", "nfs:/x", "/opt/a-b.c~d@e+f,g"),
        ("nfs:/x:/users", "nfs:/x", "/users"),  # begins like /usr, and is not below it
    ],
)
def test_the_last_colon_separates(text: str, source: str, target: str) -> None:
    assert parse_mount(text) == Mount(source, target)
    assert str(parse_mount(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "other signs"),
        ("nfs:/my data:/data", "other signs"),
        ("nfs:/x:/data\n", "other signs"),
        ("nfs:/x:/data\nWhat=/dev/vda", "other signs"),
        ("nfs:/x:/da'ta", "other signs"),
        ('nfs:/x:/da"ta', "other signs"),
        ("nfs:/x:/da\\ta", "other signs"),
        ("nfs:/%h:/data", "other signs"),
        ("nfs:/$HOME:/data", "other signs"),
        ("nfs:/a=b:/data", "other signs"),  # a tag, as mount(8) reads it
        ("nfs:/x:/\u00e9", "other signs"),
        ("data", "is not SERVER:/EXPORT:/DIRECTORY"),
        ("6f0c:/data", "a share of Manila is attached by hand"),
        ("nfs:export:/data", "is not SERVER:/EXPORT:/DIRECTORY"),
        (":/x:/data", "cannot name a host: it is empty"),
        ("-o:/x:/data", "cannot name a host"),
        ("localhost:/x:/data", "the machine on which it is read"),
        ("127.0.0.1:/x:/data", "the address of no other machine"),
        ("192.0.2:/x:/data", "is no IP address"),
        ("[::1]:/x:/data", "the address of no other machine"),
        ("[2001:db8:::9]:/x:/data", "is no IP address"),
        ("2001:db8::9:/x:/data", "stands in brackets"),
        ("[192.0.2.9]:/x:/data", "stands in brackets"),
        ("[nfs]:/x:/data", "stands in brackets"),
        ("nfs:/x", "is not SERVER:/EXPORT:/DIRECTORY"),
        ("nfs:/x:", "no absolute path"),
        ("nfs:/x:data", "no absolute path"),
        ("nfs:/x:/", "no absolute path"),
        ("nfs:/x:/data/", "no absolute path"),
        ("nfs:/x://data", "no absolute path"),
        ("nfs:/x:/data/../etc", "no absolute path"),
        ("nfs:/x:/./data", "no absolute path"),
        ("nfs:/x:/da:ta", "no absolute path"),
        ("nfs:/x:/etc", "would hide files that members need"),
        ("nfs:/x:/usr/local/share", "would hide files that members need"),
        ("nfs:/x:/var/lib/cloud", "would hide files that members need"),
        ("nfs:/x:/home", "use a directory such as /data, /srv/data or /home/shared"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(MountError, match=why) as error:
        parse_mount(text)
    assert "\n" not in str(error.value)


@given(st.text(alphabet="aZ0./:-_~[]@ '\"\\\n%$\u00e9", max_size=40))
def test_any_text_is_a_mount_without_danger_or_refused(text: str) -> None:
    with contextlib.suppress(MountError):
        mount = parse_mount(text)
        assert str(mount) == text
        assert not set(text) & set(" '\"\\\n%$\u00e9")
        assert mount.target.startswith("/")
        assert ".." not in mount.target.split("/")


@given(st.ip_addresses(v=6))
def test_addresses_of_ipv6_are_those_that_python_reads(address: ipaddress.IPv6Address) -> None:
    own = address.is_loopback or address.is_unspecified or address.is_multicast
    try:
        assert parse_mount(f"[{address}]:/x:/data").source == f"[{address}]:/x"
    except MountError:
        assert own
    else:
        assert not own


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        (("/data", "/a", "/data"), "/data is mounted twice"),
        (("/data", "/data/b"), "of /data and /data/b one lies in the other"),
        (("/data/b", "/data"), "of /data/b and /data one lies in the other"),
    ],
)
def test_mounts_in_each_others_way(targets: tuple[str, ...], why: str) -> None:
    with pytest.raises(MountError, match=why):
        check_mounts([Mount("nfs:/x", target) for target in targets])
    check_mounts([Mount("nfs:/x", "/data"), Mount("nfs:/x", "/data2"), Mount("nfs:/x", "/d/a")])
