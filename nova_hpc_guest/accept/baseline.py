# SPDX-License-Identifier: Apache-2.0
"""A baseline in a file: rounds of a machine that is as it should be, and its description."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .facts import GuestFacts
from .ratio import LEAST_PAIRS
from .sample import AcceptanceError, Sample, build_sample_data, load_object, parse_sample, shorten

SCHEMA: Final = "nova-hpc/acceptance-baseline"
VERSION: Final = 1
READS: Final = (1,)
_MOST: Final = 1000
#: Firmware and kernel keep some of the memory.
_MEMORY_SHARE: Final = 0.10


class AcceptanceBaseline(NamedTuple):
    """Content of a baseline file: the machine's properties, its measured rounds, and their hash."""

    #: The machine: another one is not compared with it.
    key: dict[str, Any]
    samples: tuple[Sample, ...]
    sha256: str


def build_key(facts: GuestFacts, versions: Mapping[str, str], scale: float = 1.0) -> dict[str, Any]:
    """Return the properties that have to be the same on both machines, as a JSON object.

    :param scale: part of the full work that the probes did.
    """
    return {
        "model": facts.model,
        "cpus": len(facts.online),
        "sockets": facts.sockets,
        "nodes": facts.nodes,
        "memory_gib": facts.memory_gib,
        "devices": dict(sorted(facts.devices.items())),
        "rdma": dict(sorted(facts.rdma.items())),
        "tools": dict(sorted(versions.items())),
        "scale": scale,
    }


def find_key_differences(
    base: Mapping[str, Any], test: Mapping[str, Any], tools: Sequence[str]
) -> list[str]:
    """List the differences of two machines in properties that have to be the same, as texts.

    :param tools: tools that the probes need; others do not matter.
    """
    differences = []
    for name in ("model", "cpus", "sockets", "nodes", "devices", "rdma", "scale"):
        if base.get(name) != test.get(name):
            differences.append(f"{name} {shorten(base.get(name))} and {shorten(test.get(name))}")
    old, new = base.get("memory_gib"), test.get("memory_gib")
    if isinstance(old, int) and isinstance(new, int):
        if abs(old - new) > max(1.0, _MEMORY_SHARE * max(old, new)):
            differences.append(f"memory {old} and {new} GiB")
    elif old != new:
        differences.append(f"memory {shorten(old)} and {shorten(new)} GiB")
    versions: list[Any] = [
        side["tools"] if isinstance(side.get("tools"), dict) else {} for side in (base, test)
    ]
    for tool in sorted(set(tools)):
        first, second = (side.get(tool) for side in versions)
        if first is not None and second is not None and first != second:
            differences.append(f"{tool} {shorten(first)} and {shorten(second)}")
    return differences


def write_baseline(key: Mapping[str, Any], samples: Sequence[Sample]) -> str:
    """Format the text of a baseline file, with a hash of its content."""
    content = {"key": dict(key), "samples": [build_sample_data(sample) for sample in samples]}
    data = {"schema": SCHEMA, "version": VERSION, **content, "sha256": _sum_content(content)}
    return json.dumps(data, indent=1) + "\n"


def read_baseline(text: str) -> AcceptanceBaseline:
    """Read the content of a file.

    :raises AcceptanceError: the text is not a baseline, was edited, has too few rounds, or is of
        a later version.
    """
    data = load_object(text, SCHEMA, READS, "baseline")
    content = {"key": data.get("key"), "samples": data.get("samples")}
    stated = data.get("sha256")
    if stated != _sum_content(content):
        raise AcceptanceError(
            "the baseline was changed after it was measured (its sha256 differs): measure it again "
            "with --save-baseline"
        )
    key, samples = content["key"], content["samples"]
    if not isinstance(key, dict) or not isinstance(samples, list) or len(samples) > _MOST:
        raise AcceptanceError("the baseline has no key, or no list of samples")
    if len(samples) < LEAST_PAIRS:
        raise AcceptanceError(
            f"the baseline has {len(samples)} rounds, and {LEAST_PAIRS} are the fewest that can "
            "be compared: measure it again"
        )
    return AcceptanceBaseline(key, tuple(parse_sample(sample) for sample in samples), str(stated))


def join_baselines(baselines: Sequence[AcceptanceBaseline]) -> AcceptanceBaseline:
    """Join files of several machines of one kind: a single machine may be fast or slow by chance.

    :raises AcceptanceError: they are of different kinds.
    """
    first, *others = baselines
    for other in others:
        differences = find_key_differences(first.key, other.key, list(first.key.get("tools") or ()))
        if differences:
            raise AcceptanceError(
                f"the baselines are of different machines: {'; '.join(differences)}"
            )
    sums = "".join(baseline.sha256 for baseline in baselines)
    return AcceptanceBaseline(
        first.key,
        tuple(sample for baseline in baselines for sample in baseline.samples),
        first.sha256 if not others else hashlib.sha256(sums.encode("ascii", "replace")).hexdigest(),
    )


def _sum_content(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii", "replace")).hexdigest()
