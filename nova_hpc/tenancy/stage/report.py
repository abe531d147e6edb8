# SPDX-License-Identifier: Apache-2.0
"""The exit document of a check: its way out of a service VM, and its meaning.

This module also runs in the service VM, so it needs only the standard library. A serial console
also carries the kernel's lines, and loses bytes. So the document is repeated
on lines of its own, each with the nonce of this run and a checksum::

    nova-hpc-clean <nonce> <crc32> {"v": 1, "results": {"0": {"ok": true, ...}}}

The nonce excludes the output of an earlier run, or of another writer to the console.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, Final

MARK: Final = "nova-hpc-clean"
VERSION: Final = 1
#: Bytes of a console that are read; longer output is cut off.
LONGEST: Final = 1 << 20
_LONGEST_REASON: Final = 300
_LINE: Final = re.compile(rf"{MARK} ([0-9a-f]{{16,64}}) ([0-9a-f]{{8}}) (\{{.*\}})")


class ReportError(Exception):
    """The report of a check from a service VM is not valid; the text gives the reason."""


def format_report_line(nonce: str, results: dict[str, dict[str, Any]]) -> str:
    """Return the line that contains the results.

    :param results: number of the device -> ``{"ok": bool, "reason": str, ...}``.
    """
    body = json.dumps({"v": VERSION, "results": results}, sort_keys=True)
    return f"{MARK} {nonce} {zlib.crc32(body.encode()):08x} {body}"


def find_stage_report(text: str, nonce: str) -> dict[str, dict[str, Any]] | None:
    """Return this run's document from the text of a console; None if it is not there (yet).

    :raises ReportError: it is complete, but not valid.
    """
    for number, check, body in reversed(_LINE.findall(text.replace("\r", ""))):
        if number == nonce and f"{zlib.crc32(body.encode()):08x}" == check:
            return _parse_report_body(body)
    return None


def _parse_report_body(body: str) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(body)
        if document["v"] != VERSION:
            raise ReportError(f"it is of version {document['v']!r}, and {VERSION} is known")
        results = document["results"]
        return {
            str(key): {**value, "ok": _expect_bool(value["ok"])} for key, value in results.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ReportError(f"it cannot be read ({type(error).__name__})") from error


def _expect_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def proof_of_result(result: dict[str, Any]) -> str:
    """Return how a device's data were erased, as printable text; "" if no check proves it."""
    answers = [answer for answer in result.values() if isinstance(answer, dict)]
    proofs = [str(answer["proof"]) for answer in answers if answer.get("proof")]
    return "".join(character for character in "; ".join(proofs) if character.isprintable())[
        :_LONGEST_REASON
    ]


def failure_reason_of(result: dict[str, Any]) -> str:
    """Return the reason why a device did not pass, as printable text."""
    text = str(result.get("reason") or "no reason given")
    return "".join(character if character.isprintable() else " " for character in text)[
        :_LONGEST_REASON
    ]
