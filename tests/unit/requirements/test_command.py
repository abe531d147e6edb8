# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc requirements`` as operators type it, without a cloud."""

from __future__ import annotations

import json

import pytest
import yaml

from nova_hpc_requirements import command
from nova_hpc_requirements.catalog import REQUIREMENTS
from nova_hpc_tools.main import NovaHpc
from tests.unit.requirements.cases import GOOD

SUITE = ("vm", "network", "security", "bare_metal")


@pytest.fixture
def ask(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("OS_CLOUD", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*words):
        app = NovaHpc()
        for name, kind in (
            ("requirements", command.ListRequirements),
            ("requirements step", command.RunSuiteStep),
            ("requirements suite", command.WriteSuite),
        ):
            app.command_manager.add_command(name, kind)
        try:
            status = app.run(["requirements", *words])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def files(tmp_path):
    """All evidence as files, as options."""
    words = []
    for name, output in GOOD.items():
        path = tmp_path / f"{name}.json"
        body = output["rows"] if name == "fabric_check" else output
        path.write_text(json.dumps(body))
        words += ["--evidence", f"{name}={path}"]
    return words


def test_all_of_it_from_files(ask, files):
    status, out, err = ask(*files, "-f", "json")
    assert err == ""
    rows = {row["ID"]: row for row in json.loads(out)}
    assert list(rows) == [item.id for item in REQUIREMENTS]
    states = [row["State"] for row in rows.values()]
    assert (states.count("met"), states.count("not met"), states.count("not ours")) == (30, 1, 1)
    # Temperature and memory errors are read by nobody here.
    assert rows["CAP05-01"]["State"] == "not met"
    assert status == 1


def test_what_was_asked_for_decides_the_status(ask, files):
    status, out, _ = ask(*files, "--id", "cnp01-09", "--id", "VMAAS12-01")
    assert status == 0
    assert out.splitlines()[0].split() == ["met", "CNP01-09", "a", "VM", "can", "be", "made"]
    assert out.splitlines()[-1] == "1 met, 1 not ours"


def test_without_a_cloud(ask):
    status, out, err = ask("--id", "CNP01-11", "--os-cloud", "nothing")
    assert (status, out) == (2, "")
    assert "the cloud 'nothing' cannot be used" in err
    assert "clouds.yaml" in err


def test_without_a_cloud_files_speak_for_themselves(ask, files):
    status, out, _ = ask(*files[:2], "--id", "CNP01-09", "--id", "NET01-01", "-f", "json")
    rows = json.loads(out)
    assert [row["State"] for row in rows] == ["met", "not known"]
    assert "no cloud can be used" in rows[1]["Found"]
    assert status == 1


def test_what_only_a_node_knows_says_so(ask):
    status, out, err = ask("--id", "SEC21-03")
    assert (status, err) == (1, "")
    assert "not known" in out
    assert "--evidence query_sanitization=FILE" in out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--id", "CNP99-01"), "no requirement has the id CNP99-01; this project answers CNP01-09"),
        (("--try",), "--flavor FLAVOR --image IMAGE"),
        (("--evidence", "launch_instance"), "is not STEP=FILE"),
        (("--evidence", "nothing=/x"), "'nothing' is none of launch_instance"),
        (("--evidence", "acceptance=/nowhere"), "/nowhere: No such file"),
        (("--timeout", "0"), "no number of seconds"),
    ],
)
def test_bad_input_names_the_thing(ask, words, part):
    status, out, err = ask(*words)
    assert (status, out) == (2, "")
    assert part in err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is not JSON"),
        ("[]", "holds no object"),
        ("7", "holds no object"),
        ("[" * 100000, "is not JSON"),
        ("\x00\x1b", "is not JSON"),
    ],
)
def test_a_file_that_is_no_evidence(ask, tmp_path, text, part):
    path = tmp_path / "e.json"
    path.write_text(text)
    status, _, err = ask("--evidence", f"launch_instance={path}")
    assert status == 2
    assert part in err
    assert "nova-hpc requirements step launch_instance makes it" in err
    assert "\x1b" not in err


