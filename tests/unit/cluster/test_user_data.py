# SPDX-License-Identifier: Apache-2.0
"""The user's own data comes out of the merged user data as it went in, or is refused."""

from __future__ import annotations

import base64
import contextlib
import email
import gzip
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster import user_data
from nova_hpc_client.cluster.user_data import MOST, UserDataError, make_member_keys, merge_user_data

KEYS = make_member_keys()
#: Bytes of user data of which Nova takes the base64.
ROOM = MOST // 4 * 3
HOOK = "text/cloud-boothook"

BODIES = st.one_of(
    st.text(max_size=300).map(str.encode),
    st.binary(max_size=300),
    st.builds(lambda line, count: line.encode() * count, st.text(min_size=1), st.integers(1, 9999)),
    st.integers(ROOM - 2600, ROOM).map(lambda size: b"x" * size),
    st.integers(24000, 49000).map(lambda size: base64.b64encode(bytes(range(256)) * 200)[:size]),
)
STARTS = st.sampled_from([b"#!/bin/sh\n", b"#cloud-config\n", b"#include\n", b"#cloud-boothook\n"])
PLAIN = st.builds(bytes.__add__, STARTS, BODIES)


def to_mime(first: str, second: str) -> bytes:
    boundary = "==of=the=user=="
    parts = "".join(f"--{boundary}\nContent-Type: {text}\n\nx\n" for text in (first, second))
    head = f'Content-Type: multipart/mixed; boundary="{boundary}"\nMIME-Version: 1.0\n'
    return f"{head}\n{parts}--{boundary}--\n".encode()


KINDS = st.sampled_from(["text/cloud-config", "text/x-shellscript", "text/jinja2"])
MIME = st.builds(to_mime, KINDS, KINDS)


def read_parts(data: bytes) -> list[tuple[str, bytes]]:
    """As a reader of mail has it, after the one gzip that cloud-init looks for."""
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    message = email.message_from_string(plain.decode())
    return [
        (part.get_content_type(), part.get_payload(decode=True))  # type: ignore[misc]
        for part in message.walk()
        if not part.is_multipart()
    ]


@given(PLAIN, st.booleans())
def test_any_data_come_out_as_they_went_in(own: bytes, packed: bool) -> None:
    given_data = gzip.compress(own) if packed else own
    if user_data.encoded_size_of(gzip.compress(own)) > MOST - 3600:
        # Only what is near the limit is refused, whatever form it takes.
        with contextlib.suppress(UserDataError):
            assert len(base64.b64encode(merge_user_data(given_data, KEYS, "train"))) <= MOST
        return
    data = merge_user_data(given_data, KEYS, "train")
    assert len(base64.b64encode(data)) <= MOST
    hook, theirs = read_parts(data)
    assert hook[0] == HOOK
    assert theirs == ("text/plain", own)


@given(MIME, st.booleans())
def test_mime_stays_mime(own: bytes, packed: bool) -> None:
    merged = merge_user_data(gzip.compress(own) if packed else own, KEYS, "train")
    hook, *theirs = read_parts(merged)
    assert hook[0] == HOOK
    assert theirs == read_parts(own)
    plain = gzip.decompress(merged) if packed else merged
    assert own in plain


def test_no_data_of_the_users() -> None:
    ((kind, hook),) = read_parts(merge_user_data(b"", KEYS, "train"))
    assert kind == HOOK
    assert KEYS.login.encode() in hook
    assert KEYS.host.encode() in hook


def test_what_has_no_room_is_refused_with_its_size() -> None:
    own = b"#!" + base64.b64encode(subprocess.check_output(["head", "-c", "48000", "/dev/urandom"]))
    size = len(base64.b64encode(gzip.compress(own, mtime=0)))
    with pytest.raises(UserDataError, match=f"has [0-9]+ bytes .*{size} without.*{MOST}"):
        merge_user_data(own, KEYS, "train")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (b'{"ignition": {"version": "3.4.0"}}', "--no-hosts leaves them out"),
        (b"\x1f\x8b\x08broken", "broken gzip"),
        (gzip.compress(b"#!/bin/sh\n")[:-4], "broken gzip"),
        (b"hello", "for no cloud-init"),
    ],
)
def test_what_cloud_init_would_not_read_is_refused(own: bytes, words: str) -> None:
    with pytest.raises(UserDataError, match=words):
        merge_user_data(own, KEYS, "train")


