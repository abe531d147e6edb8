# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest cluster refresh`` against a server in the place of the metadata service."""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest import build, cluster_files, command, host_list
from nova_hpc_guest.files import Root
from nova_hpc_guest.host_list import HostList, ListedHost, PublicKeys, WrongHostListError

OWN = "7a1d9e00-1111-4222-8333-444455556666"
NOVA_KEY = "ssh-rsa AAAAB3Nza alice@home"
PASSWD = """\
root:x:0:0:root:/root:/bin/bash
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
debian:x:1000:1001:Debian:/home/debian:/bin/bash
guest:x:1002:1002:Guest:/home/guest:/bin/bash
../evil:x:1003:1003:Evil:/home/debian:/bin/bash
broken line
"""
FOREIGN = b"127.0.0.1 localhost\n# mine \xff\n10.0.0.9 files\n"


def key(letter: str) -> str:
    return f"AAAAC3NzaC1lZDI1NTE5AAAAI{letter * 43}"


OLD, NEW = PublicKeys(key("A"), key("B")), PublicKeys(key("C"), key("D"))
TWO = HostList("train", (ListedHost(2, "192.0.2.7", OLD), ListedHost(1, "192.0.2.5", OLD)), slots=2)
THREE = TWO._replace(hosts=(*TWO.hosts, ListedHost(3, "2001:db8::3", NEW)))


