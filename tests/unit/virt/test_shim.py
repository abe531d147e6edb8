# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc install-shim`` beside a Nova that is only a folder."""

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest

from nova_hpc_tools.adopt import install_shim

ROOT = Path(__file__).parents[3]


@pytest.fixture
def nova(tmp_path, monkeypatch):
    """A folder that this interpreter takes for Nova."""
    virt = tmp_path / "elsewhere" / "nova" / "virt"
    virt.mkdir(parents=True)
    (virt.parent / "__init__.py").write_text("raise RuntimeError('Nova was imported')")
    (virt / "__init__.py").touch()
    path = os.pathsep.join([str(virt.parents[1]), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", path)
    return virt


def run(*words: str) -> tuple[int, str]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        command = install_shim.InstallShim(None, None)
        parsed = command.get_parser("nova-hpc install-shim").parse_args(
            ["--python", sys.executable, *words]
        )
        status = command.run(parsed)
    return status, text.getvalue()


def test_the_life_of_the_file(nova):
    assert run("--check") == (1, f"{nova / 'hpc.py'}: missing\n")
    assert run()[0] == 0
    assert (nova / "hpc.py").read_text() == (
        ROOT / "virt_driver_patches" / "shim" / "hpc.py"
    ).read_text()
    assert (nova / "hpc.py").stat().st_mode & 0o777 == 0o644
    assert run("--check") == (0, f"{nova / 'hpc.py'}: installed\n")
    assert "already in place" in run()[1]
    assert run("--remove")[0] == 0
    assert not (nova / "hpc.py").exists()
    assert run("--remove")[0] == 0
    assert sorted(each.name for each in nova.iterdir()) == ["__init__.py"]


@pytest.mark.parametrize("comment", ["", "# SPDX-License-Identifier: Apache-2.0\n"])
def test_an_older_file_of_ours_is_replaced(nova, comment):
    (nova / "hpc.py").write_text(f'{comment}"""nova-hpc: of an earlier release."""\n')
    assert run("--check")[0] == 1
    assert run()[0] == 0
    assert run("--check")[0] == 0


@pytest.mark.parametrize("words", [(), ("--remove",)])
@pytest.mark.parametrize(
    "content", [b"", b"class HpcDriver: ...\n", b"# nova-hpc:\nimport other\n", b"\xff\xfe"]
)
def test_a_foreign_file_is_left_alone(nova, words, content):
    (nova / "hpc.py").write_bytes(content)
    status, text = run(*words)
    assert status == 2
    assert str(nova / "hpc.py") in text
    assert (nova / "hpc.py").read_bytes() == content
    assert run("--check")[0] == 1


def test_without_nova(nova):
    (nova / "__init__.py").unlink()
    status, text = run()
    assert status == 2
    assert "--python" in text


def test_a_nova_whose_interpreter_lacks_this_project(nova, monkeypatch):
    def locate(python):
        return install_shim.ShimPlace(python, nova / "hpc.py", complete=False)

    monkeypatch.setattr(install_shim, "locate_shim", locate)
    status, text = run()
    assert status == 2
    assert "-m pip install nova_hpc-*.whl nova_hpc_common-*.whl" in text
    assert not (nova / "hpc.py").exists()


def test_an_interpreter_that_does_not_run(nova):
    status, text = run("--python", "/nonexistent/python3")
    assert status == 2
    assert "/nonexistent/python3" in text


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("#!/opt/nova/bin/python3\n", "/opt/nova/bin/python3"),
        ("#!/usr/bin/python3 -s\n", "/usr/bin/python3"),
        ("\x7fELF", sys.executable),
        ("#!\n", sys.executable),
    ],
)
def test_the_interpreter_of_nova_compute(tmp_path, monkeypatch, first, expected):
    script = tmp_path / "nova-compute"
    script.write_text(first)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_shim.find_nova_interpreter() == expected


def test_without_nova_compute_it_is_this_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_shim.find_nova_interpreter() == sys.executable
