# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc doctor --others`` makes of other tools' words."""

import sys

import pytest

from nova_hpc_tools.doctor import other_checkers
from nova_hpc_tools.main import main
from nova_hpc_tools.site.layout_cures import render_cure

#: libvirt 9 on a node whose firmware has VT-d off.
SAID = """\
  QEMU: Checking for hardware virtualization                                 : PASS
  QEMU: Checking if device '/dev/kvm' exists                                 : PASS
  QEMU: Checking for cgroup 'devices' controller support                     : FAIL
  QEMU: Checking for device assignment IOMMU support                         : FAIL (No ACPI DMAR \
table found, IOMMU either disabled in BIOS or not supported by this hardware platform)
  QEMU: Checking for secure guest support                                    : WARN (Unknown if \
this platform has Secure Guest support)
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def validate(path, text, status=1):
    program = path / other_checkers.HOST
    program.write_text(f"#!/bin/sh\n[ $1 = qemu ] && cat <<'E'\n{text}E\nexit {status}\n")
    program.chmod(0o755)


def found(files=()):
    return [
        (each.check, each.seen) for each in other_checkers.run_other_checkers(files, sys.executable)
    ]


def test_a_host_that_cannot_give_devices(path):
    validate(path, SAID)
    assert found() == [
        (
            "host-validate",
            "virt-host-validate: Checking for cgroup 'devices' controller support: it gives no "
            "reason.",
        ),
        (
            "host-validate",
            "virt-host-validate: Checking for device assignment IOMMU support: No ACPI DMAR table "
            "found, IOMMU either disabled in BIOS or not supported by this hardware platform.",
        ),
    ]
    validate(path, SAID.replace("FAIL", "PASS"), 0)
    assert found() == []


def test_options_that_do_not_exist(path, tmp_path):
    """By the real oslo-config-validator, of this project's options."""
    validate(path, "")
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text("[hpc]\nledger_file = /var/lib/nova/hpc\n")
    bad.write_text("[hpc]\nledger_fil = /var/lib/nova/hpc\n[hpd]\nledger_file = x\n")
    assert found([good, tmp_path / "none.conf"]) == []
    said = list(other_checkers.run_other_checkers([good, bad], sys.executable))
    assert [each.seen for each in said] == [
        f"{bad}: there is no option [hpc]ledger_fil.",
        f"{bad}: there is no option [hpd]ledger_file.",
    ]
    assert render_cure(said[0].cure) == f"Correct its name, or take it out of {bad}."


def test_tools_that_are_not_there(path, tmp_path, monkeypatch):
    """Nothing is well because nobody has looked."""
    monkeypatch.setenv("PATH", str(path))
    said = list(other_checkers.run_other_checkers([], str(tmp_path / "python")))
    assert [each.check for each in said] == ["not-looked", "not-looked"]
    assert render_cure(said[0].cure) == "Install libvirt's clients (Debian: libvirt-clients)."
    assert said[1].seen == "oslo-config-validator is not here, or does not answer."


def test_a_libvirt_whose_version_matters(path, libvirt):
    validate(path, "")

    def said():
        looked = other_checkers.run_other_checkers([], sys.executable, "qemu:///system")
        return [each.seen for each in looked]

    assert said() == []
    libvirt.guests = None
    assert said() == ["libvirt (qemu:///system) is not here, or does not answer."]


def test_another_machine_is_refused(tmp_path, capsys):
    assert main(["doctor", "--others", "--root", str(tmp_path)]) == 2
    assert "--others looks at this machine" in capsys.readouterr().err
