# SPDX-License-Identifier: Apache-2.0
"""A map in the form of topograph's engine ``graph`` (its docs/engines/graph.md)."""

from __future__ import annotations

import json

from nova_hpc.fabric.model import FabricMap, FabricPlace

_DOMAIN = "accelerator.topograph.run/domain"
_SUB_DOMAIN = "accelerator.topograph.run/sub-domain"


def format_topograph_json(fabric: FabricMap) -> str:
    """Format the map as JSON of topograph. A host whose leaf is unknown has no layers."""
    return (
        json.dumps({"instances": [_describe_instance(place) for place in fabric.places]}, indent=1)
        + "\n"
    )


def _describe_instance(place: FabricPlace) -> dict[str, object]:
    layers = [] if place.leaf is None else [name for _, name in reversed(place.path)]
    labels = {} if place.nvlink_domain is None else {_DOMAIN: place.nvlink_domain}
    if place.sub_domain is not None and labels:
        labels[_SUB_DOMAIN] = place.sub_domain
    return {"id": place.host, "network_layers": layers, "labels": labels}
