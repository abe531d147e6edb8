# SPDX-License-Identifier: Apache-2.0
"""Resets that a vendor's cleaner declares, for a nova-compute that is not root.

The service asks a real daemon of oslo.privsep, and is then no root any more.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.functional.not_root import USER
from tests.functional.test_driver_privileged import only_root, run
from tests.unit.tenancy.hygiene_node import GPU, OTHER, FakeNode, has_ended, make

pytestmark = only_root

VENDOR = Path(__file__).parents[1] / "vendor_cleaner"
SPECS = [json.dumps({"address": GPU, "hpc_role": "gpu"})]
SPECS += [json.dumps({"address": OTHER, "hpc_role": "nic"})]
#: Offered by no entry.
THIRD = "0000:44:00.0"

BEFORE = f"""
sys.path.insert(0, sys.argv[2])
os.environ["ACME_RESET"] = sys.argv[3]
CONF.set_override("cleaners", {{"gpu": "acme", "nic": "acme-tool"}}, group="hpc")
CONF.set_override("device_spec", {SPECS!r}, group="pci")
CONF.set_override("reset_timeout", 60.0, group="hpc")
"""
NOBODY = """
from tests.functional.not_root import become_another_user
become_another_user()
from nova_hpc.tenancy.hygiene.own_reset import ResetFile, ResetProgram
ENGINES, TOOL = ResetFile("engines", "reset", "evil"), ResetProgram("tool", "/usr/bin/false")
"""
FILE = "acme/reset_engines"


class Acme:
    """A node of the vendor's devices, the vendor's package and its program."""

    def __init__(self, root: Path, folder: Path) -> None:
        (root / "state").mkdir(parents=True)
        self.node: FakeNode = make(root, GPU, OTHER, THIRD)
        for address in (GPU, OTHER, THIRD):
            (self.node.devices / address / "acme").mkdir()
            self.file(address).write_text("")
        self.package = folder / "package"
        shutil.copytree(VENDOR, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        self.program = folder / "acme-reset"
        self.log = folder / "log"
        self.does(f'(id -u; umask; echo "$@") >{self.log}')

    def file(self, address: str) -> Path:
        return self.node.devices / address / FILE

    def does(self, text: str) -> None:
        self.program.write_text(f"#!/bin/sh\n{text}\n")
        self.program.chmod(0o755)

    def run(self, text: str, before: str = "") -> list[str]:
        more = (str(self.package), str(self.program))
        return run(NOBODY + text, self.node.root, *more, before=BEFORE + before)

    def untouched(self) -> bool:
        files = [self.file(address).read_text() for address in (GPU, OTHER, THIRD)]
        return not any(files) and not self.log.exists()


@pytest.fixture
def acme(tmp_path: Path) -> Acme:
    return Acme(tmp_path / "root", tmp_path)


def test_a_declared_reset(acme: Acme) -> None:
    """The helper makes the declared reset, whatever the service sends beside its name."""
    found = acme.run(
        f"""
try:
    (root / "sys/bus/pci/devices/{GPU}/{FILE}").write_text("evil")
except PermissionError:
    print("the service may not")
tell(privileged.reset_by_helper, "{GPU}", ENGINES)
tell(privileged.reset_by_helper, "{OTHER}", TOOL)
tell(privileged.reset_by_helper, "{THIRD}")
tell(privileged.expect_same_settings, CONF)
"""
    )
    assert found == ["the service may not", "None", "None", "None", "None"]
    assert acme.file(GPU).read_text() == "all\n"
    assert acme.log.read_text().splitlines() == ["0", "0022", f"--device {OTHER} --wait"]
    # Only the third is reset by the kernel.
    assert [acme.node.resets(each) for each in (GPU, OTHER, THIRD)] == [False, False, True]


def test_nothing_else_is_written_or_run(acme: Acme) -> None:
    names = ["", "reset", FILE, f"../{OTHER}/reset", "/bin/sh", "tool", "card", "ENGINES", "x" * 99]
    found = acme.run(
        f"""
for name in {names!r}:
    tell(privileged._reset_in_helper, "{GPU}", name)
