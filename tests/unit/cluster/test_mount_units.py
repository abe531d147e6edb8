# SPDX-License-Identifier: Apache-2.0
"""The units of mounts, judged by systemd and util-linux, and written by the members' hook."""

from __future__ import annotations

import base64
import email
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster import head as heads
from nova_hpc_client.cluster import mount_units
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.mounts import Mount, MountError, parse_mount
from nova_hpc_common.wire.version import WireError

MOUNTS = tuple(
    map(
        parse_mount,
        ("[2001:db8::9]:/vol/a:/srv/data-set", "nfs.example.org:/:/.b", "192.0.2.9:/a,b:/d~@+"),
    )
)
WISH = ClusterWish("train", frozenset({1, 2}), "42", image="img", mounts=MOUNTS)


def targets() -> st.SearchStrategy[str]:
    part = st.text(alphabet="aZ9._@+,~-", min_size=1, max_size=5)
    return st.lists(part, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@pytest.mark.skipif(shutil.which("systemd-escape") is None, reason="there is no systemd-escape")
@given(st.lists(targets(), min_size=1, max_size=20))
def test_names_are_those_of_systemd(paths: list[str]) -> None:
    paths = [path for path in paths if not {".", ".."} & set(path.split("/"))]
    if paths:
        words = ["systemd-escape", "--path", *paths]
        escaped = subprocess.check_output(words, text=True).rstrip("\n").split(" ")
        assert [*map(mount_units.unit_name_of, paths)] == escaped


def run_hook(wish: ClusterWish, folder: Path, own: bytes = b"") -> list[str]:
    """Run the hook of a member below a folder; the calls of systemctl."""
    units = folder / "units"
    units.mkdir(exist_ok=True)
    (folder / "etc").mkdir(exist_ok=True)
    calls = folder / "calls"
    calls.write_text("")
    systemctl = folder / "systemctl"
    systemctl.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\n')
    systemctl.chmod(0o755)
    body = wishes.server_body(wish, "group", (1,), Secrets(own), {})
    message = email.message_from_bytes(base64.b64decode(body["server"]["user_data"]))
    hook, *rest = [part for part in message.walk() if not part.is_multipart()]
    assert [part.get_payload(decode=True) for part in rest] == ([own] if own else [])
    payload = hook.get_payload(decode=True)
    assert isinstance(payload, bytes)
    script = payload.decode().replace("/run/systemd/system", str(units))
    script = script.replace("/etc/", f"{folder}/etc/")
    path = f"{folder}:/usr/bin:/bin"
    subprocess.run(["sh", "-eu"], input=script, text=True, check=True, env={"PATH": path})
    return calls.read_text().splitlines()


@pytest.mark.parametrize("hosts", [True, False])
def test_a_member_writes_and_starts_the_units_at_each_boot(tmp_path: Path, hosts: bool) -> None:
    for _ in range(2):
        calls = run_hook(attrs.evolve(WISH, hosts=hosts), tmp_path, b"#!/bin/sh\n")
    assert calls == [
        "daemon-reload",
        "--no-block start srv-data\\x2dset.automount \\x2eb.automount d\\x7e\\x40\\x2b.automount",
    ]
    written = {path.name: path.read_text() for path in (tmp_path / "units").iterdir()}
    assert written == mount_units.build_mount_units(MOUNTS)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "units").iterdir()} == {0o644}
    assert (tmp_path / "etc/nova-hpc/login_key").exists() == hosts


def test_the_head_mounts_as_members_do() -> None:
    made = heads.head_body(attrs.evolve(WISH, head="9", head_image="8"), "group", Secrets())
    hook = base64.b64decode(made["server"]["user_data"]).decode()
    assert all(text in hook for text in mount_units.build_mount_units(MOUNTS).values())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    run_hook(WISH, tmp_path)
    units = sorted((tmp_path / "units").iterdir())
    assert len(units) == 6
    words = ["systemd-analyze", "verify", "--man=no", *units]
    seen = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (seen.returncode, seen.stderr) == (0, "")
    # It judges: a unit's name and place belong together.
    wrong = tmp_path / "units/other.mount"
    wrong.write_text(units[0].with_suffix(".mount").read_text())
    seen = subprocess.run([*words, wrong], capture_output=True, text=True, check=False)
    assert "Where= setting doesn't match unit name" in seen.stderr


def test_util_linux_takes_the_words(tmp_path: Path) -> None:
    """systemd calls mount(8) with them; its parser of fstab is that of its options."""
    table = tmp_path / "fstab"
    words = []
    for text in mount_units.build_mount_units(MOUNTS).values():
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if "What" in lines:
            words.append([lines[key] for key in ("What", "Where", "Type", "Options")])
    table.write_text("".join(f"{' '.join(line)} 0 0\n" for line in words))
    columns = ["--noheadings", "--raw", "--output", "SOURCE,TARGET,FSTYPE,OPTIONS"]
    seen = subprocess.check_output(["findmnt", "--tab-file", table, *columns], text=True)
    assert [line.split() for line in seen.splitlines()] == words
    assert verify_table(table) == set()
    # It judges: a name and a value would be a tag such as LABEL.
    table.write_text("nfs:/a=b /d nfs _netdev,nofail 0 0\n")
    assert verify_table(table) == {"[E] unsupported source tag: nfs:/a=b"}


def verify_table(table: Path) -> set[str]:
    """What findmnt(8) says against a table, but that this machine has no such directories."""
    words = ["findmnt", "--verify", "--tab-file", str(table)]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    lines = {line.strip() for line in said.splitlines() if line.startswith("   ")}
    return {line for line in lines if "target: No such file" not in line}


@given(st.sampled_from(["", "0123456789ab"]))
def test_an_earlier_client_makes_no_member_without_them(digest: str) -> None:
    """It reads one digest, which it keeps, and which no user data have."""
    wish = attrs.evolve(WISH, user_data=digest)
    earlier = attrs.evolve(WISH, user_data=cluster_wish._join_user_data(wish), mounts=())
    assert cluster_wish.read_cluster_wish(cluster_wish.write_cluster_wish(earlier)) == wish
    for own in (b"", b"#!/bin/sh\n"):
        with pytest.raises(WishError, match="user-data"):
            wishes.check_wish_secrets(earlier, Secrets(own))
    assert wish.digest != attrs.evolve(wish, mounts=MOUNTS[:1]).digest


@pytest.mark.parametrize("text", ["nfs:/x:/etc", "nfs:/x:/a'b", "x", "nfs:/x:/d nfs:/y:/d"])
def test_a_wish_with_a_mount_that_harms_is_unknown(text: str) -> None:
    written = cluster_wish.write_cluster_wish(attrs.evolve(WISH, mounts=(), user_data=f" {text}"))
    with pytest.raises(WireError, match="has a wrong mount"):
        cluster_wish.read_cluster_wish(written)


def test_mounts_are_checked_before_anything_is_made() -> None:
    twice = attrs.evolve(WISH, mounts=(MOUNTS[0], MOUNTS[0]))
    with pytest.raises(WishError, match="is mounted twice"):
        wishes.check_cluster_wish(twice, Secrets())
    with pytest.raises(WishError, match="leave --mount out"):
        wishes.check_cluster_wish(WISH, Secrets(b'{"ignition": {}}'))
    many = tuple(Mount(f"nfs:/{'x' * 200}", f"/d{at}") for at in range(12))
    with pytest.raises(WishError, match="name fewer things"):
        wishes.check_cluster_wish(attrs.evolve(WISH, mounts=many), Secrets())
    with pytest.raises(MountError):
        parse_mount("nfs:/x:/etc")
