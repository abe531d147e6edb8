# SPDX-License-Identifier: Apache-2.0
"""Whether a server was found as fast as it should be, in its metadata.

The measuring program writes it with the owner's rights, and the owner may write anything. So no
service reads it. An unreadable text means unknown, which is neither accepted nor rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc_common.wire.version import (
    LONGEST_METADATA,
    LaterError,
    WireDocument,
    WireError,
    show_json_value,
)

MEMBER_VERDICT: Final = WireDocument(
    name="member verdict",
    lives="metadata['hpc_accept'] of the server",
    writer="nova_hpc_common.wire.member_verdict:MemberVerdict.dumps",
    readers=("nova_hpc_common.wire.member_verdict:read_member_verdict",),
    # The text is not JSON, because people read it in a table of metadata.
    key="v",
    longest=LONGEST_METADATA,
    cure="measure again: openstack hpc cluster accept",
)

#: The item of the server's metadata.
KEY: Final = "hpc_accept"
#: Verdicts of :mod:`nova_hpc_guest.accept.result`, as words.
ACCEPTED: Final = "accepted"
REJECTING: Final = ("slow", "promise-broken")
VERDICTS: Final = (ACCEPTED, *REJECTING, "refused", "not-measurable", "undecided")
TIERS: Final = ("quick", "full", "cluster")
_VERSION: Final = re.compile(r"v([1-9][0-9]{0,5})(?::|\Z)", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_CAUSE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.ASCII)


@attrs.frozen
class MemberVerdict:
    """The result of the acceptance test of one member.

    :ivar taken: time of the measurement, in seconds since 1970.
    :ivar causes: names of causes; slow probes without a cause are left out.
    """

    verdict: str
    tier: str
    taken: int
    causes: tuple[str, ...] = ()

    @property
    def rejects(self) -> bool:
        """Whether the verdict rejects the server: it is slow, or a promise is broken."""
        return self.verdict in REJECTING

    def dumps(self) -> str:
        """Format the verdict for the server's metadata: ``v1:slow:quick:1764180000:pages-small``.

        Causes that do not fit are left out, the last one first.
        """
        head = f"v{MEMBER_VERDICT.version}:{self.verdict}:{self.tier}:{self.taken}:"
        for count in range(len(self.causes), 0, -1):
            text = head + ",".join(self.causes[:count])
            if len(text) <= LONGEST_METADATA:
                return text
        return head


def read_member_verdict(text: object) -> MemberVerdict:
    """Parse a verdict. Within a version fields may be added behind the last one.

    :raises LaterError: only a later release reads it.
    :raises WireError: it is broken.
    """
    if not isinstance(text, str) or len(text) > LONGEST_METADATA or not text.isascii():
        raise MEMBER_VERDICT.broken(f"is no ASCII text of at most {LONGEST_METADATA} characters")
    version = _VERSION.match(text)
    if version is None:
        raise MEMBER_VERDICT.broken(f"has no version: {show_json_value(text)}")
    MEMBER_VERDICT.check(int(version[1]))
    fields = text.split(":")
    if len(fields) < 5:
        raise MEMBER_VERDICT.broken(f"ends too early: {show_json_value(text)}")
    _, verdict, tier, taken, causes = fields[:5]
    named = tuple(causes.split(",")) if causes else ()
    for value, right in (
        (verdict, verdict in VERDICTS),
        (tier, tier in TIERS),
        (taken, _TIME.fullmatch(taken) is not None),
        (causes, all(map(_CAUSE.fullmatch, named))),
    ):
        if not right:
            raise MEMBER_VERDICT.broken(f"has {show_json_value(value)}")
    return MemberVerdict(verdict, tier, int(taken), named)


def verdict_of_metadata(metadata: Mapping[str, str]) -> MemberVerdict | None:
    """Parse the verdict in a server's metadata; None if there is none that can be read."""
    try:
        return read_member_verdict(metadata[KEY]) if KEY in metadata else None
    except (LaterError, WireError):
        return None
