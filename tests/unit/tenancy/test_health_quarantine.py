import json

import pytest

from nova_hpc.tenancy import quarantine
from nova_hpc.tenancy.quarantine import Quarantine, QuarantineError
from nova_hpc.topology.model import AddressError

GPU = "0000:41:00.0"


def test_no_file(tmp_path):
    assert quarantine.read(tmp_path / "none") == Quarantine()


def test_put_and_release(tmp_path):
    path = tmp_path / "quarantine.json"
    quarantine.put(path, GPU.upper(), "failed its reset")
    quarantine.put(path, "0000:42:00.0", "")
    assert json.loads(path.read_text()) == {GPU: "failed its reset", "0000:42:00.0": ""}
    now = quarantine.read(path)
    assert now.why(None, GPU) == "failed its reset"
    assert now.why("0000:42:00.0") == "no reason given"
    assert now.why("0000:43:00.0") is None
    assert quarantine.release(path, GPU)
    assert not quarantine.release(path, GPU)
    assert quarantine.read(path).why(GPU) is None
    names = {path.name, f".{path.name}.copy", f".{path.name}.lock"}
    assert {each.name for each in tmp_path.iterdir()} == names


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000, '"x"', "\x00"])
def test_a_broken_file_is_reported_and_never_overwritten(tmp_path, text):
    path = tmp_path / "quarantine.json"
    path.write_text(text)
    found = quarantine.read(path)
    assert not found.reasons
    assert found.lost
    assert str(path) in found.problems[0]
    assert str(path) in found.why(GPU)
    with pytest.raises(QuarantineError, match="repair or remove"):
        quarantine.put(path, GPU, "x")
    assert path.read_text() == text


def test_one_bad_address_does_not_hide_the_others(tmp_path):
    path = tmp_path / "quarantine.json"
    path.write_text(json.dumps({GPU: "x", "gpu 3": "y"}))
    found = quarantine.read(path)
    assert found.reasons == {GPU: "x"}
    assert "gpu 3" in found.problems[0]


def test_an_unreadable_place(tmp_path):
    assert quarantine.read(tmp_path).problems
    with pytest.raises(QuarantineError, match="No such file"):
        quarantine.put(tmp_path / "none" / "file", GPU, "x")
    with pytest.raises(AddressError):
        quarantine.put(tmp_path / "file", "gpu 3", "x")


@pytest.mark.parametrize("keep", [0, 1, 20, -1])
def test_a_file_that_is_cut_is_read_from_its_copy(tmp_path, keep):
    path = tmp_path / "quarantine.json"
    quarantine.put(path, GPU, "failed its reset")
    path.write_bytes(path.read_bytes()[:-2][:keep])
    found = quarantine.read(path)
    assert found.why(GPU) == "failed its reset"
    assert "its copy is used" in found.problems[0]
    # The next change repairs it.
    quarantine.put(path, "0000:42:00.0", "x")
    assert quarantine.read(path) == Quarantine({GPU: "failed its reset", "0000:42:00.0": "x"})


def test_a_file_that_an_operator_removes_is_empty(tmp_path):
    path = tmp_path / "quarantine.json"
    quarantine.put(path, GPU, "x")
    path.unlink()
    assert quarantine.read(path) == Quarantine()
