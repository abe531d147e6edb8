# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device list --reserved``: each reservation, with the command that lifts it."""

import json
import re

import pytest

from nova_hpc.wire.ledger import Ledger
from nova_hpc.wire.reservation import ReservedProvider
from nova_hpc_tools.main import main

GPU, PF, LAST = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
UUIDS = {each: f"5f0d2f5a-8a58-4f0e-8a51-00000000000{i}" for i, each in enumerate((GPU, PF, LAST))}


@pytest.fixture
def ask(tmp_path, capsys):
    (tmp_path / "nova.conf").write_text(
        f"[DEFAULT]\nstate_path = {tmp_path}\n[hpc]\nledger_file = {tmp_path}/ledger\n"
    )

    def run(ledger, *words):
        if ledger is not None:
            text = ledger if isinstance(ledger, str) else ledger.dumps()
            (tmp_path / "ledger").write_text(text)
        where = ("--config-file", str(tmp_path / "nova.conf"))
        status = main(["device", "list", "--reserved", *where, *words])
        return status, *capsys.readouterr()

    return run


LEDGER = Ledger(
    providers={
        GPU: ReservedProvider(UUIDS[GPU], "CUSTOM_GPU", 1, ours=1),
        PF: ReservedProvider(UUIDS[PF], "CUSTOM_VF", 4, ours=1, operators=2),
        # Lifted, and Placement may not have heard of it.
        LAST: ReservedProvider(UUIDS[LAST], "CUSTOM_GPU", 1, earlier=1),
    }
)


def command(name, left, address):
    return (
        f"openstack resource provider inventory set --amend --resource {name}:reserved={left} "
        f"{UUIDS[address]}"
    )


def test_each_with_its_command(ask):
    status, out, _ = ask(LEDGER)
    assert status == 0
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in out.splitlines()
        if line.startswith("|")
    ]
    assert head == ["Address", "Provider", "Class", "Total", "Withheld", "Operator", "Lift"]
    assert [[row[0], *row[3:]] for row in rows] == [
        [GPU, "1", "1", "0", command("CUSTOM_GPU", 0, GPU)],
        # The operator's is the greater one: there is nothing to lift.
        [PF, "4", "1", "2", ""],
        [LAST, "1", "0", "0", command("CUSTOM_GPU", 0, LAST)],
    ]


def test_for_scripts(ask):
    _, out, _ = ask(LEDGER, "-f", "json")
    first, *_ = json.loads(out)
    assert first == {
        "Address": GPU,
        "Provider": UUIDS[GPU],
        "Class": "CUSTOM_GPU",
        "Total": 1,
        "Withheld": 1,
        "Operator": 0,
        "Lift": command("CUSTOM_GPU", 0, GPU),
    }


def test_nothing(ask):
    status, out, err = ask(Ledger())
    assert (status, out) == (0, "Nothing is reserved in Placement.\n")
    assert re.fullmatch(r"Ledger: /\S+/ledger\n", err)


def test_no_ledger_is_no_all_clear(ask, tmp_path):
    status, out, err = ask(None)
    assert (status, out) == (2, "")
    assert f"no ledger at {tmp_path}/ledger" in err


@pytest.mark.parametrize("damaged", [[], {GPU: {"uuid": 7}}])
def test_a_damaged_part_is_no_all_clear(ask, damaged):
    body = json.loads(Ledger().dumps()) | {"providers": damaged}
    status, out, error = ask(json.dumps(body))
    assert (status, out) == (2, "")
    assert "repair or remove the ledger first" in error
    # What could be read is listed, beside the problem.
    body["providers"] = {GPU: {"uuid": 7}} | {PF: LEDGER.providers[PF].dumps()}
    status, out, error = ask(json.dumps(body))
    assert (status, out.splitlines()[3].split()[1]) == (0, PF)
    assert f"Problem: {GPU}: the reservations of its provider cannot be read" in error


def test_a_ledger_that_cannot_be_read(ask):
    status, out, error = ask("{")
    assert (status, out) == (2, "")
    assert "repair or remove it" in error