class Member:
    """A machine below a folder, and its metadata service."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.document: Any = None
        self.raw: bytes | None = None
        (root / "etc/nova-hpc").mkdir(parents=True)
        (root / "etc/hosts").write_bytes(FOREIGN)
        (root / "etc/passwd").write_text(PASSWD)
        for home in ("root", "home/debian", "home/guest"):
            (root / home / ".ssh").mkdir(parents=True)
        self.authorize("root", f'command="exit" {NOVA_KEY}')
        self.authorize("home/debian", f"# mine\n{NOVA_KEY}")
        self.authorize("home/guest", "ssh-rsa AAAAother guest")
        login_key = root / "etc/nova-hpc/login_key"
        login_key.write_text("PRIVATE\n")
        login_key.chmod(0o600)
        self.url = ""

    def authorize(self, home: str, text: str) -> None:
        (self.root / home / ".ssh/authorized_keys").write_text(f"{text}\n")

    def tell(self, hosts: HostList | None) -> None:
        items = {} if hosts is None else host_list.to_items(host_list.write_host_list(hosts))
        self.document = {"uuid": OWN, "meta": items, "public_keys": {"alice": f"{NOVA_KEY}\n"}}

    def answer(self) -> bytes:
        return json.dumps(self.document).encode() if self.raw is None else self.raw

    def refresh(self, *words: str) -> int:
        words = ("cluster", "refresh", "--metadata-url", self.url, *words)
        return command.main([*words, "--root", str(self.root)])

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def files(self) -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
            for path in self.root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path / "root")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(made.answer())

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_port}/"
        yield made
        server.shutdown()


def test_what_members_know_of_each_other(member: Member) -> None:
    member.tell(TWO)
    assert member.refresh() == 0
    assert member.read("etc/nova-hpc/hosts") == "train-2 slots=2\ntrain-1 slots=2\n"
    assert member.read("etc/nova-hpc/rankfile") == (
        "rank 0=train-2 slot=0\nrank 1=train-2 slot=1\n"
        "rank 2=train-1 slot=0\nrank 3=train-1 slot=1\n"
    )
    assert member.read("etc/nova-hpc/known_hosts") == (
        f"train-2,192.0.2.7 ssh-ed25519 {OLD.host}\ntrain-1,192.0.2.5 ssh-ed25519 {OLD.host}\n"
    )
    assert (member.root / "etc/hosts").read_bytes() == (
        b"192.0.2.7 train-2 # nova-hpc cluster\n192.0.2.5 train-1 # nova-hpc cluster\n" + FOREIGN
    )
    # Whom the server's key pair opens as it is: not root here, and nobody else.
    assert [path.name for path in (member.root / "etc/nova-hpc/ssh").iterdir()] == ["debian"]
    private = member.root / "etc/nova-hpc/ssh/debian/id_ed25519"
    assert private.read_text() == "PRIVATE\n"
    assert private.stat().st_mode & 0o777 == 0o600
    if os.geteuid() == 0:
        assert (private.stat().st_uid, private.stat().st_gid) == (1000, 1001)
    opens = member.root / "etc/nova-hpc/ssh/debian/authorized_keys"
    assert opens.read_text() == f"ssh-ed25519 {OLD.login} train\n"
    assert (opens.stat().st_uid, opens.stat().st_mode & 0o777) == (os.geteuid(), 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users")
def test_a_later_member_is_known_and_nothing_is_written_twice(
    member: Member, capsys: pytest.CaptureFixture[str]
) -> None:
    member.tell(TWO)
    assert member.refresh("--quiet") == 0
    before = member.files()
    assert member.refresh() == 0
    assert member.files() == before
    assert capsys.readouterr().out == ""
    member.tell(THREE)
    assert member.refresh() == 0
    assert "wrote /etc/hosts" in capsys.readouterr().out
    assert b"2001:db8::3 train-3 # nova-hpc" in (member.root / "etc/hosts").read_bytes()
    assert f"train-3,2001:db8::3 ssh-ed25519 {NEW.host}" in member.read("etc/nova-hpc/known_hosts")
    opens = member.read("etc/nova-hpc/ssh/debian/authorized_keys")
    assert opens.split()[1::3] == [OLD.login, NEW.login]
    # Shrunk again, and the user has taken his key away.
    member.tell(TWO)
    member.authorize("home/debian", "")
    assert member.refresh() == 0
    assert (member.root / "etc/hosts").read_bytes() == before[str(member.root / "etc/hosts")][2]
    assert not [*(member.root / "etc/nova-hpc/ssh/debian").iterdir()]
    assert "no account has the server's key pair" in capsys.readouterr().out


def damages() -> Iterator[tuple[str, Any]]:
    """Paths into the list, and what stands there in place of what should."""
    for path, values in {
        "v": (2, True, None, "1"),
        "n": ("../x", "a b", "", None, "x\n127.0.0.1 bank", "x" * 50),
        "s": (-1, True, None, 1 << 20),
        "k": (None, ["x y"], [f"{OLD.login}"], [f"{OLD.login} {OLD.host} command"], [[]]),
        "k/0": (f"{OLD.login}\nssh-rsa x {OLD.host}", f'from="*" {OLD.login} {OLD.host}'),
        "m": (None, [], [[1]], {"1": 2}, "x", [[1, "192.0.2.5", 0], [1, "192.0.2.6", 0]]),
        "m/0": ([1, "192.0.2.5", 0, 0], [1, "192.0.2.9", 0]),
        "m/0/0": (0, "2", 1, -5, True, 10**9),
        "m/0/1": (
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "fe80::1%eth0",
            "::ffff:127.0.0.1",
            "x",
            "",
            7,
            "192.0.2.5\nx y",
        ),
        "m/0/2": (2, -1, None, "0"),
    }.items():
        for value in values:
            yield path, value


@pytest.mark.parametrize(("path", "value"), [*damages()])
def test_a_hostile_list_changes_nothing(
    member: Member, path: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    member.tell(TWO)
    assert member.refresh() == 0
    before = member.files()
    data = json.loads(host_list.write_host_list(THREE))
    at: Any = data
    *way, last = (int(word) if word.isdigit() else word for word in path.split("/"))
    for word in way:
        at = at[word]
    at[last] = value
    member.document["meta"] = host_list.to_items(json.dumps(data))
    assert member.refresh("--if-present") == 2
    said = capsys.readouterr().err
    assert said.startswith("nova-hpc-guest: the ")
    assert said.count("\n") == 1
    assert {path: file[2] for path, file in member.files().items()} == {
        path: file[2] for path, file in before.items()
    }


@pytest.mark.parametrize(
    "raw",
    [b"", b"<html>", b"[]", b'{"uuid": 7}', b"\xff", b"x" * (1 << 20) + b"y", b"[" * 200000],
)
def test_a_broken_answer_changes_nothing(
    member: Member, raw: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    before = member.files()
    member.raw = raw
    assert member.refresh() == 2
    assert "the metadata service answers" in capsys.readouterr().err
    assert member.files() == before


def test_a_part_that_is_missing_is_no_shorter_list(member: Member) -> None:
    many = TWO._replace(hosts=tuple(ListedHost(at, f"192.0.2.{at}", OLD) for at in range(1, 99)))
    member.tell(many)
    items = member.document["meta"]
    assert len(items) > 3
    for name in [*items]:
        member.document["meta"] = {key: text for key, text in items.items() if key != name}
        before = member.files()
        # Without its first item there is no list at all.
        assert member.refresh() == 2
        assert member.files() == before
    member.document["meta"] = {**items, "hpc_hosts_99": "of a longer list"}
    assert member.refresh() == 0


def test_a_machine_of_no_cluster(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    before = member.files()
    member.tell(None)
    assert member.refresh("--if-present") == 0
    assert member.refresh() == 2
    assert "have no host list of a cluster" in capsys.readouterr().err
    assert member.files() == before


def test_without_keys_of_the_user_data(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    (member.root / "etc/nova-hpc/login_key").unlink()
    member.tell(TWO)
    assert member.refresh() == 0
    assert "has cloud-init run the server's user data?" in capsys.readouterr().out
    assert b"train-1" in (member.root / "etc/hosts").read_bytes()
    assert not (member.root / "etc/nova-hpc/ssh").exists()


def test_a_configuration_drive_tells_the_first_list_alone(
    member: Member, capsys: pytest.CaptureFixture[str]
) -> None:
    member.tell(TWO)
    drive = member.root / "run/cloud-init/instance-data.json"
    drive.parent.mkdir(parents=True)
    stored = {**copy.deepcopy(member.document), "instance-id": OWN, "name": "train-1"}
    drive.write_text(json.dumps({"ds": {"_doc": "x", "meta_data": stored}, "v1": {}}))
    member.url = "http://127.0.0.1:1/"
    assert member.refresh() == 0
    assert member.read("etc/nova-hpc/hosts").startswith("train-2")
    # The service was silent for a while: what it had said is not undone.
    before = member.files()
    stored["meta"] = host_list.to_items(host_list.write_host_list(THREE))
    drive.write_text(json.dumps({"ds": {"meta_data": stored}}))
    before[str(drive)] = member.files()[str(drive)]
    assert member.refresh("--if-present") == 0
    assert member.refresh() == 2
    assert "the metadata service does not answer" in capsys.readouterr().err
    assert member.files() == before
    drive.write_text("{}")
    assert member.refresh("--if-present") == 2


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"127.0.1.1 train-1", b"192.0.2.5 train-1 # nova-hpc cluster", b"", b"\r"]
        ),
        st.binary(max_size=20),
    ),
    max_size=8,
).map(b"\n".join)


@given(LINES, st.sampled_from([TWO, THREE]), st.sampled_from([TWO, THREE]))
def test_lines_of_others_stay_in_the_resolvers_file(
    present: bytes, first: HostList, second: HostList
) -> None:
    theirs = b"".join(
        line
        for line in present.splitlines(keepends=True)
        if not line.rstrip().endswith(b" # nova-hpc cluster")
    )
    merged = cluster_files.merge_hosts(present, first)
    assert merged.endswith(theirs)
    ours = merged[: len(merged) - len(theirs)].decode().splitlines()
    assert ours == [
        f"{host.address} train-{host.number} # nova-hpc cluster" for host in first.hosts
    ]
    assert cluster_files.merge_hosts(merged, first) == merged
    again = cluster_files.merge_hosts(merged, second)
    assert again == cluster_files.merge_hosts(present, second)


OURS = st.sampled_from([b"", b"UCX_IB_PKEY=0x8001\n", b"A_B==x:1\nUCX_IB_SL=3\n"])
PRESENT = st.lists(
    st.sampled_from([b"MINE=1", b"# End of nova-hpc cluster.", b"UCX_IB_SL=7", b"", b"\xff#"])
).map(lambda lines: b"".join(line + b"\n" for line in lines))


@given(PRESENT, OURS, OURS)
def test_variables_of_others_stay_in_the_file_of_sessions(
    present: bytes, first: bytes, second: bytes
) -> None:
    merged = cluster_files.merge_variables(present, first)
    assert merged.endswith(present)
    ours = merged[: len(merged) - len(present)].splitlines(keepends=True)
    # No mark and no space beside a value: pam_env(8) would make it the value's.
    assert b"".join(ours[1:-1]) == first
    assert cluster_files.merge_variables(merged, first) == merged
    assert cluster_files.merge_variables(merged, second) == cluster_files.merge_variables(
        present, second
    )
    assert cluster_files.merge_variables(merged, b"") == present


def test_sessions_have_the_variables_and_no_file_without_any(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    (tmp_path / "etc").mkdir()
    cluster_files.write_cluster_files(root, TWO, (), {})
    assert not (tmp_path / "etc/environment").exists()
    report = cluster_files.write_cluster_files(root, TWO, (), {"UCX_IB_PKEY": "0x8001"})
    assert "wrote /etc/environment" in report
    assert "\nUCX_IB_PKEY=0x8001\n" in (tmp_path / "etc/environment").read_text()
    assert (tmp_path / "etc/nova-hpc/environment").read_text() == "UCX_IB_PKEY=0x8001\n"


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_text_is_a_list_or_refused(text: str, items: dict[str, str]) -> None:
    for read, value in ((host_list.read_host_list, text), (host_list.from_items, items)):
        with contextlib.suppress(WrongHostListError):
            read(value)  # type: ignore[operator]


@given(st.integers(1, 512), st.integers(1, 40))
def test_a_list_comes_back_as_it_was_written(size: int, commands: int) -> None:
    pairs = [
        PublicKeys(key("A")[:-2] + f"{at:02}", key("B")[:-2] + f"{at:02}") for at in range(commands)
    ]
    hosts = tuple(
        ListedHost(at + 1, f"10.0.{at // 256}.{at % 256}", pairs[at % commands])
        for at in range(size)
    )
    hosts = tuple(host for host in hosts if host.address != "10.0.0.0")
    if not hosts:
        return
    hosts_list = HostList("train", hosts, 128)
    items = host_list.to_items(host_list.write_host_list(hosts_list))
    assert all(len(text) <= 255 for text in items.values())
    assert len(items) <= host_list.MOST_ITEMS
    text = host_list.from_items({**items, "other": "x"})
    assert host_list.read_host_list(text) == hosts_list


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_units_are_systemds(tmp_path: Path) -> None:
    units = [tmp_path / name for name in build.CLUSTER_UNITS]
    for unit in units:
        assert build.main(["--cluster-unit", unit.name, str(unit)]) == 0
    service, _ = units
    service.write_text(service.read_text().replace(f"{build.COMMAND} ", "/bin/true "))
    seen = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
    )
    assert (seen.returncode, seen.stderr) == (0, "")
