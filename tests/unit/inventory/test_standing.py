# SPDX-License-Identifier: Apache-2.0
"""Role and offer of each function, product names, and lines that are told once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nova_hpc.topology import peer, sysfs
from nova_hpc.topology.model import Node
from nova_hpc_tools.doctor.finding_text import format_finding_lines
from nova_hpc_tools.inventory import pci_names, peer_text, standing, text
from nova_hpc_tools.inventory.standing import Offer
from nova_hpc_tools.main import main
from nova_hpc_tools.site.device_spec import Omitted, format_omitted_lines
from nova_hpc_tools.wire.findings import WireFinding

IDS = """\
# a comment
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 1234  a board of it
15b3  Mellanox Technologies
\t1021  MT2910 Family [ConnectX-7]
C 03  Display controller
\t2330  no product at all
"""


@pytest.fixture
def hgx(synthetic: Callable[[str], Path]) -> Path:
    """Eight GPUs, eight adapters with eight functions, four NVSwitches."""
    return synthetic("hgx-h100")


def counts(node: Node, settings: standing.NodeSettings) -> dict[tuple[str, Offer], int]:
    """How many functions there are of each role and offer."""
    found: dict[tuple[str, Offer], int] = {}
    for judged in standing.judge_functions(node, settings).values():
        key = (judged.role, judged.offer)
        found[key] = found.get(key, 0) + 1
    return found


def test_a_node_that_is_not_set_up_can_offer(hgx: Path) -> None:
    node = sysfs.read_sysfs_node(hgx)
    assert counts(node, standing.make_default_settings(node)) == {
        ("gpu", Offer.POSSIBLE): 8,
        ("vf", Offer.POSSIBLE): 64,
        ("pf", Offer.REFUSED): 8,
        ("nvswitch", Offer.REFUSED): 4,
    }


def test_what_an_entry_names_is_offered(hgx: Path, tmp_path: Path) -> None:
    node = sysfs.read_sysfs_node(hgx)
    config = tmp_path / "nova.conf"
    entries = [
        {"address": "0000:19:00.0"},
        {"vendor_id": "10de", "product_id": "22a3"},
        {"vendor_id": "144d", "product_id": "a80a"},
    ]
    lines = [f"device_spec = {json.dumps(entry)}" for entry in entries]
    config.write_text("\n".join(["[pci]", *lines, ""]))
    settings = standing.read_node_settings(node, [f"--config-file={config}"])
    found = counts(node, settings)
    assert found["gpu", Offer.OFFERED] == 1
    assert found["gpu", Offer.POSSIBLE] == 7
    # Whoever offers these has another opinion than configure, which is told.
    assert found["nvswitch", Offer.OFFERED] == 4
    assert found["", Offer.OFFERED] == 1
    judged = standing.judge_functions(node, settings)
    assert judged["0000:51:00.0"].words == "no role offered"
    assert judged["0000:4b:00.0"].words.startswith("nvswitch offered: it stays with the host")
    assert standing.NONE.words == ""


def test_the_tree_says_each_reason_once(hgx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", "--root", str(hgx)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("nvswitch not offered (2)") for line in lines) == 4
    assert sum(line.endswith("pf not offered (1) · vf can be offered x8") for line in lines) == 8
    assert sum("decide now who runs the NVSwitches" in line for line in lines) == 1
    assert "(1)  its virtual functions are offered instead" in lines


def test_lists_and_documents_say_role_and_offer(
    hgx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inventory", "--root", str(hgx), "-f"]
    assert main([*words, "json"]) == 0
    functions = json.loads(capsys.readouterr().out)["functions"]
    judged = standing.judge_functions(
        sysfs.read_sysfs_node(hgx), standing.make_default_settings(sysfs.read_sysfs_node(hgx))
    )
    assert {
        each["address"]: (each["role"] or "", each["offer"], each["offer_reason"] or "")
        for each in functions
        if each["offer"] != "no role"
    } == {address: (each.role, each.offer.value, each.reason) for address, each in judged.items()}
    (host,) = {
        (each["role"], each["offer_reason"]) for each in functions if each["offer"] == "no role"
    }
    assert host == (None, None)
    assert main([*words, "csv", "-c", "Address", "-c", "Role", "-c", "Offer", "-c", "Reason"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert '"0000:19:00.0","gpu","can be offered",""' in rows
    assert len([row for row in rows if '"pf","not offered","' in row]) == 8


def test_equal_pairs_are_one_line_with_a_count(hgx: Path) -> None:
    node = sysfs.read_sysfs_node(hgx)
    pairs = list(peer.find_peer_pairs(node))
    lines = list(peer_text.format_peer_lines(node))
    assert len(pairs) == 16
    (line,) = lines[1:]
    assert line.startswith(f"  16 pairs: {pairs[0].gpu} with {pairs[0].adapter}")
    assert " and 12 more: " in line


def test_a_tree_without_standings_has_no_roles(hgx: Path) -> None:
    drawn = "\n".join(text.draw_node_lines(sysfs.read_sysfs_node(hgx)))
    assert "offered" not in drawn


def test_what_is_not_offered_for_one_reason_is_one_line() -> None:
    omitted = [Omitted(f"0000:{n:02x}:00.0", "pf", "no") for n in range(20)]
    omitted.append(Omitted("0000:40:00.0", "gpu", "no"))
    first, second = format_omitted_lines(omitted)
    assert first.startswith("Not offered: 0000:00:00.0, 0000:01:00.0, ")
    assert first.endswith(" and 8 more (pf): no")
    assert second == "Not offered: 0000:40:00.0 (gpu): no"


def finding(seen: str, check: str = "link", cure: str = "Reseat it.") -> WireFinding:
    """A finding of the doctor."""
    return WireFinding(check, "warning", seen, "It is slow.", cure, f"doctor-{check}")


def test_findings_with_one_cure_are_told_together() -> None:
    rows = [
        *(("n1", finding(f"0000:{n:02x}:00.0: x8 of x16")) for n in range(32)),
        ("n1", finding("0000:40:00.0: x4 of x16")),
        ("n1", finding("no pages", "pages", "Reserve some.")),
        ("n2", finding("no pages", "pages", "Reserve some.")),
        (None, finding("too old", "age", "Upgrade.")),
    ]
    lines = list(format_finding_lines(rows))
    assert lines[0].startswith("WARNING n1: 0000:00:00.0, 0000:01:00.0, ")
    assert lines[0].endswith(" and 20 more: x8 of x16 [link]")
    assert lines[1:5] == [
        "WARNING n1: 0000:40:00.0: x4 of x16 [link]",
        "  It is slow.",
        "  Cure: Reseat it.",
        "  See: nova-hpc help check link",
    ]
    assert lines[5] == "WARNING n1, n2: no pages [pages]"
    assert lines[9] == "WARNING too old [age]"
    assert len(lines) == 13
    # The help that is named tells the cure for the same layout.
    assert "  See: nova-hpc help check link --layout kolla" in format_finding_lines(rows, "kolla")


def test_products_have_the_names_of_the_system(tmp_path: Path) -> None:
    path = tmp_path / "pci.ids"
    path.write_bytes(IDS.encode() + b"\xff\xfe\n")
    wanted = {("10de", "2330"), ("15b3", "1021"), ("15b3", "2330"), ("10de", "1234")}
    found = pci_names.read_product_names(wanted, (tmp_path / "none", path))
    assert found == {
        ("10de", "2330"): "GH100 [H100 SXM5 80GB]",
        ("15b3", "1021"): "MT2910 Family [ConnectX-7]",
    }
    assert pci_names.read_product_names(wanted, (tmp_path,)) == {}
