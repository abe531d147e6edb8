# SPDX-License-Identifier: Apache-2.0
"""The answers of ``explain`` as JSON documents with a version.

Within a version keys may be added; a key is never removed and never changes
its meaning.
"""

from __future__ import annotations

import json
from typing import Any, Final

from nova_hpc.placement.model import Request
from nova_hpc_tools.cloud.explain.model import (
    FlavorReport,
    NodeChoice,
    NodeVerdict,
    PlacedServer,
    ServerReport,
)
from nova_hpc_tools.cloud.explain.server_report import list_peer_paths
from nova_hpc_tools.snapshot import SnapshotNode
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest

SCHEMA: Final = "nova-hpc/explain"
VERSION: Final = 1


def dump_explain_document(
    answer: FlavorReport | ServerReport, together: dict[str, Any] | None = None
) -> str:
    """Dump the answer of ``explain`` as a JSON document: ASCII, indented, ends with a newline.

    :param together: whether members of a server group come together; None if not requested.
    """
    body = (
        describe_flavor_report(answer) | {"together": together}
        if isinstance(answer, FlavorReport)
        else describe_server_report(answer)
    )
    return json.dumps({"schema": SCHEMA, "version": VERSION, **body}, indent=2) + "\n"


def describe_flavor_report(answer: FlavorReport) -> dict[str, Any]:
    """Return the answer about a flavor as a JSON object."""
    question, request = answer.question, answer.request
    return {
        "flavor": answer.flavor.name,
        "image": question.image,
        "count": question.count,
        "host": question.host,
        "request": {
            "affinity": request.level.word,
            "affinity_policy": request.policy.value,
            "nvlink": request.nvlink.value,
            "devices": {want.alias: want.count for want in answer.flavor.wants},
            "ports": [
                {
                    "network": direct_ports.network,
                    "count": direct_ports.count,
                    "role": ports.name,
                    "whole": direct_ports.whole,
                    "trusted": direct_ports.trusted,
                    "remote_managed": direct_ports.remote,
                }
                for direct_ports, ports in zip(
                    answer.flavor.ports, answer.request.ports, strict=True
                )
            ],
            "groups": len(request.groups),
            "cells": len(request.cells),
        },
        "asked": _describe_unplaced_request(answer.asked),
        "fits": answer.fits,
        "problems": list(answer.problems),
        "hosts": [_describe_verdict(request, verdict) for verdict in answer.verdicts],
        "placed": [
            _describe_placed_server(request, placed_server) for placed_server in answer.placed
        ],
        "remedies": [
            {
                "kind": remedy.kind,
                "text": remedy.text,
                "node": remedy.node,
                "level": remedy.level.word,
            }
            for remedy in answer.remedies
        ],
    }


def _describe_unplaced_request(asked: UnplacedRequest | None) -> dict[str, Any] | None:
    if asked is None:
        return None
    return {
        "servers": list(asked.servers),
        "name": asked.name,
        "state": asked.state,
        "fault": asked.fault,
        "request": asked.request,
        "placement": asked.placement,
        "notes": list(asked.notes),
    }


def describe_server_report(answer: ServerReport) -> dict[str, Any]:
    """Return the answer about a server as a JSON object."""
    decision = answer.decision
    return {
        "server": answer.server.uuid,
        "name": answer.server.name,
        "flavor": answer.server.flavor,
        "host": answer.server.host,
        "node": answer.server.node,
        "decision": None
        if decision is None
        else {
            "asked": decision.asked.word,
            "policy": decision.policy.value,
            "reached": decision.reached.word,
            "redirected": None if decision.redirected is None else list(decision.redirected),
            "peers": [
                {"gpu": gpu, "adapter": adapter, "why": reason, "as_wished": as_wished}
                for gpu, adapter, reason, as_wished in list_peer_paths(decision, answer.given)
            ],
            "peer_wish": decision.wish.value,
        },
        "level": None if answer.level is None else answer.level.word,
        "distance": None if answer.distance is None else answer.distance.name,
        "devices": [
            {"address": address, "provider": given.device.provider, "role": given.device.role}
            for given in answer.given
            for address in given.addresses
        ],
        "notes": list(answer.notes),
    }


def _describe_verdict(request: Request, verdict: NodeVerdict) -> dict[str, Any]:
    return {
        "host": verdict.node.host,
        "node": verdict.node.node,
        "zone": verdict.node.zone,
        "fits": verdict.choice is not None,
        "reason": verdict.reason,
        "notes": list(verdict.notes),
        **_describe_choice(request, verdict.node, verdict.choice),
    }


def _describe_placed_server(request: Request, placed: PlacedServer) -> dict[str, Any]:
    return {
        "host": placed.before.host,
        "node": placed.before.node,
        **_describe_choice(request, placed.before, placed.choice),
    }


def _describe_choice(
    request: Request, node: SnapshotNode, choice: NodeChoice | None
) -> dict[str, Any]:
    if choice is None:
        return {"level": None, "distance": None, "score": None, "devices": [], "cells": {}}
    names = {want.key: want.name for want in request.wants}
    names |= {ports.key: ports.name for ports in request.ports}
    addresses = {device.provider: device.address for device in node.devices}
    devices = choice.devices
    return {
        "level": devices.level.word,
        "distance": devices.distance.name,
        "score": list(devices.score),
        "devices": [
            {
                "alias": names[pick.want],
                "address": addresses[pick.pool],
                "provider": pick.pool,
                "group": pick.group,
                "cell": pick.cell,
            }
            for pick in devices.picks
        ],
        "cells": {str(cell): node_id for cell, node_id in sorted(devices.cells.items())},
    }
