# SPDX-License-Identifier: Apache-2.0
"""What ``explain`` says of servers that are to be together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from nova_hpc.cluster.group_domain.domain_choice import FabricSeat
from nova_hpc.cluster.group_domain.model import EVERYWHERE, GroupDomain
from nova_hpc.cluster.plan import GangPlan, GangPolicy, GangRefusal
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc_common.output.printing import InertConsole
from nova_hpc_tools.cloud import explain_command, gang_answer
from nova_hpc_tools.cloud.group_fit import DomainFit, GroupFit, assess_group_fit
from nova_hpc_tools.main import main
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.snapshot.group_fleet import GroupLine
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest
from tests.unit.cluster.plan.test_capacity import synced
from tests.unit.snapshot import clouds

LEAF = FabricLevel.LEAF
GROUP = "6f9a5d3e-1111-4222-8333-444455556666"


def seats() -> list[FabricSeat]:
    """Two leaves of one block: three hosts of two places, two of four."""
    fits = {"a0": 2, "a1": 2, "a2": 2, "b0": 4, "b1": 4}
    return [
        FabricSeat(FabricPlace(host, leaf=f"leaf-{host[0]}", block="block"), "ib", fit)
        for host, fit in fits.items()
    ]


def line(domain: str, announced: int, members: int, group: str = "other") -> GroupLine:
    return GroupLine(group, "leaf", domain, announced, members, 0, "decided")


def ask(members: int, *lines: GroupLine, policy: str = "required", group: str = "") -> GroupFit:
    return assess_group_fit(seats(), LEAF, GangPolicy(policy), members, lines, group)


def test_the_domain_and_what_each_lacks() -> None:
    found = ask(7)
    assert isinstance(found.answer, GangPlan)
    assert dict(found.answer.around)[LEAF] == "leaf-b"
    assert found.rooms == (
        DomainFit(GroupDomain("leaf", "ib/leaf-b"), 2, 8, 0, 0),
        DomainFit(GroupDomain("leaf", "ib/leaf-a"), 3, 6, 0, 1),
    )


def test_places_that_are_kept_for_others_are_missing() -> None:
    found = ask(7, line("ib/leaf-b", 4, 2))
    assert isinstance(found.answer, GangRefusal)
    assert found.answer.reason == "leaf leaf-a holds 6 of 7; block block holds 12"
    assert found.rooms[-1] == DomainFit(GroupDomain("leaf", "ib/leaf-b"), 2, 8, 2, 1)
    assert not found.fits
    wide = ask(7, line("ib/leaf-b", 4, 2), policy="preferred")
    assert isinstance(wide.answer, GangPlan)
    assert wide.answer.level == "block"


def test_a_group_that_has_a_domain_stays_in_it() -> None:
    mine = line("ib/leaf-a", 4, 1, GROUP)
    found = ask(6, mine, group=GROUP)
    # Its own room is not in its way.
    assert found.fits
    assert found.decided == GroupDomain("leaf", "ib/leaf-a")
    assert [room.domain.name for room in found.rooms] == ["ib/leaf-a"]
    assert not ask(7, mine, group=GROUP).fits
    everywhere = attrs.evolve(mine, level=EVERYWHERE.level, domain=EVERYWHERE.name)
    assert ask(14, everywhere, policy="preferred", group=GROUP).fits


# --- the command -----------------------------------------------------------------

MAP = FabricMap(
    name="ib",
    places=tuple(FabricPlace(f"n{number}", leaf=f"leaf{number % 2}") for number in range(1, 5)),
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    specs = {"hpc:fabric": "leaf"}
    flavor = clouds.flavor()
    near = attrs.evolve(flavor, name="near", extra_specs={**flavor.extra_specs, **specs})
    cloud = clouds.cloud(
        *(clouds.node(f"n{number}", [2, 2, (number % 2 and 1) or 2]) for number in range(1, 5)),
        flavors=[flavor, near, attrs.evolve(flavor, name="bare", extra_specs=specs)],
    )
    path = tmp_path / "cloud.json"
    path.write_text(snapshot_document.dump_cloud_snapshot(synced(MAP, cloud)))

    def call(*words: object) -> tuple[int, str, str]:
        status = main(["explain", "--snapshot", str(path), *map(str, words)])
        return status, *capsys.readouterr()

    return call


def test_people_read_leaves_and_what_is_missing(run: Run) -> None:
    status, out, _ = run("--flavor", "near", "--count", 5)
    assert status == 0
    assert out.splitlines()[-7:] == [
        "Together (hpc:fabric=leaf, required): 5 members",
        "  5 members on 2 hosts in leaf leaf0",
        "  Leaves, with their members: leaf0 (5)",
        "  Hosts, with their members: n2 (2), n4 (3)",
        "  leaf ib/leaf0: 6 fit on 2 hosts",
        "  leaf ib/leaf1: 4 fit on 2 hosts; 1 missing",
        "  A snapshot does not contain the places kept for other groups.",
    ]
    # As many fit, but not together.
    status, out, _ = run("--flavor", "near", "--count", 7)
    assert status == 1
    assert "All 7 servers fit." in out
    assert "  leaf leaf0 holds 6 of 7" in out
    assert "leaf ib/leaf0: 6 fit on 2 hosts; 1 missing" in out
    # Nobody asked for it.
    status, out, _ = run("--flavor", "pair", "--count", 7)
    assert status == 0
    assert "Together" not in out


def test_a_search_that_was_cut_short_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    fit = assess_group_fit(seats(), LEAF, GangPolicy.REQUIRED, 5, ())
    gang_answer.print_gang_answer(InertConsole(), fit)
    assert "cut short" not in capsys.readouterr().out
    assert isinstance(fit.answer, GangPlan)
    unproven = attrs.evolve(fit, answer=attrs.evolve(fit.answer, proven=False))
    gang_answer.print_gang_answer(InertConsole(), unproven)
    assert "The search was cut short" in capsys.readouterr().out


def test_programs_read_it_too(run: Run) -> None:
    status, out, _ = run("--flavor", "near", "--count", 7, "-f", "json")
    found = json.loads(out)
    assert status == 1
    assert found["fits"] is True
    assert found["together"]["fits"] is False
    assert found["together"]["rooms"][0] == {
        "level": "leaf", "domain": "ib/leaf0", "hosts": 2, "fit": 6, "kept": 0, "missing": 1,
    }  # fmt: skip
    assert found["together"]["kept_known"] is False
    _, out, _ = run("--flavor", "pair", "-f", "json")
    assert json.loads(out)["together"] is None


def test_a_flavor_without_devices_says_who_knows(run: Run) -> None:
    status, _, err = run("--flavor", "bare")
    assert status == 2
    assert "takes no devices" in err


def test_a_member_that_found_no_host(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its group and what was announced are those of the request; what is kept is read."""
    cloud = snapshot_document.read_snapshot_file(tmp_path / "cloud.json")
    flavor = next(each for each in cloud.flavors if each.name == "near")
    asked = UnplacedRequest(("s1",), "late", flavor, "error", group=GROUP, members=6)
    lines = [line("ib/leaf0", 3, 1)]
    readers = {
        "nova": lambda config, image: cloud,
        "nova_asked": lambda config, name, request: asked,
        "nova_fabric_groups": lambda config: lines,
    }
    monkeypatch.setattr(explain_command.cloud_readers, "_load_reader", readers.__getitem__)
    assert main(["explain", "--server", "late"]) == 1
    out = capsys.readouterr().out
    assert "Together (hpc:fabric=leaf, required): 6 members" in out
    assert "leaf ib/leaf0: 6 fit on 2 hosts, 2 of them kept for other groups; 2 missing" in out
    # One that has its domain wants a place for itself alone.
    lines.append(line("ib/leaf1", 6, 5, GROUP))
    assert main(["explain", "--server", "late"]) == 0
    out = capsys.readouterr().out
    assert "1 member" in out
    assert "The server group has its domain already: leaf ib/leaf1." in out
