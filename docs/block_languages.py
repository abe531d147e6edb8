# SPDX-License-Identifier: Apache-2.0
"""The language of a literal block without a language, so that it is highlighted.

Pages have some hundred blocks behind ``::``. The first words of a block show its language. A block
whose first words do not (the output of a command, a table) is not highlighted.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from docutils import nodes

#: First words of lines that people type into a shell.
_PROGRAMS = frozenset(
    (
        *(
            "ansible-galaxy",
            "ansible-playbook",
            "apt",
            "apt-get",
            "bash",
            "cd",
            "chmod",
            "chown",
            "cp",
        ),
        *(
            "curl",
            "docker",
            "export",
            "for",
            "git",
            "ibnetdiscover",
            "kolla-ansible",
            "kolla-build",
        ),
        *("make", "mkdir", "mpirun", "neutron-db-manage", "nova-hpc", "nova-hpc-ebrctl"),
        *("nova-hpc-fabric-agent", "nova-hpc-guest", "nova-manage", "openstack", "pip", "podman"),
        *("python", "python3", "reno", "rm", "scp", "sh", "source", "sphinx-build", "srun", "ssh"),
        *("sudo", "systemctl", "tar", "tofu", "tox", "virsh", "while"),
    )
)
#: Programs that are also words of remarks: behind ``# `` they do not count as a program.
_WORDS = frozenset(("for", "make", "source", "while"))
_PROMPT = re.compile(r"[$#] (?=\S)")
_SECTION = re.compile(r"\[[\w:.-]+\]$")
_KEY = re.compile(r"(?:- )?[a-z][\w-]*:(?: |$)")


def choose_language(text: str) -> str:
    """The language of a block: ``console``, ``bash``, ``ini``, ``json``, ``yaml`` or ``none``.

    :param text: the block, without its indentation.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return "none"
    typed = [line for line in lines if _PROMPT.match(line)]
    if any(
        line.startswith("$ ") or line[2:].split(maxsplit=1)[0] in _PROGRAMS - _WORDS
        for line in typed
    ):
        return "console"
    said = [line for line in lines if not line.startswith("#")]
    if not said:
        return "none"
    if _SECTION.match(said[0].strip()):
        return "ini"
    if text.lstrip().startswith(("{", "[")) and _is_json(text):
        return "json"
    first = said[0].split()[0]
    if first in _PROGRAMS or re.match(r"[A-Z_]+=", first):
        return "bash"
    if all(_KEY.match(line) or line.startswith((" ", "- ")) for line in said) and _is_yaml(text):
        return "yaml"
    return "none"


def name_languages(app: Any, doctree: nodes.document) -> None:
    """Set the language of each block of a page that has none."""
    for block in doctree.findall(nodes.literal_block):
        # The text of a parsed literal differs from its source, as it has markup of its own.
        if "language" in block or block.rawsource != block.astext():
            continue
        block["language"] = choose_language(block.astext())
        # No warning if the block is not valid in its language: it may be a part of a file.
        block["force"] = True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_yaml(text: str) -> bool:
    try:
        return isinstance(yaml.safe_load(text), dict | list)
    except yaml.YAMLError:
        return False
