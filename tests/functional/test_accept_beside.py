# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc accept --beside`` with libvirt's own test driver, which has no CPU of the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from nova_hpc_guest.accept.result import read_acceptance
from nova_hpc_tools.accept.guest_place import read_guest_place
from nova_hpc_tools.doctor import libvirt_domains
from nova_hpc_tools.doctor.libvirt_domains import DomainUnreadError
from nova_hpc_tools.main import main


def test_libvirt_is_asked_and_says_why_not(tmp_path: Path) -> None:
    assert read_guest_place(libvirt_domains.read_domain_xml("test:///default", "test")).emulated
    for name in ("none", "00000000-0000-4000-8000-000000000000"):
        with pytest.raises(DomainUnreadError, match="not found"):
            libvirt_domains.read_domain_xml("test:///default", name)
    with pytest.raises(DomainUnreadError):
        libvirt_domains.read_domain_xml(f"test://{tmp_path}/none", "test")


def test_the_command_says_what_it_cannot_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rounds = tmp_path / "rounds.json"
    rounds.write_text("{}")
    words = ["accept", "--connect", "test:///default", "--rounds", str(rounds)]
    assert main([*words, "--beside", "none"]) == 2
    assert "none: " in capsys.readouterr().err
    # libvirt's test driver has no CPU of the host's, either.
    assert main([*words, "--beside", "test"]) == 2
    assert "refused (emulated): the guest is emulated by software" in capsys.readouterr().out
    assert main([*words, "--beside", "test", "-f", "json"]) == 2
    assert read_acceptance(capsys.readouterr().out).verdict == "refused"
    with pytest.raises(SystemExit):
        main([*words, "--beside", "test", "--only", "net_bw"])
