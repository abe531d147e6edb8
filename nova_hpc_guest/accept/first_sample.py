# SPDX-License-Identifier: Apache-2.0
"""A machine's description of itself for a machine that is about to measure it.

``accept --sample --first`` prints it: a sample with one more key, so a reader of samples can read
it, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..compare import GuestFinding
from ..document import DocumentError, GuestDocument, parse_guest_document
from .evidence import LinkFaults
from .refusal import Refusal
from .sample import (
    READS,
    SCHEMA,
    AcceptanceError,
    Sample,
    build_sample_data,
    expect_object,
    is_number,
    load_object,
    parse_sample,
    shorten,
    take_text,
)

#: The key of the sample.
KEY: Final = "first"
_MOST: Final = 4096


class FirstSample(NamedTuple):
    """A round of measurements, and the data that the next rounds need."""

    sample: Sample
    #: Part of the work of CPU and memory that suits the machine.
    scale: float = 1.0
    #: The cloud's promise; None without one, or if it cannot be read.
    promise: GuestDocument | None = None
    #: Why the promise is missing.
    unpromised: str = ""
    findings: tuple[GuestFinding, ...] = ()
    links: LinkFaults = LinkFaults()
    refused: Refusal | None = None
    #: Probes that cannot be made there, with the reasons.
    obstacles: Mapping[str, str] = {}


def write_first_sample(first: FirstSample, document: bytes | None) -> str:
    """Format the first sample as one line of JSON.

    :param document: the promise as the cloud wrote it.
    """
    content = {
        "scale": first.scale,
        "document": None if document is None else document.decode("utf-8", "replace"),
        "unpromised": first.unpromised,
        "findings": [finding._asdict() for finding in first.findings],
        "narrow": list(first.links.narrow),
        "slow": list(first.links.slow),
        "refused": None if first.refused is None else first.refused._asdict(),
        "obstacles": dict(sorted(first.obstacles.items())),
    }
    return json.dumps({**build_sample_data(first.sample), KEY: content}, separators=(",", ":"))


def read_first_sample(text: str) -> FirstSample:
    """Read the output of :func:`write_first_sample`, for example from another machine.

    :raises AcceptanceError: the text is something else.
    """
    data = load_object(text, SCHEMA, READS, "sample")
    content = expect_object(data.get(KEY), f"{KEY} of the sample")
    scale = content.get("scale")
    if not is_number(scale) or not 0 < float(str(scale)) <= 1:
        raise AcceptanceError(f"{KEY} of the sample: scale is {shorten(scale)}")
    refused = content.get("refused")
    if refused is not None:
        stated = expect_object(refused, "refused of the sample")
        refused = Refusal(take_text(stated.get("kind")), take_text(stated.get("text")))
    return FirstSample(
        parse_sample(data),
        float(str(scale)),
        _parse_promise(content.get("document")),
        take_text(content.get("unpromised", "")),
        tuple(map(_parse_finding, _take_list(content, "findings"))),
        LinkFaults(
            tuple(map(take_text, _take_list(content, "narrow"))),
            tuple(map(take_text, _take_list(content, "slow"))),
        ),
        refused,
        {
            name: take_text(text)
            for name, text in expect_object(content.get("obstacles", {}), "obstacles").items()
        },
    )


def _parse_promise(text: object) -> GuestDocument | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise AcceptanceError(f"{KEY} of the sample: document is {shorten(text)}")
    try:
        return parse_guest_document(text.encode("utf-8", "replace"))
    except DocumentError:
        # The machine itself reports that in its findings.
        return None


def _parse_finding(value: object) -> GuestFinding:
    item = expect_object(value, "a finding of the sample")
    device, wrong = item.get("device"), item.get("wrong")
    if not (device is None or type(device) is int) or not isinstance(wrong, bool):
        raise AcceptanceError(f"a finding of the sample: {shorten(item)}")
    return GuestFinding(take_text(item.get("kind")), device, take_text(item.get("text")), wrong)


def _take_list(content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key, [])
    if not isinstance(value, list) or len(value) > _MOST:
        raise AcceptanceError(f"{KEY} of the sample: {key} is {shorten(value)}")
    return value
