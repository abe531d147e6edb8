# SPDX-License-Identifier: Apache-2.0
"""What attackers write and what hardware does, at the files and paths of hygiene."""

import contextlib
import json
import shutil
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.topology import atomic_files, sysfs
from nova_hpc.topology.model import ADDRESS, AddressError, normalise_address
from nova_hpc.wire import tags
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make

NOTHING = {"gpus": [], "partitions": {}}

HOSTILE = [
    "../../../../etc/passwd",
    "0000:41:00.0/../../../../tmp/x",
    "0000:41:00.0\n",
    "0000:41:00.0;reboot",
    "$(reboot)",
    "--gpu-reset",
    "&lol;<x/>",
    "\0",
    "\u0660000:41:00.0",
    "9" * 100_000,
]


@given(st.text())
@example("0000:41:00.0\n")
@example("\u0660000:41:00.0")
def test_only_an_address_becomes_a_path(text):
    with contextlib.suppress(AddressError):
        address = normalise_address(text)
        assert address.isascii()
        assert ADDRESS.fullmatch(address)
        assert not set(address) - set("0123456789abcdef:.")
        assert normalise_address(address) == address


@pytest.mark.parametrize("text", HOSTILE)
def test_strings_in_place_of_an_address(tmp_path, text):
    (tmp_path / "node").mkdir()
    node = make(tmp_path / "node")
    before = {each.relative_to(tmp_path) for each in tmp_path.rglob("*")}
    folder = node.file.locks
    with pytest.raises(AddressError):
        hygiene_reset.reset_device(node.root, text, 1, folder)
    with pytest.raises(AddressError):
        node.file.quarantine({text: "x"})
    # An operator, or a broken disk, has put it into the file.
    used, held = {"state": "offered", "server": text}, {"state": "quarantined", "reason": "y"}
    devices = {text: used, GPU: used, OTHER: held}
    node.state.write_text(json.dumps({"v": 1, "devices": devices, "nvlink": NOTHING}))
    known = node.ledger
    assert known.quarantined == {OTHER: "y"}
    assert known.devices.keys() == {GPU, OTHER}
    assert known.marked == {GPU: text}
    assert all(len(problem) < 500 for problem in known.problems)
    node.step().sweep(node.candidates(GPU, OTHER), frozenset)
    after = {each.relative_to(tmp_path) for each in tmp_path.rglob("*")} - before
    assert {each.parts[:2] for each in after} <= {
        ("node", name)
        for name in (
            "ledger.json",
            ".ledger.json.lock",
            ".ledger.json.locks",
            ".ledger.json.copy",
        )
    }
    assert not node.resets(OTHER)


def test_programs_are_started_without_a_shell(tmp_path, monkeypatch):
    """An address is one word of a list, whatever else is around it."""
    seen = []

    def run(argv, timeout):
        seen.append(list(argv))
        return 0, "0, 0\n"

    monkeypatch.setattr(cleaner.hygiene_reset, "run_with_deadline", run)
    monkeypatch.setattr(cleaner.shutil, "which", lambda name: f"/bin/{name}")
    node = make(tmp_path)
    link = node.devices / GPU / "driver"
    link.unlink()
    (node.root / "sys/bus/pci/drivers/nvidia").mkdir()
    link.symlink_to(node.root / "sys/bus/pci/drivers/nvidia")
    function = sysfs.read_sysfs_node(node.root).function(GPU)
    tools = node.step().cleaners.default.tools
    cleaner.NvidiaGpu(tools).clean(function)
    assert [words[:3] for words in seen] == [["nvidia-smi", "-i", GPU]] * 2


