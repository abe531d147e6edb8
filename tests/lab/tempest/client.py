# SPDX-License-Identifier: Apache-2.0
"""Tempest, in an environment of its own: what it is told, and what it says.

It is a user of the cloud's public API and knows nothing of this project: that its flavors
have ``hpc:`` keys is all that makes it one of our tests.
"""

from __future__ import annotations

import configparser
import io
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

#: Its own tests of servers: create, actions, delete in every state, resize, rebuild, and so on.
SERVERS = r"^tempest\.api\.compute\.servers\."
#: The network that the lab's cloud has for everybody.
NETWORK = "lab"

_LINE = re.compile(
    r"^\{\d+\} (?P<name>[\w.]+|setUpClass \([\w.]+\))(?: \[(?P<seconds>[\d.]+)s\])? \.\.\. "
    r"(?P<word>ok|FAILED|SKIPPED)(?:: (?P<why>.*))?$",
    re.MULTILINE,
)


@attrs.frozen
class Cloud:
    """What Tempest has to know of a cloud."""

    #: Of Keystone's version 3.
    identity: str
    password: str
    region: str
    #: UUIDs of two images and two flavors: from the first to the second servers are resized.
    images: tuple[str, str]
    flavors: tuple[str, str]
    nodes: int


@attrs.frozen
class Outcome:
    """Of one test, or of a class whose preparation was skipped or failed."""

    name: str
    #: ok, FAILED or SKIPPED.
    word: str
    why: str = ""


def configuration(
    cloud: Cloud, lock: str, more: Mapping[str, Mapping[str, object]] | None = None
) -> str:
    """``tempest.conf``.

    :param more: section -> options that are added, or said otherwise.
    """
    sections: dict[str, dict[str, object]] = {
        "oslo_concurrency": {"lock_path": lock},
        "auth": {
            "admin_username": "admin",
            "admin_password": cloud.password,
            "admin_project_name": "admin",
            "admin_domain_name": "Default",
            "use_dynamic_credentials": True,
            "create_isolated_networks": False,
        },
        "identity": {"uri_v3": cloud.identity, "auth_version": "v3", "region": cloud.region},
        "compute": {
            "image_ref": cloud.images[0],
            "image_ref_alt": cloud.images[1],
            "flavor_ref": cloud.flavors[0],
            "flavor_ref_alt": cloud.flavors[1],
            "min_compute_nodes": cloud.nodes,
            "fixed_network_name": NETWORK,
            "build_timeout": 600,
        },
        "compute-feature-enabled": {
            "resize": True,
            "cold_migration": cloud.nodes > 1,
            "live_migration": False,
            # Refused for servers with devices ([hpc]suspend_with_devices): each test of it
            # waits five minutes for a state that never comes.
            "suspend": False,
            # Guests of a fake libvirt say nothing, and show nothing.
            "console_output": False,
            "vnc_console": False,
        },
        "service_available": {"cinder": False, "swift": False},
        # Guests of a fake libvirt answer to nobody.
        "validation": {"run_validation": False},
    }
    parser = configparser.ConfigParser(interpolation=None)
    for section, options in sections.items():
        parser[section] = {name: str(value) for name, value in options.items()}
    for section, options in (more or {}).items():
        if section not in parser:
            parser[section] = {}
        parser[section].update({name: str(value) for name, value in options.items()})
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def run(
    python: Path, work: Path, conf: str, regex: str, environ: Mapping[str, str], workers: int = 1
) -> tuple[list[Outcome], str]:
    """Run the tests that *regex* finds, in the new folder *work*.

    :param python: of an environment with Tempest.
    :returns: what each has given, and all that was printed.
    """
    program = python.with_name("tempest")
    # Its list of workspaces would be the user's.
    words = ("init", "--workspace-path", work.with_name("workspaces"), work)
    subprocess.run([program, *words], check=True, capture_output=True, env=environ)
    (work / "etc/tempest.conf").write_text(conf)
    with work.with_name("printed").open("wb") as out:
        subprocess.run(
            [program, "run", "--regex", regex, "--concurrency", str(workers)],
            cwd=work,
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = work.with_name("printed").read_text(errors="replace")
    return list(outcomes(text)), text


def outcomes(text: str) -> Iterator[Outcome]:
    """What ``tempest run`` has printed, test by test."""
    for match in _LINE.finditer(text):
        yield Outcome(match["name"], match["word"], match["why"] or "")


def short(name: str) -> str:
    """The name of a test as people read it: class and test."""
    inner = name.removeprefix("setUpClass (").removesuffix(")")
    return ".".join(inner.split(".")[-2:]) if inner == name else inner.split(".")[-1]


def table(found: list[Outcome], expected: Mapping[str, str]) -> str:
    """The page of results: how many, what fails and why, what was skipped and why."""
    count = {word: sum(each.word == word for each in found) for word in ("ok", "FAILED", "SKIPPED")}
    lines = [f"{count['ok']} passed, {count['FAILED']} failed, {count['SKIPPED']} skipped."]
    lines += ["", ".. list-table:: What fails, and why", "   :header-rows: 1", "   :widths: 40 60"]
    lines += ["", "   * - Test", "     - Why"]
    for each in found:
        if each.word == "FAILED":
            name = short(each.name)
            lines += [f"   * - ``{name}``", f"     - {expected.get(name, 'not known')}"]
    lines += ["", ".. list-table:: What is skipped, and why", "   :header-rows: 1"]
    lines += ["   :widths: 40 60", "", "   * - Tests", "     - Why"]
    reasons: dict[str, list[str]] = {}
    for each in found:
        if each.word == "SKIPPED":
            reasons.setdefault(each.why, []).append(short(each.name))
    for why, names in sorted(reasons.items()):
        lines += [f"   * - {', '.join(f'``{name}``' for name in sorted(names))}", f"     - {why}"]
    return "\n".join(lines) + "\n"