@pytest.mark.parametrize(
    "own", [b"\n#cloud-config\n{}\n", b"  #!/bin/sh\n", b"#Cloud-Config\n{}\n"]
)
def test_starts_are_read_as_cloud_init_reads_them(own: bytes) -> None:
    """It looks at the text without white space before it, in lower case (handlers/__init__.py)."""
    _, theirs = read_parts(merge_user_data(own, KEYS, "train"))
    assert theirs == ("text/plain", own)


def test_keys_are_what_openssh_takes(tmp_path: Path) -> None:
    for private, public in ((KEYS.login, KEYS.public.login), (KEYS.host, KEYS.public.host)):
        path = tmp_path / "key"
        path.write_text(private)
        path.chmod(0o600)
        said = subprocess.check_output(["ssh-keygen", "-y", "-f", path], text=True)
        assert said.split()[:2] == ["ssh-ed25519", public]
    assert "PRIVATE" not in repr(KEYS)


def test_the_hook_writes_keys_for_root_alone_and_both_ends_of_ssh(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    for folder in ("ssh/sshd_config.d", "ssh/ssh_config.d"):
        (etc / folder).mkdir(parents=True)
    (_, hook), *_ = read_parts(merge_user_data(b"", KEYS, "train"))
    script = hook.decode().replace("/etc/", f"{etc}/")
    for _ in range(2):  # at each boot
        subprocess.run(["sh", "-eu"], input=script, text=True, check=True)
        keys = {name: etc / "nova-hpc" / name for name in ("login_key", "host_key")}
        assert keys["login_key"].read_text() == KEYS.login
        assert keys["host_key"].read_text() == KEYS.host
        assert {path.stat().st_mode & 0o777 for path in keys.values()} == {0o600}
    (etc / "nova-hpc/known_hosts").write_text("")
    client = etc / "ssh/ssh_config.d/10-nova-hpc.conf"
    words = ["ssh", "-G", "-F", str(client)]
    seen = subprocess.check_output([*words, "train-2"], text=True)
    assert "stricthostkeychecking true" in seen
    assert f"identityfile {etc}/nova-hpc/ssh/%u/id_ed25519" in seen
    assert f"globalknownhostsfile {etc}/nova-hpc/known_hosts" in seen
    for other in ("other-2", "train-mine.example.org"):
        assert "nova-hpc" not in subprocess.check_output([*words, other], text=True)
    assert sorted(path.name for path in (etc / "nova-hpc").iterdir()) == [
        "host_key",
        "known_hosts",
        "login_key",
    ]
    assert "new" not in str([*etc.rglob("*")])


# The standard set skips nothing, and no package index has cloud-init.
@pytest.mark.slow
def test_the_type_that_cloud_init_finds_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """With cloud-init itself, where this machine has it."""
    processor = pytest.importorskip("cloudinit.user_data")
    monkeypatch.setattr(processor.util, "fetch_ssl_details", lambda paths: {})
    for own, kinds in (
        (b"#!/bin/sh\n", ["text/x-shellscript"]),
        (gzip.compress(b"#cloud-config\na: b\n"), ["text/cloud-config"]),
        (b"## template: jinja\n#cloud-config\n", ["text/jinja2"]),
        (to_mime("text/cloud-config", "text/x-shellscript"), None),
    ):
        message = processor.UserDataProcessor(None).process(merge_user_data(own, KEYS, "train"))
        found = [part.get_content_type() for part in message.walk() if not part.is_multipart()]
        assert found == [HOOK, *(kinds or ["text/cloud-config", "text/x-shellscript"])]


def test_its_limit_is_novas() -> None:
    assert user_data.encoded_size_of(b"x" * 49149) == len(base64.b64encode(b"x" * 49149)) == 65532