tell(privileged._reset_in_helper, "{OTHER}", "engines")
tell(privileged._reset_in_helper, "{THIRD}", "engines")
tell(privileged._reset_in_helper, "0000:99:00.0", "engines")
tell(privileged._reset_in_helper, "../../etc", "engines")
tell(privileged._reset_in_helper, "{GPU}", ["engines"])
tell(privileged._reset_in_helper, "{GPU}", "engines", "all")
"""
    )
    wrong = "(False, \"[hpc]cleaners: 'acme', the cleaner of role gpu, has no reset "
    assert all(each.startswith(wrong) for each in found[: len(names)]), found
    other, third, missing, path, words, more = found[len(names) :]
    assert "'acme-tool', the cleaner of role nic, has no reset 'engines'" in other
    assert "no entry of [pci]device_spec offers it" in third
    assert "no entry of [pci]device_spec offers it" in missing
    assert "is not a PCI address" in path
    assert "has no reset" in words
    assert more.startswith("TypeError: ")
    assert acme.untouched()


def test_files_and_programs_that_others_could_have_changed(acme: Acme) -> None:
    acme.file(GPU).unlink()
    acme.file(GPU).symlink_to(acme.node.devices / OTHER / "reset")
    os.chown(acme.program, USER, USER)
    found = acme.run(
        f"""
tell(privileged.reset_by_helper, "{GPU}", ENGINES)
tell(privileged.reset_by_helper, "{OTHER}", TOOL)
"""
    )
    assert "reset_engines is a link, which may lead to another device" in found[0]
    assert found[1].endswith("acme-reset does not belong to root")
    assert all(each.startswith("ResetError: ") for each in found)
    assert not acme.log.exists()
    assert not acme.node.resets(OTHER)


def test_what_hangs_is_ended(acme: Acme) -> None:
    acme.file(GPU).unlink()
    os.mkfifo(acme.file(GPU))
    acme.does(f"echo $$ >{acme.log}; sleep 600")
    found = acme.run(
        f"""
tell(privileged.reset_by_helper, "{GPU}", ENGINES)
tell(privileged.reset_by_helper, "{OTHER}", TOOL)
""",
        # Long enough for a busy machine to start the program.
        before='CONF.set_override("reset_timeout", 5.0, group="hpc")\n',
    )
    assert found == ["ResetError: it did not answer within 5 seconds"] * 2
    assert has_ended(int(acme.log.read_text()))


def test_a_device_that_somebody_has(acme: Acme) -> None:
    with acme.node.held(GPU), acme.node.held(OTHER):
        found = acme.run(
            f"""
tell(privileged.reset_by_helper, "{GPU}", ENGINES)
tell(privileged.reset_by_helper, "{OTHER}", TOOL)
"""
        )
    assert all(each.startswith("HeldError: /dev/vfio/") for each in found), found
    assert acme.untouched()


def test_a_package_that_is_removed(acme: Acme) -> None:
    """A helper that has loaded the cleaner goes on with it; a later one refuses."""
    ask = f'tell(privileged.reset_by_helper, "{GPU}", ENGINES)\n'
    os.chown(acme.package.parent, USER, USER)
    for path in (acme.package, *acme.package.rglob("*")):
        os.chown(path, USER, USER)
    found = acme.run(
        f"""
import shutil
tell(privileged.expect_same_settings, CONF)
shutil.rmtree(sys.argv[2])
{ask}"""
    )
    assert found == ["None", "None"]
    assert acme.file(GPU).read_text() == "all\n"
    acme.file(GPU).write_text("")
    (refused,) = acme.run(ask)
    assert refused.startswith("ResetError: [hpc]cleaners: 'acme' cannot be loaded: ")
    assert acme.untouched()


def test_another_declaration_is_noticed(acme: Acme) -> None:
    """A package that was updated, or another configuration, is seen when nova-compute starts."""
    found = acme.run(
        """
tell(privileged.expect_same_settings, CONF)
import acme_hpc
plain = acme_hpc.AcmeCleaner.resets
acme_hpc.AcmeCleaner.resets = (ResetFile("engines", "acme/reset_all"),)
tell(privileged.expect_same_settings, CONF)
acme_hpc.AcmeCleaner.resets = plain
CONF.set_override("device_spec", [], group="pci")
tell(privileged.expect_same_settings, CONF)
CONF.set_override("cleaners", {"gpu": "acme"}, group="hpc")
tell(privileged.expect_same_settings, CONF)
"""
    )
    assert found[0] == "None"
    for line, option in zip(found[1:], ("cleaners", "device_spec", "cleaners"), strict=True):
        assert line.startswith(
            f"SettingsError: the privileged helper goes by another configuration: [hpc]{option} is"
        )
    assert "acme/reset_all" in found[1]
