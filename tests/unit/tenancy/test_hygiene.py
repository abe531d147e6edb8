# SPDX-License-Identifier: Apache-2.0
"""Between two servers: marks, cleaning, quarantine. Real files, real processes."""

import threading
import time

import attrs
import pytest

from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.ledger import LedgerError, copy_of
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.wire.ledger import SOMEBODY, DeviceState
from tests.unit.tenancy.hygiene_node import GPU, OTHER, PF, VF, make, record, sweep, why

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


@pytest.fixture
def new(tmp_path):
    """Nobody knows who has had its devices."""
    return make(tmp_path)


def nobody():
    return frozenset()


def test_the_life_of_a_device(node):
    assert sweep(node) == {}
    assert record(node).baseline is not None
    assert record(node).server is None
    step = node.step()
    assert step.give(ONE, node.candidates(GPU)) == {}
    assert record(node).server == ONE
    assert step.has_given(ONE)
    assert not step.has_given(TWO)
    assert not node.resets(GPU)
    assert sweep(node, GPU) == {}
    assert step.take_back(ONE, {GPU: "gpu"}) == {}
    assert record(node).server is None
    assert node.resets(GPU)
    assert not node.resets(OTHER)
    assert step.unreported() == {GPU}
    step.report({GPU})
    assert step.unreported() == frozenset()


def test_what_nobody_knows_is_cleaned_first(new):
    """No entry is no proof: neither at an update nor before a server."""
    assert sweep(new) == {}
    assert (new.resets(GPU), new.resets(OTHER)) == (True, True)
    assert (record(new).cleaned, record(new).proof, record(new).unreported) == (1, "", False)
    new.forget(GPU)
    assert sweep(new) == {}
    assert not new.resets(GPU)
    # One that comes later, and one that a server gets before the node has looked.
    new.add("0000:44:00.0")
    found = new.candidates("0000:44:00.0")
    assert new.step().give(ONE, found) == {}
    assert new.resets("0000:44:00.0")


def test_a_reset_that_fails_at_first(new):
    """No server gets it; bus mastering that firmware left on is no failure of the reset."""
    new.config(GPU, master=True)
    (new.devices / OTHER / "reset").unlink()
    assert list(sweep(new)) == [OTHER]
    assert record(new, OTHER).state is DeviceState.QUARANTINED
    assert record(new, OTHER).proof is None
    assert record(new).proof == ""


def test_a_physical_function_is_not_reset_under_servers_of_its_functions(new):
    new.add(PF)
    new.add(VF, physfn=PF)
    step = new.step()
    assert step.sweep(new.candidates(PF, VF), lambda: frozenset({VF})) == {}
    assert not new.resets(PF)
    assert record(new, PF).proof is None
    # It is, when they are gone.
    assert step.sweep(new.candidates(PF, VF)) == {}
    assert new.resets(PF)


def test_a_device_that_nobody_cleaned_is_cleaned_by_the_next_update(node):
    node.step().give(ONE, node.candidates(GPU))
    assert sweep(node) == {}
    assert node.resets(GPU)
    assert record(node).server is None


def test_a_device_that_nobody_cleaned_is_cleaned_before_the_next_server(node):
    node.step().give(ONE, node.candidates(GPU))
    assert node.step().give(TWO, node.candidates(GPU)) == {}
    assert node.resets(GPU)
    assert record(node).server == TWO


def test_a_server_that_has_a_device_when_it_is_first_seen(new):
    assert sweep(new, GPU) == {}
    assert record(new).server == SOMEBODY
    assert record(new).baseline is None
    new.step().keep(ONE, [GPU])
    assert record(new).server == ONE
    new.step().keep(TWO, [GPU])
    assert record(new).server == ONE
    assert sweep(new) == {}
    assert record(new).baseline is not None


