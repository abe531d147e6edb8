# SPDX-License-Identifier: Apache-2.0
"""Every command writes every format that users of the openstack command know."""

import csv
import io
import json
import re
import sys

import pytest
import yaml

from nova_hpc.wire.ledger import Ledger
from nova_hpc_tools.main import main
from nova_hpc_tools.snapshot import cloud_readers
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.cloud import test_explain_command
from tests.unit.device import test_device, test_nvlink

# Fixtures of the tests of single commands, under names of their own.
node, device = test_device.node, test_device.ask
manager, nvlink = test_nvlink.manager, test_nvlink.ask

GPU = test_device.GPU
FORMATS = ("csv", "json", "table", "value", "yaml")

#: Command -> its name in the fixture of test_nvlink.
NVLINK = {
    "device list --nvlink": "list",
    "doctor --nvlink": "check",
    "doctor --restore-nvlink": "restore",
}

#: Command -> its columns, and the exit status; "document": JSON says more than rows do.
COMMANDS = {
    "inventory": ("Address,Class,Vendor,Product,Type,NUMA node,Root", 0, "document"),
    "configure": ("File,Content", 0, "list"),
    "configure --write": ("File,State", 0, "list"),
    "explain --flavor": ("Host,Fits,Level,Distance,Devices,Reason", 0, "document"),
    "explain --flavor four": ("Host,Fits,Level,Distance,Devices,Reason", 1, "document"),
    "explain --server": ("Device,Role,Functions", 0, "document"),
    "simulate": ("policy,allocated %", 0, "document"),
    "simulate snapshot": ("File,Hosts,Devices,Servers,Flavors", 0, "record"),
    "install-shim": ("File,State", 1, "record"),
    "device list": ("Address,Role,State,Reason,Server,Since", 0, "list"),
    "device show": ("Address,Role,State,Reason,Server,Faults,Planned,Reported,Driver", 0, "record"),
    "device check": ("Address,Result,Differences", 0, "record"),
    "device quarantine": ("Address,State,Reason", 0, "record"),
    "device release": ("Address,State,Reason", 0, "list"),
    "device accept": ("Address,Differences,Result", 0, "list"),
    "device maintenance": ("Start,End,Models,Reason,Planned", 0, "record"),
    "device list --nvlink": ("Partition,GPUs,NVLinks,Active,Server", 0, "list"),
    "doctor --nvlink": ("Set,Devices,Change", 1, "list"),
    "doctor --restore-nvlink": ("Partition", 0, "empty"),
}


