# SPDX-License-Identifier: Apache-2.0
"""The kinds of a fleet's nodes, as a JSON document with a version.

Within a version, keys may be added; a key is never removed and never changes meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from nova_hpc_tools.inventory.kinds import NodeFleet
from nova_hpc_tools.wire.documents import FLEET


def write_node_fleet(fleet: NodeFleet, not_read: Mapping[str, str]) -> str:
    """Format the document as text: ASCII, indented, ends with a newline; no file is written.

    :param not_read: node -> reason why its archive could not be read.
    """
    document = {
        **FLEET.head(),
        "kinds": [
            {
                "number": kind.number,
                "nodes": list(kind.nodes),
                "processors": kind.processors,
                "devices": dict(kind.devices),
            }
            for kind in fleet.kinds
        ],
        "differences": [
            {
                "kind": difference.kind,
                "place": difference.place,
                "fact": difference.fact,
                "usual": difference.usual.value if difference.usual else None,
                "values": [
                    {"value": value.value, "nodes": list(value.nodes)}
                    for value in difference.values
                ],
            }
            for difference in fleet.differences
        ],
        "not_read": dict(not_read),
    }
    return json.dumps(document, indent=2) + "\n"