DAMAGES = {
    "another device": (lambda n: n.config(GPU, device=0x2331), "product_id is 2331 by its own"),
    "another vendor": (lambda n: n.write(GPU, "vendor", "0x1002"), "vendor_id is 1002"),
    "capability": (lambda n: n.config(GPU, capabilities=(0x01,)), "10@60 gone"),
    "BAR": (lambda n: n.write(GPU, "resource", "0x80000000 0x80ffffff 0x140204"), "BARs are"),
    "BAR lost": (lambda n: n.config(GPU, bar=0), "BAR 0 has lost its address"),
    "silent": (
        lambda n: (n.devices / GPU / "config").write_bytes(b"\xff" * 4096),
        "does not answer",
    ),
    "fatal": (
        lambda n, times=1: n.write(GPU, "aer_dev_fatal", f"TOTAL_ERR_FATAL {3 * times}"),
        "new uncorrected fatal",
    ),
    "nonfatal": (
        lambda n, times=1: n.write(GPU, "aer_dev_nonfatal", f"TOTAL_ERR_NONFATAL {3 * times}"),
        "new uncorrected nonfatal",
    ),
}


#: What is judged with the other devices of the node, and not by a clean.
JUDGED_LATER = {"fatal", "nonfatal"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("when", ["free", "before", "after"])
def test_a_changed_device_is_suspect_then_quarantined(node, damage, when):
    change, text = DAMAGES[damage]
    sweep(node)
    step = node.step()
    if when == "after":
        step.give(ONE, node.candidates(GPU))
    change(node)
    if when == "free":
        found = sweep(node)
    elif when == "before":
        found = step.give(ONE, node.candidates(GPU, OTHER))
        assert record(node, OTHER).server is None
    else:
        found = step.take_back(ONE, {})
        if damage in JUDGED_LATER:
            found = sweep(node)
    assert text in found[GPU]
    assert text in node.step().give(TWO, node.candidates(GPU))[GPU]
    # Nobody gets it; it is tried again, and at last an operator has to look.
    waited = node.now[1]
    for number in range(30):
        if damage in JUDGED_LATER:
            change(node, number + 2)
        withheld = sweep(node)
        if record(node).state is DeviceState.QUARANTINED:
            break
        assert text in withheld[GPU]
        assert record(node).state is DeviceState.SUSPECT
        assert node.step().give(TWO, node.candidates(GPU))
        node.later(300)
    assert record(node).trial.tries == HealthRules().suspect_tries
    assert node.now[1] - waited >= 2700
    assert text in why(node)
    # Another start of the service, and the errors are gone with a reboot.
    node.boot("second")
    node.write(GPU, "aer_dev_fatal", "TOTAL_ERR_FATAL 0")
    assert text in why(node)
    assert "in quarantine" in node.step().give(TWO, node.candidates(GPU))[GPU]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_seen_once_is_tried_again_at_the_next_update(node, damage):
    sweep(node)
    kept = {
        each.name: each.read_bytes() for each in (node.devices / GPU).iterdir() if each.is_file()
    }
    DAMAGES[damage][0](node)
    assert DAMAGES[damage][1] in sweep(node)[GPU]
    for name, data in kept.items():
        (node.devices / GPU / name).write_bytes(data)
    assert sweep(node) == {}
    assert record(node).state is DeviceState.OFFERED
    assert node.step().give(ONE, node.candidates(GPU)) == {}


def test_a_narrow_link_withholds_as_long_as_it_lasts(node):
    sweep(node)
    node.write(GPU, "current_link_width", "8")
    for _ in range(50):
        assert sweep(node) == {GPU: "its link is x8, and was x16"}
        assert node.step().give(ONE, node.candidates(GPU))
        node.later(HealthRules().suspect_retry_most)
    node.write(GPU, "current_link_width", "16")
    assert sweep(node) == {}
    assert why(node) is None


def test_bus_mastering_that_firmware_left_on(new):
    """At each boot; a device that is known to be clean keeps its proof and its stage."""
    new.config(GPU, master=True)
    assert sweep(new) == {}
    assert not new.masters(GPU)
    assert record(new).baseline is not None
    passed = {"phase": "clean", "since": 1.0}
    new.file.change(lambda all_: all_.put({GPU: attrs.evolve(all_.device(GPU), stage=passed)}))
    new.boot("second")
    for each in (GPU, OTHER):
        new.config(each, master=True)
        new.forget(each)
    found = new.step().update(new.candidates(GPU, OTHER), new.owners(OTHER))
    assert (found.findings, new.masters(GPU), new.resets(GPU)) == ({}, False, True)
    (note,) = found.notes
    assert note.startswith(f"PCI device {GPU} had bus mastering on although no server has it")
    assert (record(new).proof, record(new).stage) == ("", passed)
    # A server has the other.
    assert (new.masters(OTHER), new.resets(OTHER)) == (True, False)
    assert new.step().give(ONE, new.candidates(GPU)) == {}


def test_bus_mastering_of_a_device_with_a_narrow_link(node):
    """It may stay offered, so the check before a start must not find the bit on."""
    node.config(GPU, master=True)
    narrow = {GPU: Symptom(HealthSign.LINK, "its link is x8 of x16")}
    owners = node.owners()
    found = node.step().update(node.candidates(GPU, OTHER), owners, narrow)
    (note,) = found.notes
    assert note.startswith(f"PCI device {GPU} had bus mastering on although no server has it")
    assert found.alarms == ()
    assert (node.masters(GPU), node.resets(GPU)) == (False, True)


@pytest.mark.parametrize("driver", ["nvme", "mlx5_core"])
def test_bus_mastering_for_a_driver_of_the_host_stays_on(new, driver):
    new.bind(GPU, driver)
    new.config(GPU, master=True)
    assert sweep(new) == sweep(new) == {}
    assert (new.masters(GPU), new.resets(GPU), record(new).cleaned) == (True, False, 1)


def test_bus_mastering_of_a_device_that_a_process_has_stays_on(node):
    node.config(GPU, master=True)
    with node.held(GPU):
        assert "/dev/vfio/1 " in sweep(node)[GPU]
    assert (node.masters(GPU), node.resets(GPU)) == (True, False)
    assert sweep(node) == {}
    assert not node.masters(GPU)


def test_bus_mastering_of_a_physical_function_waits_for_its_functions(tmp_path):
    node = make(tmp_path, PF)
    node.add(VF, physfn=PF)
    assert node.step().sweep(node.candidates(PF, VF), nobody) == {}
    node.forget(PF)
    node.config(PF, master=True)
    assert PF in node.step().sweep(node.candidates(PF, VF), lambda: frozenset({VF}))
    assert (node.masters(PF), node.resets(PF)) == (True, False)
    node.later(60)
    assert node.step().sweep(node.candidates(PF, VF)) == {}
    assert not node.masters(PF)


def test_bus_mastering_that_stays_on(new):
    """Its look is no baseline. A try is a reset, and the first ones come after waits."""
    new.config(GPU, master=True)
    resets = []
    step = new.step(reset=resets.append)
    text = "bus mastering is still on after its reset: unbind it, write 1 and then 0 to its file "
    found = sweep(new, step=step)[GPU]
    assert found == f"{text}enable, bind it, and run nova-hpc device release {GPU}"
    assert (record(new).state, record(new).baseline) == (DeviceState.SUSPECT, None)
    while record(new).state is DeviceState.SUSPECT:
        new.later(300)
        sweep(new, step=step)
        assert text in record(new).reason
    assert resets.count(GPU) == HealthRules().suspect_tries
    (candidate,) = new.candidates(GPU).values()
    assert text in step.release(candidate)
    assert new.step().release(candidate) is None
    assert not new.masters(GPU)
    assert sweep(new) == {}


def test_bus_mastering_of_a_device_that_a_server_had(node):
    step = node.step()
    step.give(ONE, node.candidates(GPU))
    node.config(GPU, master=True)
    assert step.take_back(ONE, {}) == {}
    assert not node.masters(GPU)
    step.give(TWO, node.candidates(GPU))
    node.config(GPU, master=True)
    dead = node.step(reset=lambda address: None)
    assert "bus mastering is still on" in dead.take_back(TWO, {})[GPU]
    assert record(node).state is DeviceState.QUARANTINED
    assert "master" not in record(node).baseline


def test_the_number_of_virtual_functions(tmp_path):
    node = make(tmp_path, PF)
    node.write(PF, "sriov_totalvfs", "4")
    node.add(VF, physfn=PF)
    step = node.step()
    assert step.sweep(node.candidates(VF), nobody) == {}
    node.add("0000:43:00.2", physfn=PF)
    found = step.sweep(node.candidates(VF), nobody)
    assert found == {VF: "2 virtual functions are on, and there were 1"}


def test_errors_of_another_boot_do_not_count(new):
    new.write(GPU, "aer_dev_fatal", "TOTAL_ERR_FATAL 2")
    assert sweep(new) == {}
    new.boot("second")
    new.write(GPU, "aer_dev_fatal", "TOTAL_ERR_FATAL 4")
    # Also of a device that a server has from now on: before anything runs.
    assert sweep(new, GPU) == {}
    new.write(GPU, "aer_dev_fatal", "TOTAL_ERR_FATAL 5")
    assert sweep(new) == {}
    new.write(GPU, "aer_dev_fatal", "TOTAL_ERR_FATAL 7")
    assert "2 new uncorrected fatal" in sweep(new)[GPU]


@pytest.mark.parametrize(
    ("server", "word", "suspected"),
    [(ONE, "errors", True), (ONE, "link", False), (TWO, "errors", False)],
)
def test_errors_that_the_watch_has_found_make_a_device_suspect(new, server, word, suspected):
    """Before: a GPU whose link had a fatal error was offered to the next server at once.

    The port above the GPU counts that error, and one error in an hour is tolerated.
    """
    sweep(new)
    new.step().give(ONE, new.candidates(GPU))
    watch = {"server": server, "faults": {word: {"since": 1767225600.0, "reported": True}}}
    new.file.change(lambda ledger: ledger.put({GPU: attrs.evolve(ledger.device(GPU), watch=watch)}))
    assert new.step().take_back(ONE, {}) == {}
    assert record(new).server is None
    if not suspected:
        assert record(new).state is DeviceState.OFFERED
        assert sweep(new) == {}
        return
    reason = f"uncorrected errors were found while server {ONE} had it"
    assert (record(new).state, record(new).reason) == (DeviceState.SUSPECT, reason)
    # The server that replaces this one does not get it.
    assert new.step().give(TWO, new.candidates(GPU)) == {GPU: f"suspect: {reason}"}
    # It has no new errors at its trial, so it is offered again. The errors count as one try.
    assert sweep(new) == {}
    assert (record(new).state, record(new).trial.tries) == (DeviceState.OFFERED, 1)
    assert new.step().give(TWO, new.candidates(GPU)) == {}


@pytest.mark.parametrize("name", ["resource", "aer_dev_fatal", "config", "reset_method"])
@pytest.mark.parametrize("text", [b"", b"\xff\xfe<x>&../../;rm\n" * 9, b"9" * 300000, b"\0" * 70])
def test_strange_files(node, name, text):
    sweep(node)
    (node.devices / GPU / name).write_bytes(text)
    candidates = node.candidates(GPU)
    for step in (node.step(), node.step()):
        found = step.give(ONE, candidates)
        assert set(found) <= {GPU}
        assert all(len(reason) < 1000 for reason in found.values())
    node.step().take_back(ONE, {})
    assert not node.ledger.lost


# -- two at once ----------------------------------------------------------------


def test_two_deletes_at_once(node):
    going, most = [], []

    def reset(address):
        going.append(address)
        time.sleep(0.05)
        most.append(len(set(going)))
        going.remove(address)

    step = node.step(reset=reset)
    step.give(ONE, node.candidates(GPU))
    step.give(TWO, node.candidates(OTHER))
    threads = [threading.Thread(target=step.take_back, args=(who, {})) for who in (ONE, TWO) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 2  # each device once
    assert record(node).server is record(node, OTHER).server is None


def test_the_next_server_waits_for_the_reset_and_the_update_does_not(node):
    started, go = threading.Event(), threading.Event()

    def reset(address):
        started.set()
        go.wait()

    step = node.step(reset=reset)
    sweep(node)
    step.give(ONE, node.candidates(GPU))
    first = threading.Thread(target=step.take_back, args=(ONE, {}))
    first.start()
    started.wait()
    assert sweep(node) == {GPU: "it is being checked"}
    found = []
    second = threading.Thread(target=lambda: found.append(step.give(TWO, node.candidates(GPU))))
    second.start()
    second.join(0.2)
    assert not found
    go.set()
    first.join()
    second.join()
    assert found == [{}]
    assert record(node).server == TWO


def test_a_device_that_is_given_while_the_update_looks(node):
    """What Nova says first is old when the update comes to clean."""
    step = node.step()
    step.give(ONE, node.candidates(GPU))
    answers = iter([frozenset(), frozenset({GPU})])
    assert step.sweep(node.candidates(GPU, OTHER), lambda: next(answers)) == {}
    assert not node.resets(GPU)
    assert record(node).server == ONE


# -- the files --------------------------------------------------------------------


def test_nothing_is_given_when_nothing_can_be_remembered(node, monkeypatch):
    sweep(node)
    copy_of(node.state).unlink()
    node.state.write_bytes(node.state.read_bytes()[:50])
    for ask in (
        lambda: node.step().give(ONE, node.candidates(GPU)),
        lambda: sweep(node),
        lambda: node.step().take_back(ONE, {}),
    ):
        with pytest.raises(LedgerError, match="repair or remove"):
            ask()
    node.state.unlink()
    assert sweep(node) == {}


def test_a_state_file_that_is_cut_is_read_from_its_copy(node):
    node.step().give(ONE, node.candidates(GPU))
    node.state.write_bytes(node.state.read_bytes()[:50])
    assert record(node).server == ONE
    assert node.step().take_back(ONE, {}) == {}
    assert node.ledger.problems == ()


@pytest.mark.parametrize("body", ["[]", '{"v": 2, "devices": {}}', '{"v": 1}', '{"devices": {}}'])
def test_a_file_of_another_version_is_not_touched(new, body):
    new.state.write_text(body)
    assert new.ledger.lost
    with pytest.raises(LedgerError):
        sweep(new)
    assert new.state.read_text() == body


def test_a_damaged_record_is_that_of_a_used_device(node):
    sweep(node)
    text = node.state.read_text().replace('"bars": [', '"bars": 7, "x": [')
    node.state.write_text(text)
    assert node.step().describe(GPU)["Server"] == SOMEBODY
    assert sweep(node) == {}
    assert node.resets(GPU)
    assert node.resets(OTHER)


# -- the operator -------------------------------------------------------------------


def test_release_is_a_clean_device_or_none(node):
    sweep(node)
    step = node.step()
    (candidate,) = node.candidates(GPU).values()
    node.file.quarantine({GPU: "ticket 4711"})
    assert step.check(candidate) == ([], [])
    node.config(GPU, device=0x2331)
    assert "product_id" in step.release(candidate)
    assert why(node) == "ticket 4711"
    assert "product_id" in step.check(candidate)[0][0]
    # The card was replaced.
    step.accept(candidate)
    assert step.release(candidate) is None
    assert why(node) is None
    assert node.resets(GPU)


def test_a_device_of_a_server_is_not_touched(node):
    step = node.step()
    (candidate,) = node.candidates(GPU).values()
    node.step().give(ONE, {GPU: candidate})
    for ask in (step.release, step.accept):
        with pytest.raises(LedgerError, match=ONE):
            ask(candidate)
    assert not node.resets(GPU)
    assert record(node).server == ONE


def test_a_device_that_is_not_as_it_should_be_is_not_accepted(node):
    (candidate,) = node.candidates(GPU).values()
    node.config(GPU, master=True)
    with pytest.raises(LedgerError, match="bus mastering"):
        node.step().accept(candidate)


def test_how_often_it_was_clean_is_counted(node):
    for number in range(3):
        node.step().give(f"server-{number}", node.candidates(GPU))
        node.step().take_back(f"server-{number}", {})
    assert (record(node).cleaned, record(node).failed) == (4, 0)
    node.step().give(ONE, node.candidates(GPU))
    (node.devices / GPU / "reset").unlink()
    node.step().take_back(ONE, {})
    assert (record(node).cleaned, record(node).failed) == (4, 1)
