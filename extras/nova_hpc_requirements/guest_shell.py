# SPDX-License-Identifier: Apache-2.0
"""A guest's answer over ssh: one fixed program of the shell, and its output as data.

The owner of the guest controls the answer: it is bounded, and parts without sense are left out.
"""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess  # the ssh of this machine, with a list of words
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc_common.outside.text import printable_text

_MARK: Final = "=nova-hpc="
_METADATA: Final = "http://169.254.169.254/openstack/latest/meta_data.json"
#: Part of the answer -> command for it in the guest.
_PARTS: Final = {
    "uptime": "cat /proc/uptime",
    "kernel": "uname -r",
    "system": "cat /etc/os-release",
    "cloud_init": "cloud-init status",
    "source": "cloud-init query subplatform",
    "metadata": f"curl -s -o /dev/null -w '%{{http_code}}' --max-time 5 {_METADATA}",
    "driver": "nvidia-smi --query-gpu=driver_version --format=csv,noheader",
    "check": "nova-hpc-guest check --format json",
}
PROGRAM: Final = "; ".join(f"echo; echo {_MARK}{part}; {line}" for part, line in _PARTS.items())
_LONGEST: Final = 1 << 18
_LONGEST_COMPLAINT: Final = 200
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", re.ASCII)
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,79}", re.ASCII)
#: Status of cloud-init before it has ended (``cloud-init status``).
CLOUD_INIT_UNFINISHED: Final = ("running", "not started", "not run")
#: cloud-init's names for the source of a server's metadata (``subplatform`` of its OpenStack and
#: ConfigDrive data sources), and the corresponding words of ``describe_instance``.
_SOURCES: Final = {"metadata (http": "address", "config-disk (": "device"}
_PAUSE: Final = 5.0
#: Seconds for one answer; nova-hpc-guest is slow in emulated guests.
_PATIENCE: Final = 120.0


@attrs.frozen
class GuestAnswer:
    """The facts that a program in a guest printed over ssh.

    :ivar facts: for ``describe_instance``.
    :ivar uptime: seconds; None if missing.
    :ivar report: of ``nova-hpc-guest check``; None if it printed none.
    :ivar complaint: the reason for that, in the guest's words; may be empty.
    """

    facts: Mapping[str, Any]
    uptime: float | None = None
    report: Mapping[str, Any] | None = None
    complaint: str = ""


class NoLoginError(Exception):
    """A login to the guest is not possible. The text gives the reason."""


#: Runs a program: its words and seconds in; exit status, standard output and error out.
Runner = Callable[[list[str], float], tuple[int, str, str]]


def run_program(words: list[str], seconds: float) -> tuple[int, str, str]:
    """Run a program without input.

    :raises NoLoginError: it is not there, or takes too long.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise NoLoginError(f"{words[0]} is not installed here") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoLoginError(f"{words[0]} gave no answer: {error.__class__.__name__}") from error
    out, err = (part[:_LONGEST].decode("utf-8", "replace") for part in (done.stdout, done.stderr))
    return done.returncode, out, err


def build_ssh_words(address: str, user: str, key_file: str) -> list[str]:
    """Build the ssh command line that runs the fact program in a guest.

    :raises NoLoginError: one of the words must not reach another program.
    """
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise NoLoginError(f"{printable_text(address)!r} is no address of a guest") from None
    if not _WORD.fullmatch(user):
        raise NoLoginError(f"{printable_text(user)!r} is no name of a user")
    if not Path(key_file).is_file():
        raise NoLoginError(f"there is no key file {printable_text(key_file)}")
    # The guest is new: its host key is not known yet.
    options = (
        *("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"),
        *("GlobalKnownHostsFile=/dev/null", "ConnectTimeout=10", "LogLevel=ERROR"),
        *("IdentitiesOnly=yes", "PasswordAuthentication=no"),
    )
    words = [word for option in options for word in ("-o", option)]
    return ["ssh", *words, "-i", key_file, "-l", user, "--", address, PROGRAM]


def ask_guest(
    address: str,
    user: str,
    key_file: str,
    patience: float,
    run: Runner = run_program,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> GuestAnswer:
    """Log in to a guest and read its facts.

    A failed login is repeated for *patience* seconds, also while cloud-init runs.

    :raises NoLoginError: no login succeeded.
    """
    if not user:
        raise NoLoginError("no user is named: --ssh-user USER")
    if not address:
        raise NoLoginError("the server has no address")
    words = build_ssh_words(address, user, key_file)
    deadline = clock() + patience
    while True:
        status, out, err = run(words, _PATIENCE)
        # ssh exits with 255 if it cannot connect (ssh(1)). The program's own status is the status
        # of its last part, which the guest may not have.
        late = clock() + _PAUSE > deadline
        if status != 255:
            answer = parse_guest_answer(out, err)
            if late or answer.facts["cloud_init"] not in CLOUD_INIT_UNFINISHED:
                return answer
        elif late:
            lines = err.strip().splitlines()
            raise NoLoginError(printable_text(lines[-1])[:200] if lines else "ssh gives up")
        pause(_PAUSE)


def parse_guest_answer(text: str, errors: str = "") -> GuestAnswer:
    """Parse the facts that a guest printed; parts that make no sense are left out.

    :param errors: standard error of the guest's programs.
    """
    parts: dict[str, str] = {}
    for piece in text[:_LONGEST].split(f"\n{_MARK}")[1:]:
        name, _, body = piece.partition("\n")
        parts.setdefault(name.strip(), body.strip())
    system = _read_release(parts.get("system", ""))
    facts = {
        "kernel": _version_or_none(parts.get("kernel")),
        "os_id": _version_or_none(system.get("ID")),
        "os_version": _version_or_none(system.get("VERSION_ID")),
        "cloud_init": _read_cloud_init(parts.get("cloud_init", "")),
        "metadata_http": _read_number(parts.get("metadata", "")),
        "metadata_source": _read_source(parts.get("source", "")),
        "gpu_driver": _version_or_none(next(iter(parts.get("driver", "").splitlines()), None)),
    }
    report = _read_object(parts.get("check", ""))
    complaint = "" if report is not None else _find_complaint(errors)
    return GuestAnswer(facts, _read_uptime(parts.get("uptime", "")), report, complaint)


def _find_complaint(errors: str) -> str:
    """Return the last line about ``nova-hpc-guest``, the command's own or the shell's; else ""."""
    lines = [line for line in errors.splitlines() if "nova-hpc-guest" in line]
    return printable_text(lines[-1].strip())[:_LONGEST_COMPLAINT] if lines else ""


def _read_release(text: str) -> dict[str, str]:
    lines = (line.partition("=") for line in text.splitlines())
    return {key: value.strip("\"'") for key, _, value in lines}


def _version_or_none(text: str | None) -> str | None:
    return text if text is not None and _VERSION.fullmatch(text) else None


def _read_cloud_init(text: str) -> str | None:
    match = re.search(r"^status: ([a-z]+(?: [a-z]+)?)$", text, re.MULTILINE)
    return match[1] if match else None


def _read_source(text: str) -> str | None:
    """Return the kind of cloud-init's data source: ``other`` for neither address nor device.

    None if cloud-init names none.
    """
    other = "other" if text else None
    return next((name for begin, name in _SOURCES.items() if text.startswith(begin)), other)


def _read_number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9][0-9]{2}", text, re.ASCII) else None


def _read_uptime(text: str) -> float | None:
    match = re.match(r"(\d{1,12}\.\d{1,4}) ", text, re.ASCII)
    return float(match[1]) if match else None


def _read_object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
