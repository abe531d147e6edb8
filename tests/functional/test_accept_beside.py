# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc accept --beside`` with libvirt's own test driver, which has no CPU of the host's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nova_hpc_guest.accept.result import read_acceptance
from nova_hpc_tools.accept.guest_place import read_guest_place
from nova_hpc_tools.accept.host_watch import HostWatch
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


def test_the_work_of_this_host_is_counted(tmp_path: Path) -> None:
    """The real kernel's counters: names that it has, amounts that a CPU can have."""
    cpus = sorted(os.sched_getaffinity(0))
    watch = HostWatch(Path("/"), cpus)
    assert watch.work == ()
    for _ in range(2):
        with watch.count_turn(), (tmp_path / "written").open("wb") as file:
            for _ in range(50):
                file.write(bytes(1 << 16))
                os.fsync(file.fileno())
    assert len(watch.work) == len(cpus)
    rows = Path("/proc/interrupts").read_text().splitlines()[1:]
    numbers = {line.split(":")[0].strip() for line in rows}
    for work in watch.work:
        assert all(rate > 0 for rate in work.interrupts.values())
        assert {name.split()[0] for name in work.interrupts} <= numbers
        assert sum(work.threads.values()) < 1.5
