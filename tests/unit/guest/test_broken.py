# SPDX-License-Identifier: Apache-2.0
"""Broken documents and broken machines are answered, never a traceback."""

from __future__ import annotations

import json
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova_hpc_guest import command, compare, document
from tests.unit.guest.servers import HOME, fewer, fw_cfg_of, run, servers, start, told
from tests.unit.guest.worlds import domain_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ("[]", "is not a document of schema"),
        ('{"schema": "nova-hpc/guest", "version": 2}', "has version 2"),
        ('{"schema": "nova-hpc/guest", "version": 1}', "topology is None"),
        (
            '{"schema":"nova-hpc/guest","version":1,"topology":"flat","cells":3,"devices":[]}',
            "cells is no list",
        ),
        (
            '{"schema":"nova-hpc/guest","version":1,"topology":"flat","cells":[],"devices":[1]}',
            "no object",
        ),
    ],
)
def test_a_document_that_makes_no_sense(guest, text, words):
    fw_cfg_of(guest).write_text(text)
    for name in ("show", "check", "install"):
        status, out, err = run(guest, name)
        assert (status, out) == (2, "")
        assert err.startswith("nova-hpc-guest: ")
        assert err.count("\n") == 1
        assert words in err


def test_no_document(guest):
    fw_cfg_of(guest).unlink()
    status, out, err = run(guest, "check")
    assert (status, out) == (2, "")
    assert "was given no opt/org.nova-hpc/guest.json" in err
    assert run(guest, "install")[0] == 2
    assert run(guest, "install", "--if-present") == (0, "", "")


def test_bad_options(guest):
    for arguments in (
        ["check", "--driver", "gpu"],
        ["check", "--hugepages", "1T=1"],
        ["check", "--skip", "device"],
        ["show", "--root", "/no/such/place"],
        [],
    ):
        with pytest.raises(SystemExit) as stop:
            command.main(arguments)
        assert stop.value.code == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(servers(), st.data())
def test_any_change_of_a_document_is_read_or_refused(server, data):
    node, chosen, _ = server
    xml = told(domain_of(node, chosen, HOME, True), node, "mirror")
    domain = etree.fromstring(xml)
    (entry,) = (each for each in domain.iterfind("sysinfo/entry") if "json" in each.get("name"))
    found = json.loads(document.decode_entry(entry.text.encode()))
    part = data.draw(st.sampled_from([found, *found["devices"], *found["cells"]]))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES)
    try:
        parsed = document.parse_guest_document(json.dumps(found).encode())
    except document.DocumentError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        compare.compare_with_machine(parsed, compare.GuestMachine((), (), {}))


@fewer
@given(servers(), st.data())
def test_a_broken_sysfs_is_answered(server, data):
    node, chosen, _ = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen)
        files = sorted(path for path in (guest.root / "sys").rglob("*") if not path.is_dir())
        for _ in range(data.draw(st.integers(1, 4))):
            victim = data.draw(st.sampled_from(files))
            if not victim.is_symlink() and not victim.is_file():
                continue  # it was the victim before
            victim.unlink()
            kind = data.draw(st.sampled_from(["gone", "bytes", "pipe", "folder", "loop"]))
            if kind == "bytes":
                victim.write_bytes(data.draw(st.binary(max_size=20)))
            elif kind == "pipe":
                os.mkfifo(victim)
            elif kind == "folder":
                victim.mkdir()
            elif kind == "loop":
                victim.symlink_to(victim)
        for arguments in (["show"], ["check", "--format", "json"], ["install"]):
            status, _, err = run(guest, *arguments)
            assert status in (0, 1, 2)
            assert "Traceback" not in err
            assert "this machine cannot be read" not in err  # the last resort
