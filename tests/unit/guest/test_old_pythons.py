# SPDX-License-Identifier: Apache-2.0
"""What runs in guests is for Python 3.8: enterprise distributions have no later one."""

from __future__ import annotations

import ast
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_hpc_guest import build
from nova_hpc_guest.document import decode_entry
from nova_hpc_guest.gpu import port_rule, records
from tests.unit.guest.servers import fw_cfg_of
from tests.unit.guest.worlds import Guest

ROOM = Path(build.__file__).parent
OLDEST = (3, 8)
#: Of the standard library and of its types, each with the release that brought it: not all that
#: is new, but what one writes without a thought.
LATER_ATTRIBUTES = {
    **dict.fromkeys(("removeprefix", "removesuffix", "randbytes", "unparse", "lcm"), "3.9"),
    **dict.fromkeys(("nextafter", "ulp", "is_relative_to", "to_thread", "pidfd_open"), "3.9"),
    **dict.fromkeys(("pairwise", "bit_count", "aclosing", "hardlink_to", "orig_argv"), "3.10"),
    **dict.fromkeys(("file_digest", "cbrt", "exp2", "getencoding"), "3.11"),
    **dict.fromkeys(("batched", "sumprod", "is_junction"), "3.12"),
}
LATER_MODULES = {"graphlib": "3.9", "zoneinfo": "3.9", "tomllib": "3.11"}
LATER_KEYWORDS = {
    "zip": {"strict": "3.10"},
    "dataclass": {"slots": "3.10", "kw_only": "3.10"},
    "bisect": {"key": "3.10"},
    "TemporaryDirectory": {"ignore_cleanup_errors": "3.10", "delete": "3.12"},
}
LATER_NAMES = {
    "functools": {"cache": "3.9"},
    "itertools": {"pairwise": "3.10", "batched": "3.12"},
    "typing": {"Annotated": "3.9", "TypeAlias": "3.10", "Self": "3.11", "assert_never": "3.11"},
    "enum": {"StrEnum": "3.11"},
    "datetime": {"UTC": "3.11"},
    "contextlib": {"chdir": "3.11"},
}


def list_later(text: str) -> Iterator[str]:
    """What of a module's text is later than :data:`OLDEST`."""
    for node in ast.walk(ast.parse(text, feature_version=OLDEST)):
        if isinstance(node, ast.Attribute) and node.attr in LATER_ATTRIBUTES:
            yield f"line {node.lineno}: {node.attr} is of {LATER_ATTRIBUTES[node.attr]}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            later = LATER_NAMES.get(node.value.id, {}).get(node.attr)
            if later:
                yield f"line {node.lineno}: {node.value.id}.{node.attr} is of {later}"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            for name in (alias.name for alias in node.names):
                later = LATER_MODULES.get(module or name) or LATER_NAMES.get(module or "", {}).get(
                    name
                )
                if later:
                    yield f"line {node.lineno}: {name} is of {later}"
        elif isinstance(node, ast.Call):
            function = getattr(node.func, "id", getattr(node.func, "attr", ""))
            for keyword in node.keywords:
                later = LATER_KEYWORDS.get(function, {}).get(keyword.arg or "")
                if later:
                    yield f"line {node.lineno}: {function}({keyword.arg}=) is of {later}"


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_is_later(path: Path) -> None:
    assert list(list_later(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("zip((), (), strict=False)", "strict"),
        ("'a'.removeprefix('a')", "removeprefix"),
        ("import functools\n@functools.cache\ndef one(): ...", "functools.cache"),
        ("from functools import cache", "cache"),
        ("import tomllib", "tomllib"),
        ("from zoneinfo import ZoneInfo", "ZoneInfo"),
        ("from typing import Self", "Self"),
    ],
)
def test_what_is_later_is_noticed(text: str, word: str) -> None:
    (finding,) = list_later(text)
    assert word in finding


@pytest.mark.parametrize("text", ["match x:\n    case 1: pass", "def f[T](x: T): ..."])
def test_syntax_that_is_later_is_noticed(text: str) -> None:
    with pytest.raises(SyntaxError):
        list(list_later(text))


def list_old_pythons() -> list[str]:
    """Interpreters of this machine that are as old as that."""
    places = [shutil.which(f"python3.{minor}") for minor in (8, 9)]
    homes = sorted((Path.home() / ".pyenv/versions").glob("3.[89].*/bin/python"))
    starting = []
    for place in [*filter(None, places), *map(str, homes)]:
        done = subprocess.run([place, "-c", ""], capture_output=True, check=False)
        if done.returncode == 0:
            starting.append(place)
    return starting


OLD = list_old_pythons()


