# SPDX-License-Identifier: Apache-2.0
"""One round of one machine: its probes' values, and the kernel's counters during the round.

``accept --sample`` prints it, and ``accept --beside COMMAND`` reads the output of COMMAND.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .facts import GuestFacts, parse_facts

SCHEMA: Final = "nova-hpc/acceptance-sample"
VERSION: Final = 1
READS: Final = (1,)
#: Longest text that is looked at.
LONGEST: Final = 1 << 22
_MOST: Final = 4096


class AcceptanceError(Exception):
    """A text of ``accept`` that cannot be used; the error gives the reason and a remedy."""


class Reading(NamedTuple):
    """One run of a probe. Times are in seconds, over all CPUs."""

    value: float
    wall: float = 0.0
    #: CPU time of the probe itself.
    own: float = 0.0
    #: CPU time of everything else on the probe's CPUs.
    others: float = 0.0
    #: Time that the hypervisor took from the probe's CPUs, according to its own count.
    steal: float = 0.0
    #: Time that the probe was ready and did not run.
    waited: float = 0.0
    #: Time in which this command looked; if less than *wall*, it was itself kept from running.
    watched: float = 0.0
    #: Time that the kernel stopped the probe for a quota.
    throttled: float = 0.0
    #: Interface, or ``ib:`` and a device -> bytes that left it.
    sent: Mapping[str, int] = {}
    #: Part of the probe's memory that is in large pages; None if not looked at.
    large_pages: float | None = None
    #: The tool was ended at its limit; the value is the best that it can have reached.
    at_limit: bool = False
    #: Words of the tool about its data path (``gdrdma``, ``socket``, ``ib``).
    words: tuple[str, ...] = ()
    #: Microseconds -> how often the tool counted them; empty if unknown.
    counts: Mapping[int, int] = {}


class Sample(NamedTuple):
    """One round of measurements on one machine: facts, readings, and probes without a value."""

    facts: GuestFacts
    readings: dict[str, Reading]
    #: Probe -> the missing tool, or the missing thing to measure.
    missing: dict[str, str] = {}
    #: Probe -> the failure of its tool.
    failed: dict[str, str] = {}


def build_sample_data(sample: Sample) -> dict[str, Any]:
    """Return the sample as a JSON object."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "facts": sample.facts._asdict(),
        "probes": {
            name: {
                key: {str(name): n for name, n in value.items()}
                if isinstance(value, Mapping)
                else value
                for key, value in reading._asdict().items()
                if value != Reading._field_defaults.get(key, value) or key == "value"
            }
            for name, reading in sorted(sample.readings.items())
        },
        "missing": dict(sorted(sample.missing.items())),
        "failed": dict(sorted(sample.failed.items())),
    }


def write_sample(sample: Sample) -> str:
    """Format the sample as one line of JSON."""
    return json.dumps(build_sample_data(sample), separators=(",", ":"))


def read_sample(text: str) -> Sample:
    """Read the output of :func:`write_sample`, for example from another machine.

    :raises AcceptanceError: the text is something else.
    """
    return parse_sample(load_object(text, SCHEMA, READS, "sample"))


def load_object(text: str, schema: str, reads: tuple[int, ...], name: str) -> dict[str, Any]:
    """Parse the JSON object in *text*, if its schema and version are these.

    The rule is the one of nova_hpc_common/wire/version.py, which a guest does not have.

    :param name: of the text, for errors.
    :raises AcceptanceError: they differ, or the text is not JSON.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise AcceptanceError(f"the {name} is no text of at most {LONGEST} characters")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AcceptanceError(f"the {name} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise AcceptanceError(f"the {name} is not of schema {schema}")
    version = data.get("version")
    # True == 1 == 1.0 in Python, but neither true nor 1.0 is a version.
    if type(version) is not int or version not in reads:
        raise AcceptanceError(
            f"the {name} has version {shorten(version)}, and this command reads "
            f"{', '.join(map(str, reads))}; use the command that wrote it"
        )
    return data


def parse_sample(data: object) -> Sample:
    """Parse a sample from its JSON object.

    :raises AcceptanceError: something in it is not as it should be.
    """
    content = expect_object(data, "the sample")
    probes = expect_object(content.get("probes"), "probes of the sample")
    reasons = [
        expect_object(content.get(key, {}), f"{key} of the sample") for key in ("missing", "failed")
    ]
    facts = expect_object(content.get("facts"), "facts of the sample")
    try:
        parsed = parse_facts(facts)
    except ValueError as error:
        raise AcceptanceError(f"facts of the sample: {error}") from error
    return Sample(
        parsed,
        {name: parse_reading(name, expect_object(item, name)) for name, item in probes.items()},
        *({name: take_text(text) for name, text in texts.items()} for texts in reasons),
    )


def parse_reading(name: str, item: dict[str, Any]) -> Reading:
    """Parse one probe's part of a sample.

    :raises AcceptanceError: a number in it is none.
    """
    values: dict[str, Any] = {}
    for key in ("value", "wall", "own", "others", "steal", "waited", "watched", "throttled"):
        number: Any = item.get(key, 0.0)
        if not is_number(number) or number < 0 or (key == "value" and number <= 0):
            raise AcceptanceError(f"{shorten(name)}: {key} is {shorten(number)}")
        values[key] = float(number)
    sent = expect_object(item.get("sent", {}), f"sent of {shorten(name)}")
    if not all(is_number(amount) for amount in sent.values()):
        raise AcceptanceError(f"{shorten(name)}: sent is {shorten(sent)}")
    large = item.get("large_pages")
    if large is not None and not _is_part(large):
        raise AcceptanceError(f"{shorten(name)}: large_pages is {shorten(large)}")
    counts = expect_object(item.get("counts", {}), f"counts of {shorten(name)}")
    if not all(map(_is_count, counts, counts.values())):
        raise AcceptanceError(f"{shorten(name)}: counts is {shorten(counts)}")
    words = item.get("words", [])
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise AcceptanceError(f"{shorten(name)}: words is {shorten(words)}")
    return Reading(
        **values,
        sent={interface: int(amount) for interface, amount in sent.items()},
        large_pages=None if large is None else float(large),
        at_limit=item.get("at_limit") is True,
        words=tuple(words),
        counts={int(value): count for value, count in counts.items()},
    )


def expect_object(value: object, where: str) -> dict[str, Any]:
    """Return *value* if it is a JSON object of bounded size.

    :raises AcceptanceError: it is not.
    """
    if not isinstance(value, dict) or len(value) > _MOST:
        raise AcceptanceError(f"{where}: {shorten(value)} is no object")
    return value


def is_number(value: object) -> bool:
    """Return whether the value is a finite number that arithmetic can take, and no boolean."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def take_text(value: object) -> str:
    """Make a text of another machine printable and of bounded length."""
    text = value if isinstance(value, str) else ascii(value)
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def _is_part(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _is_count(value: str, count: Any) -> bool:
    whole = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1e15
    return whole and re.fullmatch(r"\d{1,6}", value, re.ASCII) is not None


def shorten(value: object) -> str:
    """Format some value in ASCII and of bounded length, for messages."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
