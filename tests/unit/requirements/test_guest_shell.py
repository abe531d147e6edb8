# SPDX-License-Identifier: Apache-2.0
"""The guest over ssh: what is asked, and what is believed of its answer."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_requirements import guest_shell
from nova_hpc_requirements.guest_shell import (
    NoLoginError,
    ask_guest,
    build_ssh_words,
    parse_guest_answer,
)

ANSWER = (
    "motd\n=nova-hpc=uptime\n12.34 20.00\n\n=nova-hpc=kernel\n6.8.0-49-generic\n"
    '\n=nova-hpc=system\nNAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n'
    "\n=nova-hpc=cloud_init\nstatus: done\n\n=nova-hpc=metadata\n200"
    "\n=nova-hpc=source\nconfig-disk (/dev/vdb)\n"
    "\n=nova-hpc=driver\n570.86.15\n570.86.15\n\n=nova-hpc=check\n{}\n"
)


def test_an_answer():
    answer = parse_guest_answer(ANSWER)
    assert answer.uptime == 12.34
    assert answer.report == {}
    assert answer.facts == {
        "kernel": "6.8.0-49-generic",
        "os_id": "ubuntu",
        "os_version": "24.04",
        "cloud_init": "done",
        "metadata_http": 200,
        "metadata_source": "device",
        "gpu_driver": "570.86.15",
    }


def test_the_program_is_answered_by_a_shell_in_these_parts():
    done = subprocess.run(["sh", "-c", guest_shell.PROGRAM], capture_output=True, text=True)
    answer = parse_guest_answer(done.stdout)
    assert answer.uptime is not None
    assert answer.facts["kernel"]
    assert answer.facts["os_id"]


def test_what_is_missing_is_not_known():
    answer = parse_guest_answer("\n=nova-hpc=kernel\nsh: uname: not found\n")
    assert set(answer.facts.values()) == {None}
    assert answer.uptime is answer.report is None


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ("", ""),
        ("sh: 1: curl: not found\n", ""),
        ("sh: 1: nova-hpc-guest: not found\n", "sh: 1: nova-hpc-guest: not found"),
        ("a\nnova-hpc-guest: no \x1b[2Jdocument\n", r"nova-hpc-guest: no \u001b[2Jdocument"),
        (f"nova-hpc-guest: {'long' * 100}", f"nova-hpc-guest: {'long' * 46}"),
    ],
)
def test_why_a_guest_prints_no_report(errors, said):
    answer = parse_guest_answer("\n=nova-hpc=check\n", errors)
    assert (answer.report, answer.complaint) == (None, said)


def test_no_complaint_beside_a_report():
    assert parse_guest_answer(ANSWER, "nova-hpc-guest: note").complaint == ""


@pytest.mark.parametrize("text", ["000", "20", "2000", "200\n200", "two"])
def test_an_http_status_that_is_none(text):
    assert parse_guest_answer(f"\n=nova-hpc=metadata\n{text}").facts["metadata_http"] is None


def test_text_that_a_terminal_would_obey_is_not_believed():
    answer = parse_guest_answer("\n=nova-hpc=kernel\n6.8\x1b[2J\n\n=nova-hpc=system\nID=a b\n")
    assert answer.facts["kernel"] is answer.facts["os_id"] is None


@given(st.text())
def test_any_answer_is_data(text):
    json.dumps(parse_guest_answer(f"\n=nova-hpc=check\n{text}").facts)
    parse_guest_answer(text)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_text("")
    return str(path)


def test_the_words_of_ssh(key):
    words = build_ssh_words("192.0.2.7", "ubuntu", key)
    assert words[0] == "ssh"
    assert words[-3:] == ["--", "192.0.2.7", guest_shell.PROGRAM]
    assert "BatchMode=yes" in words


@pytest.mark.parametrize(
    ("address", "user"),
    [
        ("-oProxyCommand=x", "ubuntu"),
        ("host.example", "ubuntu"),
        ("192.0.2.7", "-l"),
        ("192.0.2.7", "a b"),
        ("192.0.2.7", ""),
    ],
)
def test_words_that_must_not_reach_ssh(key, address, user):
    with pytest.raises(NoLoginError):
        build_ssh_words(address, user, key)


def test_a_key_that_is_not_there(tmp_path):
    with pytest.raises(NoLoginError, match="no key file"):
        build_ssh_words("192.0.2.7", "ubuntu", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("address", "user", "part"), [("192.0.2.7", "", "no user"), ("", "ubuntu", "no address")]
)
def test_what_has_to_be_said(key, address, user, part):
    with pytest.raises(NoLoginError, match=part):
        ask_guest(address, user, key, 1.0)


def test_it_asks_again_until_its_time_is_over(key):
    moment = [0.0]

    def run(words, seconds):
        moment[0] += 1.0
        return 255, "", "ssh: connect to host: No route\x1b to host\n"

    def pause(seconds):
        moment[0] += seconds

    with pytest.raises(NoLoginError, match="No route") as raised:
        ask_guest("192.0.2.7", "u", key, 30.0, run, lambda: moment[0], pause)
    assert "\x1b" not in str(raised.value)
    assert 25.0 <= moment[0] <= 31.0


def test_a_guest_without_some_of_the_programs_has_answered(key):
    answer = ask_guest("192.0.2.7", "u", key, 1.0, lambda *_: (127, ANSWER, ""))
    assert answer.facts["os_id"] == "ubuntu"


def test_it_asks_again_while_cloud_init_runs(key):
    answers = ["not started", "running", "running", "done"]
    moment = [0.0]

    def run(words, seconds):
        status = answers.pop(0) if len(answers) > 1 else answers[0]
        return 0, ANSWER.replace("status: done", f"status: {status}"), ""

    def pause(seconds):
        moment[0] += seconds

    answer = ask_guest("192.0.2.7", "u", key, 30.0, run, lambda: moment[0], pause)
    assert (answer.facts["cloud_init"], answers, moment) == ("done", ["done"], [15.0])
    answers[:] = ["running"]
    answer = ask_guest("192.0.2.7", "u", key, 30.0, run, lambda: moment[0], pause)
    assert answer.facts["cloud_init"] == "running"
    assert moment[0] <= 45.0


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("metadata (http://169.254.169.254)", "address"),
        ("config-disk (/dev/sr0)", "device"),
        ("seed-dir (/var/lib/cloud/seed/nocloud)", "other"),
        ("", None),
    ],
)
def test_where_metadata_is_from(text, source):
    assert parse_guest_answer(f"\n=nova-hpc=source\n{text}").facts["metadata_source"] == source


def test_a_program_that_is_not_there():
    with pytest.raises(NoLoginError, match="no-such-program is not installed here"):
        guest_shell.run_program(["no-such-program"], 1.0)
    with pytest.raises(NoLoginError, match="gave no answer"):
        guest_shell.run_program(["sleep", "30"], 0.05)