@pytest.fixture
def run(request, machine, tmp_path, monkeypatch, capsys):
    """Run one of the commands of COMMANDS."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cloud = tmp_path / "cloud.json"
    cloud.write_text(snapshot_document.dump_cloud_snapshot(test_explain_command.a_cloud()))
    (tmp_path / "nodes.csv").write_text("name,type,cpus,memory_mib,gpus,count\nn,n,9,9,8,2\n")
    (tmp_path / "requests.csv").write_text("name,cpus,memory_mib,gpus,count\none,1,1,3,9\n")
    nova = tmp_path / "nova" / "nova" / "virt"
    nova.mkdir(parents=True)
    (nova / "__init__.py").touch()
    (nova.parent / "__init__.py").touch()
    monkeypatch.setattr(
        cloud_readers, "_load_reader", lambda _: lambda *_: test_explain_command.a_cloud()
    )
    explain = ["explain", "--snapshot", cloud]
    plain = {
        "inventory": ["inventory", "--root", machine],
        "configure": ["configure", "--root", machine],
        "configure --write": ["configure", "--root", machine, "--write", tmp_path / "conf.d"],
        "explain --flavor": [*explain, "--flavor", "pair"],
        "explain --flavor four": [*explain, "--flavor", "four", "--host", "off"],
        "explain --server": [*explain, "--server", "s1"],
        "simulate": [
            *("simulate", "--nodes", tmp_path / "nodes.csv", "--jobs", "1", "--seeds", "1"),
            *("--requests", tmp_path / "requests.csv", "--policy", "nova-pack"),
        ],
        "simulate snapshot": ["simulate", "snapshot", tmp_path / "new.json"],
        "install-shim": ["install-shim", "--check", "--python", sys.executable],
    }

    def call(name, *more):
        if name in plain:
            if name == "install-shim":
                monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nova"))
            return main([*map(str, plain[name]), *more]), *capsys.readouterr()
        if name in NVLINK:
            # A node that has had no server yet.
            (tmp_path / "hpc-ledger.json").write_text(Ledger().dumps())
            if NVLINK[name] == "restore":
                request.getfixturevalue("manager").restart()
            odd = 'nvlink_set = {"name": "odd", "devices": ["0000:41:00.0", "0000:42:00.0"]}\n'
            return request.getfixturevalue("nvlink")(NVLINK[name], *more, more=odd)
        _, verb = name.split()
        ask = request.getfixturevalue("device")
        words = [GPU] if verb not in ("list", "maintenance") else []
        if verb in ("quarantine", "accept"):
            words += ["--reason", "ticket"]
        if verb == "accept":
            request.getfixturevalue("node").config(GPU, capabilities=(0x01,))
        if verb == "release" and not call.quarantined:
            ask("quarantine", GPU, "--reason", "ticket")
            call.quarantined = True
        return ask(verb, *words, *more)

    call.quarantined = False
    return call


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_every_format(run, name, form):
    columns, expected, kind = COMMANDS[name]
    columns = columns.split(",")
    status, out, _ = run(name, "-f", form)
    assert status == expected
    if kind == "empty":
        assert out.strip().strip('"') == {"csv": columns[0], "json": "[]", "yaml": "[]"}.get(
            form, ""
        )
    elif form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert list(rows[0])[: len(columns)] == columns
        assert None not in rows[0]
    elif form == "table":
        assert out.startswith("+--")
        heads = [cell.strip() for cell in out.splitlines()[1].strip("|").split("|")]
        if kind == "record":
            assert heads == ["Field", "Value"]
            assert f"| {columns[0]} " in out
        else:
            assert heads[: len(columns)] == columns
    elif form == "value":
        assert out
        assert columns[0] not in out.split()
        assert "|" not in out.splitlines()[0]
    else:
        found = json.loads(out) if form == "json" else yaml.safe_load(out)
        if kind == "document":
            assert {"schema", "version"} <= set(found)
        else:
            first = found if kind == "record" else found[0]
            assert isinstance(found, dict) == (kind == "record")
            assert set(columns) <= set(first)


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name][2] == "document"])
def test_yaml_says_what_json_says(run, name):
    def without_time(found):
        return {key: value for key, value in found.items() if key not in ("date", "machine")}

    said = json.loads(run(name, "-f", "json")[1])
    assert without_time(yaml.safe_load(run(name, "-f", "yaml")[1])) == without_time(said)


@pytest.mark.parametrize("name", ["inventory", "explain --server", "simulate", "doctor --nvlink"])
def test_columns_are_chosen(run, name):
    column = COMMANDS[name][0].split(",")[0]
    for words in (["-c", column], ["-f", "table", "-c", column]):
        status, out, _ = run(name, *words)
        assert status == COMMANDS[name][1]
        assert [cell.strip() for cell in out.splitlines()[1].strip("|").split("|")] == [column]
    status, out, err = run(name, "-f", "csv", "-c", "Nonsense")
    assert (status, out) == (2, "")
    assert "Nonsense" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_format_is_refused(run, name, capsys):
    with pytest.raises(SystemExit) as caught:
        run(name, "-f", "xml")
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert "invalid choice: 'xml'" in err


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("inventory", "csv,html,json,svg,table,value,yaml"),
        ("explain", "csv,json,table,value,yaml"),
        ("simulate", "csv,json,table,value,yaml"),
    ],
)
def test_the_help_has_the_formats(name, formats, capsys):
    assert main([name, "--help"]) == 0
    (said,) = re.findall(r"--format {(\S+)}", capsys.readouterr().out)
    assert said == formats


def test_a_snapshot_cannot_be_two_things(run, capsys):
    assert json.loads(run("simulate snapshot", "-f", "json")[1])["Hosts"] == 5
    assert main(["simulate", "snapshot", "-", "-f", "json"]) == 2
    assert capsys.readouterr().out == ""
    assert main(["simulate", "snapshot", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["hosts"]) == 5


def test_debug_shows_where_an_error_is(tmp_path, capsys):
    words = ["inventory", "--root", str(tmp_path / "none")]
    assert main(words) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(["--debug", *words]) != 0
    assert "Traceback" in capsys.readouterr().err
