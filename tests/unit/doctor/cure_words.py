# SPDX-License-Identifier: Apache-2.0
"""What words of a cure must leave to its data, and what a layout must not tell. Pure."""

from __future__ import annotations

import re
from typing import Final

from nova_hpc_tools.site.cures import CuredService, DoctorCure
from nova_hpc_tools.site.layout_cures import render_cure
from nova_hpc_tools.site.layout_names import NAMES, PLAIN

_SERVICES: Final = "|".join(
    (*(service.value for service in CuredService), "Nova's", "the(?:ir)? services", "Placement")
)
#: A service to restart, an option, a command that a layout says otherwise, a file of a service.
NAMED: Final = re.compile(
    rf"\b[Rr]estart (?:{_SERVICES})|\[\w+\]\w|nova-hpc (?:configure|prepare|doctor)\b"
    r"|install-shim --check|nova-manage placement|/etc/(?:nova|placement|nova-hpc)/"
    r"|nova-hpc-common\.conf|file that has|kolla|openstack-ansible"
)
#: What only a plain host has: its files, and services that are restarted one by one.
PLAIN_WORDS: Final = re.compile(
    rf"/etc/(?:nova|placement)/\w+\.conf\.d|(?<!systemctl )\b[Rr]estart (?:{_SERVICES})"
    r"|nova-hpc-common\.conf|file that has|nova-hpc configure (?!--layout)"
)


def faults_of_cure(cure: DoctorCure, node: str | None = "gpu17") -> list[str]:
    """What its words name, and what is told of a plain host in another layout; []: nothing."""
    words = [part for part in cure.parts if isinstance(part, str)]
    texts = [render_cure(cure, layout, node) for layout in NAMES if layout != PLAIN]
    return [
        *(part for part in words if NAMED.search(part)),
        *(text for text in texts if PLAIN_WORDS.search(text)),
    ]
