# SPDX-License-Identifier: Apache-2.0
"""The words of ssh and srun: nothing in them asks, and nothing of a member's is an option."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import attrs
import pytest

from nova_hpc_client.accept.launchers import Reach
from nova_hpc_client.accept.remote_calls import (
    LONGEST,
    RemoteCall,
    explain_end,
    run_calls,
    started_calls,
)
from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_client.cluster.hostfiles import MemberHost
from nova_hpc_guest.accept.probes import PROBE_OF
from tests.unit.guest.accept_world import list_processes

#: Ends the words of programs that nobody else runs: not another run of these tests, either.
OWN = os.getpid()
HOST = MemberHost("id", "train-1", "10.0.0.7", 8, 1024, {})


def test_ssh_never_asks_and_takes_the_users_options_first() -> None:
    reach = Reach(login="cloud", options=("ConnectTimeout=2", "BatchMode=no"))
    words = reach.build_words(HOST, ["accept", "--sample"])
    assert words[:4] == ["ssh", "-o", "BatchMode=yes", "-T"]
    assert words.index("ConnectTimeout=2") < words.index("ConnectTimeout=15")
    assert words[-5:] == ["-l", "cloud", "--", "10.0.0.7", "nova-hpc-guest accept --sample"]
    # OpenSSH itself says what it made of them.
    done = subprocess.run(
        [*words[:1], "-G", "-F", "none", *words[1:-1]], capture_output=True, text=True, check=True
    )
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert settings["batchmode"] == "yes"
    assert settings["connecttimeout"] == "2"
    assert (settings["user"], settings["hostname"]) == ("cloud", "10.0.0.7")
    assert settings["requesttty"] == "false"
    assert settings["forwardagent"] == "no"


def test_ssh_takes_an_address_of_ipv6_as_it_is() -> None:
    words = Reach().build_words(attrs.evolve(HOST, address="fd00::7"), ["accept"])
    done = subprocess.run(
        ["ssh", "-G", "-F", "none", *words[1:-1]], capture_output=True, text=True, check=True
    )
    assert "hostname fd00::7\n" in done.stdout


def test_a_word_with_a_space_stays_one() -> None:
    words = Reach(command=("sudo", "my guest")).build_words(HOST, ["accept"])
    assert words[-1] == "sudo 'my guest' accept"


@pytest.mark.parametrize("probe", ["all_reduce", "nccl_all"])
def test_srun_starts_a_program_over_all_members(
    probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    member = RemoteMember(lambda words: Reach("srun").build_words(HOST, words), "cluster")
    words = member.build_sample_words([PROBE_OF[probe]], None, None, ("10.0.0.7", "10.0.0.8"))
    at = words.index("nova-hpc-guest")
    # One step on the first member, whose mpirun starts the others by ssh.
    assert {"--nodes=1", "--ntasks=1", "--mpi=none", "--nodelist=train-1"} <= set(words[:at])
    assert (
        words[at:]
        == (
            f"nova-hpc-guest accept --tier cluster --sample --only {probe} --scale 1 "
            "--hosts 10.0.0.7,10.0.0.8 --hold"
        ).split()
    )


def test_srun_takes_the_whole_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    words = Reach("srun").build_words(HOST, ["accept", "--hold"])
    assert words[0] == "srun"
    assert {"--nodelist=train-1", "--cpus-per-task=8", "--exclusive"} <= set(words)
    assert words[-3:] == ["nova-hpc-guest", "accept", "--hold"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    words = Reach("srun").build_words(HOST, ["accept"])
    assert "--overlap" in words
    assert "--exclusive" not in words


# -- calls -----------------------------------------------------------------------------


def test_the_end_of_a_call_is_in_words() -> None:
    ends = run_calls(
        [
            ["/bin/sh", "-c", "echo good"],
            ["/bin/sh", "-c", "echo bad >&2; exit 3"],
            ["/bin/sh", "-c", "kill -9 $$"],
            ["/no/such/program"],
        ],
        30.0,
    )
    assert [end.problem for end in ends] == [
        None,
        "status 3: bad",
        "sh was ended by signal 9",
        "/no/such/program does not start: No such file or directory",
    ]
    assert ends[0].output == "good\n"


def is_soon_gone(command: str) -> bool:
    """Whether no process has it any more; who was killed goes when the kernel has time."""
    end = time.monotonic() + 10
    while list_processes(command) and time.monotonic() < end:
        time.sleep(0.05)
    return not list_processes(command)


def test_a_call_has_a_limit() -> None:
    (end,) = run_calls([["/bin/sh", "-c", f"sleep 31.{OWN}; true"]], 0.2)
    assert end.problem == "no answer within 0.2 s"
    assert is_soon_gone(f"sleep 31.{OWN}")


def test_a_call_that_ignores_everything_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nova_hpc_client.accept.remote_calls._GRACE", 0.2)
    monkeypatch.setattr("nova_hpc_client.accept.remote_calls._PATIENCE", 0.2)
    text = f"trap '' TERM HUP INT; while :; do sleep 0.3{OWN}; done"
    (end,) = run_calls([["/bin/sh", "-c", text]], 0.3)
    assert end.problem is not None
    assert is_soon_gone(f"sleep 0.3{OWN}")


def test_output_without_end_is_ended() -> None:
    (end,) = run_calls([["/bin/sh", "-c", "exec cat /dev/zero"]], 60.0)
    assert end.problem == f"it wrote more than {LONGEST >> 20} MiB"


def test_whatever_ends_the_block_ends_the_calls() -> None:
    def interrupt() -> None:
        with started_calls([["/bin/cat"], ["/bin/sleep", f"302.{OWN}"]], 600.0):
            raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert is_soon_gone(f"sleep 302.{OWN}")
    assert time.monotonic() - begun < 60


def test_a_call_cannot_ask_on_the_terminal() -> None:
    text = "(exec </dev/tty) 2>/dev/null && echo it could ask"
    (end,) = run_calls([["/bin/sh", "-c", text]], 30.0)
    assert end.output == ""


@pytest.mark.parametrize(
    ("name", "status", "text", "words"),
    [
        ("ssh", 255, "Permission denied (publickey).\n", "ssh: Permission denied (publickey)."),
        ("ssh", 255, "", "it failed without a message"),
        ("ssh", 127, "sh: 1: nova-hpc-guest: not found", "install it, or --guest-command"),
        ("srun", 127, "", "install it"),
        ("ssh", 2, "nova-hpc-guest: error: unrecognized arguments: --hold", "older than this"),
        ("ssh", 2, "argument COMMAND: invalid choice: 'accept'", "older than this command"),
        ("ssh", 2, "refused: --setting x", "status 2: refused"),
        ("ssh", 1, "first\n\x1b[2Jlast\u202e \n\n", "status 1: \\u001b[2Jlast\\u202e"),
        ("ssh", 1, "", "it ended with status 1"),
    ],
)
def test_what_helps_is_said(name: str, status: int, text: str, words: str) -> None:
    said = explain_end(name, status, text)
    assert words in said
    assert said.isprintable()
    assert len(said) < 400


def test_what_it_wrote_is_read_while_it_runs(tmp_path: Path) -> None:
    call = RemoteCall(["/bin/sh", "-c", "echo serving; cat"], 60.0)
    try:
        until = time.monotonic() + 30
        while "serving" not in call.read_output():
            assert time.monotonic() < until
            time.sleep(0.02)
        assert call.poll() is None
    finally:
        call.end()
    assert call.poll() is not None
    assert call.read_output() == ""