def test_one_step_has_one_file(ask, files):
    status, _, err = ask(*files[:2], *files[:2])
    assert status == 2
    assert "--evidence launch_instance is given twice" in err


def test_a_step_prints_what_was_found_elsewhere(ask, files):
    file = files[files.index("--evidence") + 1].partition("=")[2]
    status, out, _ = ask("step", "launch_instance", "--from", file)
    assert status == 0
    assert json.loads(out) == GOOD["launch_instance"]
    assert json.loads(
        ask("step", "launch_instance", "--from", file, "-f", "json")[1]
    ) == json.loads(out)


def test_keys_are_printed_from_the_check_of_the_fabric(ask, tmp_path):
    path = tmp_path / "check.json"
    path.write_text(json.dumps(GOOD["fabric_check"]["rows"]))
    status, out, _ = ask("step", "query_ib_keys", "--from", str(path))
    assert status == 0
    assert {key["configured"] for key in json.loads(out)["keys"].values()} == {True}
    status, _, err = ask("step", "query_ib_keys")
    assert status == 2
    assert "--from FILE" in err


def test_a_step_that_cannot_be_done_says_so_in_json(ask):
    status, out, err = ask("step", "backend_switch_fabric", "--os-cloud", "nothing")
    assert (status, err) == (1, "")
    answer = json.loads(out)
    assert answer["success"] is False
    assert "the cloud 'nothing' cannot be used" in answer["error"]
    for step, part in (("vcpu_pinning", "the server's ID"), ("verify_tags", "no server is named")):
        assert part in json.loads(ask("step", step)[1])["error"]


def test_the_configuration_of_the_suite(ask, tmp_path):
    suites = tmp_path / "suite" / "isvctl" / "configs" / "suites"
    suites.mkdir(parents=True)
    (suites / "vm.yaml").write_text("")
    words = ("suite", str(tmp_path / "suite"), str(tmp_path / "to"), "--flavor", "f: {x", "--image")
    evidence = ("--evidence", "query_sanitization=machines.json")
    config = ("--config-file", "/etc/nova/nova.conf")
    status, out, _ = ask(*words, "i", "--cluster", "train", *evidence, *config)
    assert status == 0
    assert out.split() == [str(tmp_path / "to" / f"nova-hpc-{name}.yaml") for name in SUITE]
    configs = {
        name: yaml.safe_load((tmp_path / "to" / f"nova-hpc-{name}.yaml").read_text())
        for name in SUITE
    }
    steps = {
        step["name"]: step
        for config in configs.values()
        for group in config["commands"].values()
        for step in group["steps"]
    }
    assert configs["vm"]["import"] == [str(suites / "vm.yaml")]
    assert "f: {x" in steps["launch_instance"]["args"]
    assert steps["query_sanitization"]["args"] == ["--from", str(tmp_path / "machines.json")]
    assert steps["topology_block_atomic_allocation"]["args"] == ["--cluster", "train"]
    assert steps["query_host_health"]["args"] == ["--config-file=/etc/nova/nova.conf"]
    assert "query_ib_keys" not in steps
    # Each line is one that the command itself takes.
    for step in steps.values():
        given = step["command"].split()[2:]
        parser = command.RunSuiteStep(None, None).get_parser("nova-hpc requirements step")
        parsed = parser.parse_args([*given[1:], *step["args"]])
        assert parsed.step == step["name"]


@pytest.mark.parametrize(
    ("suite", "part"), [("nothing", "is no checkout of NVIDIA/ai-cloud-validation")]
)
def test_what_is_no_suite(ask, tmp_path, suite, part):
    status, _, err = ask("suite", suite, str(tmp_path), "--flavor", "f", "--image", "i")
    assert status == 2
    assert part in err