@pytest.mark.skipif(not OLD, reason="no Python 3.8 or 3.9 on this machine")
@pytest.mark.parametrize("python", OLD)
def test_an_old_python_runs_it(python: str, guest: Guest, tmp_path: Path) -> None:
    target = tmp_path / "nova-hpc-guest"
    assert build.main([str(target)]) == 0

    def run_command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-I", "-S", target, *words], capture_output=True, text=True, cwd="/", env={}
        )

    done = run_command("check", "--root", str(guest.root))
    assert (done.returncode, done.stderr) == (0, "")
    # A tree that is not laid down: devices of one product are told apart by their order.
    document = json.loads(decode_entry(fw_cfg_of(guest).read_bytes()))
    for device in document["devices"]:
        device.pop("path", None)
    fw_cfg_of(guest).write_text(json.dumps({**document, "topology": "flat"}))
    done = run_command("check", "--root", str(guest.root))
    assert (done.returncode, done.stderr) == (0, "")
    assert "As promised: 3 devices" in done.stdout
    done = run_command("accept", "--sample", "--only", "clock", "--root", str(guest.root))
    assert (done.returncode, done.stderr) == (0, "")
    assert '"clock":{"value":' in done.stdout


ENGINE = """[engine]
name = mine
server = /opt/mine
release = 1.0
[client environment]
MINE_SERVER = {address}:{port}
"""
ADDRESS = "10.0.16.1"
SHARE = "0f4b3c2a-1111-4222-8333-444455556666"
CLIENT = "7a1d9e00-1111-4222-8333-444455556666"


@pytest.fixture
def metadata_url(tmp_path: Path) -> Iterator[str]:
    """Where a client is told that it has a share."""
    own = f"10.0.{os.getpid() >> 8 & 15}.{os.getpid() & 255}"
    client = records.GpuClient(SHARE, ADDRESS, own, port_rule.port_of_address(own), "mine")
    folder = tmp_path / "metadata"
    folder.mkdir()
    items = {records.CLIENT_KEY: records.write_client(client)}
    (folder / "meta_data.json").write_text(json.dumps({"uuid": CLIENT, "meta": items}))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/meta_data.json"
        server.shutdown()


@pytest.mark.skipif(not OLD, reason="no Python 3.8 or 3.9 on this machine")
@pytest.mark.parametrize("python", OLD)
def test_an_old_python_uses_a_share(python: str, metadata_url: str, tmp_path: Path) -> None:
    """Both ends' commands, with a server of the standard library as the engine."""
    target, root = tmp_path / "nova-hpc-guest", tmp_path / "root"
    assert build.main([str(target)]) == 0
    engines = root / "etc/nova-hpc/gpu-engines"
    engines.mkdir(parents=True)
    (engines / "mine.ini").write_text(ENGINE)
    command = (python, "-I", "-S", str(target), "gpu")
    at_root = ("--root", str(root))

    def run_command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], capture_output=True, text=True, cwd="/")

    console = ("--console", str(tmp_path / "console"))
    done = run_command("client", "--once", *at_root, "--metadata-url", metadata_url, *console)
    assert (done.returncode, done.stderr) == (0, "")
    # The share is this machine, which no record may say.
    environment = root / "etc/nova-hpc/gpu.env"
    environment.write_text(environment.read_text().replace(ADDRESS, "127.0.0.1"))
    words = run_command("env", *at_root).stdout.split()
    port = next(word for word in words if word.startswith("MINE_SERVER=")).rpartition(":")[2]
    own = ("--client", CLIENT, "--peer", "127.0.0.1", "--bind", "127.0.0.1", "--port", port)
    engine = (python, "-m", "http.server", "--bind", "127.0.0.1", port)
    slot = subprocess.Popen(
        [*command, "slot", *own, "--engine", "mine", "--release", "1.0", "--", *engine],
        cwd=str(tmp_path),
        stderr=subprocess.DEVNULL,
    )
    try:
        while "the share answers" not in (shown := run_command("show", *at_root)).stdout:
            assert slot.poll() is None, shown.stdout
        done = run_command("run", *at_root, "--", "sh", "-c", "echo at $MINE_SERVER; exit 7")
        assert (done.returncode, done.stdout) == (7, f"at 127.0.0.1:{port}\n")
        ask = "echo begun; sleep 600"
        job = subprocess.Popen(
            [*command, "run", *at_root, "--", "sh", "-c", ask],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert job.stdout is not None
        assert job.stdout.readline() == "begun\n"
    finally:
        slot.terminate()
        slot.wait()
    said, _ = job.communicate()
    assert (job.returncode, "is gone or was detached" in said) == (75, True), said