@pytest.mark.parametrize("text", HOSTILE)
def test_roles_are_words_and_no_paths(tmp_path, text):
    """A role is whatever the tag of an entry says."""
    tools = make(tmp_path).step().cleaners.default.tools
    known = cleaner.load_cleaners({"gpu": "generic"}, tools)
    assert known.of(text) is known.default
    with pytest.raises(cleaner.CleanerError, match="cannot be loaded"):
        cleaner.load_cleaners({"gpu": text}, tools)
    pool = {"hpc_tags": "1", "hpc_role": text, "hpc_group": text}
    for key in ("hpc_root", "hpc_switch", "hpc_nvlink"):
        with contextlib.suppress(tags.TagError):
            found = tags.parse_tags({**pool, key: text})
            # Words that are compared, and shortened in what an operator reads.
            assert found.role is None or len(found.role) < 256


def test_a_storm_of_events(tmp_path):
    """Devices come and go while the node is read: nothing fails, the others stay as they are."""
    node = make(tmp_path)
    step = node.step()
    step.sweep(node.candidates(GPU, OTHER), frozenset)
    stop = threading.Event()
    rounds = []

    def storm():
        while not stop.is_set():
            shutil.rmtree(node.devices / OTHER)
            node.add(OTHER)
            rounds.append(1)

    failed = []

    def take():
        try:
            for number in range(15):
                server = f"server-{number}"
                assert step.give(server, node.candidates(GPU)) == {}
                assert step.take_back(server, {}) == {}
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=storm), threading.Thread(target=take)]
    for thread in threads:
        thread.start()
    try:
        while threads[1].is_alive() or len(rounds) < 20:
            # Nova says that a server has it.
            found = step.sweep(node.candidates(GPU, OTHER), lambda: frozenset({GPU}))
            assert found.keys() <= {OTHER}
    finally:
        threads[1].join()
        stop.set()
        threads[0].join()
    assert failed == []
    assert node.ledger.why(GPU) is None
    assert node.ledger.problems == ()
    # When it is over, the other is in order, or it waits for an operator.
    step.sweep(node.candidates(GPU, OTHER), frozenset)
    held = node.ledger.why(OTHER)
    node.later(HealthRules().suspect_retry_most)
    again = step.sweep(node.candidates(GPU, OTHER), frozenset)
    assert again == {}
    given = step.give("last", node.candidates(GPU, OTHER))
    assert given == ({} if held is None else {OTHER: f"in quarantine: {held}"})


def test_a_device_that_vanishes_while_it_is_given(tmp_path):
    """Between the reading and the mark. The reset after its server finds out."""
    node = make(tmp_path)
    step = node.step()
    step.sweep(node.candidates(GPU, OTHER), frozenset)
    candidates = node.candidates(GPU, OTHER)
    shutil.rmtree(node.devices / GPU)
    # libvirt will not start a domain with it; see tests/functional/test_faults.py.
    assert step.give("one", candidates) == {}
    assert set(node.ledger.marked) == {GPU, OTHER}
    assert step.take_back("one", {}) == {GPU: "it has disappeared"}
    assert step.give("two", node.candidates(OTHER)) == {}
    node.add(GPU)
    assert "disappeared" in step.give("two", node.candidates(GPU))[GPU]


def test_what_a_killed_writer_has_left_is_removed(tmp_path, monkeypatch):
    node = make(tmp_path)
    step = node.step()

    def killed(*names):
        raise KeyboardInterrupt  # as far as the files go, see the next line

    with monkeypatch.context() as patch:
        patch.setattr(atomic_files.os, "replace", killed)
        patch.setattr(atomic_files.Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(KeyboardInterrupt):
            step.sweep(node.candidates(GPU), frozenset)
    (tmp_path / ".ledger.json.original").write_text("an operator's")
    left = {each.name for each in tmp_path.iterdir()}
    step.sweep(node.candidates(GPU), frozenset)
    gone = left - {each.name for each in tmp_path.iterdir()}
    # What was to replace the file, and what has tried out whether there is room.
    assert gone
    assert all(each.startswith(".ledger.json.") and each.endswith(".new") for each in gone)
    assert (tmp_path / ".ledger.json.original").exists()
