# SPDX-License-Identifier: Apache-2.0
"""A ledger is believed as far as Nova's records bear it out, and no device is given on less."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy import comparison, ledger
from nova_hpc.tenancy.comparison import add_row_proofs, confirm_ledger_by_rows
from nova_hpc.tenancy.ledger import LedgerError, copy_of
from nova_hpc.tenancy.owners import NovaDeviceRow, NovaDeviceRows
from nova_hpc.tenancy.stage import device_stage
from nova_hpc.tenancy.stage.device_stage import StagePhase
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice, PartitionTenancy
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make
from tests.unit.tenancy.stage_world import Service, world

ONE, TWO = "server-1", "server-2"
CLEAN = device_stage.pass_stage(device_stage.make_stage_due(None, ONE, 1.0), 2.0, 3.0).dumps()
DUE = device_stage.make_stage_due(None, ONE, 1.0).dumps()
KNOWN = LedgerDevice(proof="7 monday", stage=CLEAN)


def one(device, row, node="", rows_node=""):
    """What becomes of the entry of one device."""
    rows = NovaDeviceRows(rows_node, {} if row is None else {GPU: row})
    return confirm_ledger_by_rows(Ledger(devices={GPU: device}, node=node), rows)


# -- pure -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "believed"),
    [
        (NovaDeviceRow(text="7 monday"), True),
        (NovaDeviceRow(text="7 tuesday"), False),  # a server had it, and gave it back
        (NovaDeviceRow(text="8 monday"), False),  # Nova had given it up, and knows it anew
        (NovaDeviceRow(server=TWO), False),
        (NovaDeviceRow(), False),  # it is neither free nor a server's
        (None, False),
    ],
)
def test_a_proof_is_what_nova_has_recorded(row, believed):
    found = one(KNOWN, row)
    assert found.doubted == (() if believed else (GPU,))
    device = found.ledger.device(GPU)
    assert device.owes is not believed
    assert device.stage == (CLEAN if believed else None)
    assert device.server == (TWO and SOMEBODY if row and row.server else None)
    assert found.ledger.compared


def test_what_it_forbids_always_counts():
    mark = LedgerDevice(server=ONE, stage=DUE)
    bad = LedgerDevice(state=DeviceState.QUARANTINED, reason="ticket", proof="7 monday")
    for each in (mark, bad):
        kept = one(each, None).ledger.device(GPU)
        assert (kept.server, kept.stage, kept.state) == (each.server, each.stage, each.state)
        assert kept.owes


def test_a_device_without_an_entry_is_not_clean():
    assert Ledger().device(GPU).owes
    assert confirm_ledger_by_rows(Ledger(), NovaDeviceRows()).ledger.device(GPU).owes


def test_what_another_node_says_of_places_is_nothing():
    board = LedgerDevice(
        hardware="serial:1", state=DeviceState.QUARANTINED, reason="bad", proof="7 monday"
    )
    slot = attrs.evolve(board, hardware=f"slot:{OTHER}")
    known = Ledger(
        devices={GPU: board, OTHER: slot},
        absent={"serial:2": board},
        partitions={1: PartitionTenancy(ONE, frozenset({GPU}))},
        compared=True,
        node="there",
    )
    rows = NovaDeviceRows("here", {each: NovaDeviceRow(text="7 monday") for each in (GPU, OTHER)})
    found = confirm_ledger_by_rows(known, rows)
    assert (found.foreign, found.ledger.node) == (True, "here")
    assert set(found.ledger.devices) == {GPU}
    assert found.ledger.absent == known.absent
    assert found.ledger.partitions is None
    # Nova that does not know the node yet says nothing of whose the file is.
    for node, other in (("", "here"), ("there", "")):
        assert not confirm_ledger_by_rows(
            attrs.evolve(known, node=node), NovaDeviceRows(other)
        ).foreign


def test_only_what_is_clean_is_proved():
    rows = NovaDeviceRows(
        "here", {GPU: NovaDeviceRow(text="7 monday"), OTHER: NovaDeviceRow(server=ONE)}
    )

    def then(device, address=GPU):
        return (
            add_row_proofs(Ledger(devices={address: device}), [address], rows).device(address).proof
        )

    assert then(LedgerDevice(proof="")) == "7 monday"
    assert then(LedgerDevice(proof="6 sunday", stage=CLEAN)) == "7 monday"
    assert then(LedgerDevice(proof="6 sunday", stage=DUE)) == "6 sunday"
    assert then(LedgerDevice()) is None
    assert then(LedgerDevice(proof="")) == "7 monday"
    assert then(LedgerDevice(server=ONE)) is None
    assert then(LedgerDevice(proof=""), OTHER) == ""
    assert add_row_proofs(Ledger(), [], rows).node == "here"


_ROWS = st.one_of(
    st.none(),
    st.builds(NovaDeviceRow, server=st.none(), text=st.sampled_from(["", "1 a", "1 b", "2 a"])),
    st.builds(NovaDeviceRow, server=st.just(ONE), text=st.just("")),
)
_DEVICES = st.builds(
    LedgerDevice,
    proof=st.sampled_from([None, "", "1 a", "1 b", "2 a"]),
    server=st.sampled_from([None, TWO]),
    stage=st.sampled_from([None, CLEAN, DUE]),
)


@given(device=_DEVICES, row=_ROWS)
def test_nothing_becomes_cleaner_by_a_comparison(device, row):
    found = one(device, row).ledger.device(GPU)
    assert found.owes or not device.owes
    if not found.owes:
        assert row is not None
        assert row.text == device.proof != ""
    else:
        assert found.stage in (None, DUE)
    if device.stage == DUE:
        assert found.stage == DUE
    # And again, it changes nothing.
    assert one(found, row).ledger.device(GPU) == found


# -- the steps of a node ------------------------------------------------------------------


@pytest.fixture
def found(tmp_path):
    return world(tmp_path / "node")


def _entry(found):
    return device_stage.load_stage(found.node.ledger.device(GPU).stage)


def _lose(found):
    found.node.state.unlink()
    copy_of(found.node.state).unlink()


def test_a_ledger_that_is_lost_while_a_server_has_a_device(found):
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    _lose(found)
    service.end(ONE)
    assert found.node.resets(GPU)
    assert not service.start(TWO, GPU)
    assert service.update()[GPU] == "it waits to be cleaned between two servers"
    service.settle()
    assert found.traces == {}
    assert service.start(TWO, GPU)


def test_a_ledger_that_is_lost_when_a_server_has_gone(found):
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    service.end(ONE)
    found.node.forget(GPU)
    _lose(found)
    # Before any update, too.
    assert not service.start(TWO, GPU)
    service.settle()
    assert (found.traces, found.node.resets(GPU)) == ({}, True)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_ledger_that_was_put_back(found, restarted):
    service = Service(found)
    service.update()
    before = found.node.state.read_bytes()
    assert service.start(ONE, GPU)
    service.end(ONE)
    for each in (found.node.state, copy_of(found.node.state)):
        each.write_bytes(before)
    for each in (GPU, OTHER):
        found.node.forget(each)
    if restarted:
        service = Service(found)
    assert not service.start(TWO, GPU)
    assert _entry(found) is None or _entry(found).phase is StagePhase.DUE
    service.settle()
    assert (found.traces, found.node.resets(GPU)) == ({}, True)
    # The other one had no server meanwhile: it is believed, and nothing is done to it.
    assert not found.node.resets(OTHER)
    assert len(found.seen) == 1


def test_a_restart_of_the_service_alone_cleans_nothing(found):
    service = Service(found)
    service.update()
    for each in (GPU, OTHER):
        found.node.forget(each)
    for _ in range(2):
        service = Service(found)
        assert service.update() == {}
        service.attend()
    assert (found.seen, found.node.resets(GPU)) == ([], False)


def test_a_full_disk_withholds_everything_and_is_said(found, monkeypatch):
    service = Service(found)
    assert service.update() == {}
    before = found.node.state.read_bytes()

    def full(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write_file_beside", full)
        why = service.update()
        assert why.keys() == {GPU, OTHER}
        assert "No space left on device" in why[GPU]
        withheld = service.hygiene.withhold(service.view(), found.owners())
        assert "No space left on device" in withheld.alarms[0]
        assert not service.start(ONE, GPU)
    assert found.node.state.read_bytes() == before
    # By itself, when there is room. Nova had given it to a server, so it is cleaned once more.
    assert service.update().keys() == {GPU}
    service.settle()
    assert service.start(ONE, GPU)


def test_nova_that_does_not_answer_after_a_server(tmp_path):
    node = make(tmp_path)
    step = node.step(ledger=attrs.evolve(node.file, of_compute=True))
    step.sweep(node.candidates(GPU, OTHER))

    def silent():
        raise TimeoutError("no reply")

    owners = attrs.evolve(node.owners(), rows=silent)
    notes = step.after_end(ONE, lambda: None, owners)
    assert "no reply" in notes[0]
    assert not step.records.ledger.read().compared


def test_the_words_for_operators(found):
    service = Service(found)
    service.update()
    _lose(found)
    withheld = service.hygiene.withhold(service.view(), found.owners())
    assert "is new: it does not say who has had the devices" in withheld.notes[0]
    known = found.node.ledger
    found.node.file.change(lambda now: attrs.evolve(now, node="there"))
    service = Service(found)
    (note, *_) = service.hygiene.withhold(service.view(), found.owners()).notes
    assert "is that of another node" in note
    assert (found.node.root / "ledger.json.another-node").exists()
    assert known.node == found.node.ledger.node == "node"
    found.changes[GPU] += 1
    service = Service(found)
    service.update()
    service.settle()
    found.changes[GPU] += 1
    service = Service(found)
    (note, *_) = service.hygiene.withhold(service.view(), found.owners()).notes
    assert f"servers may have had {GPU}: cleaned before" in note
    with pytest.raises(LedgerError, match="cannot keep a copy"):
        attrs.evolve(found.node.file, path=found.node.root / "none").put_by("x")
    assert comparison.confirm_ledger_by_rows(found.node.ledger, found.rows()).doubted == ()
