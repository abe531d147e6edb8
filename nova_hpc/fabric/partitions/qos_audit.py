# SPDX-License-Identifier: Apache-2.0
"""Audit of the quality of service that the service levels of partitions need.

A partition's ``sl`` is only a number in the path record. It separates traffic if the manager has
``qos TRUE`` and maps the level to a virtual lane of its own, with a weight in the arbitration.
Source: ``QoS Management in OpenSM`` (doc/opensm/QoS_management_in_OpenSM.txt of opensm 3.3.23) and
the defaults of ``osm_subnet.c``: without a value, SL n is on VL n, and each VL has a weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState
from nova_hpc.fabric.partitions.manager_options import is_switched_on

_ROW: Final = "service_levels"
_LEVEL: Final = re.compile(r"(?<![\w-])sl[ \t]*=[ \t]*(\d{1,2})(?!\w)", re.ASCII)
_COMMENT: Final = re.compile(r"#.*$", re.MULTILINE)
#: The virtual lane of management packets; data that is mapped to it is dropped.
_DROPPED: Final = 15
#: Prefixes of options for kinds of ports; each option wins over the general one.
_KINDS: Final = ("ca", "swe", "sw0", "rtr")
_UNSET: Final = ("", "(null)")
_DEFAULT_VLS: Final = tuple(range(15))
#: As opensm has it: SL 15 is on VL 7.
_DEFAULT_MAP: Final = (*range(15), 7)
_CURE: Final = (
    "qos TRUE, and in qos_sl2vl and qos_vlarb_high or qos_vlarb_low a virtual lane with a weight "
    "for each level; else a service level separates no traffic"
)


def audit_service_levels(
    options: Mapping[str, str] | None, partitions_text: str | None
) -> tuple[AuditRow, ...]:
    """Check the QoS settings for the service levels of partitions; () if all levels are 0.

    :param options: of the manager; None if they cannot be read.
    :param partitions_text: its file of partitions; None if it is absent or cannot be read.
    """
    text = _COMMENT.sub("", partitions_text or "")
    levels = sorted({int(level) for level in _LEVEL.findall(text)} - {0})
    if not levels:
        return ()
    state, reason = _judge_levels(options, levels)
    return (AuditRow(_ROW, "", state, reason, "" if state is AuditState.MET else _CURE),)


def _judge_levels(options: Mapping[str, str] | None, levels: list[int]) -> tuple[AuditState, str]:
    shown = ", ".join(map(str, levels))
    if options is None:
        return AuditState.UNKNOWN, "the file of options cannot be read"
    if not is_switched_on(options, "qos"):
        qos = options.get("qos", "FALSE")
        return AuditState.NOT_MET, f"partitions have level {shown}, and qos is {qos}"
    for kind in _KINDS:
        try:
            reason = _explain_kind(options, kind, levels)
        except ValueError as error:
            return AuditState.UNKNOWN, str(error)
        if reason is not None:
            return AuditState.NOT_MET, reason
    return AuditState.MET, f"level {shown}: qos TRUE, each on a virtual lane with a weight"


def _explain_kind(options: Mapping[str, str], kind: str, levels: list[int]) -> str | None:
    """Explain why one kind of ports does not separate a service level; None if it does.

    :param options: opensm's options in force.
    :param kind: part of an option's name, such as ``ca``.
    :raises ValueError: opensm would not accept a value.
    """
    lanes = _read_map(options, kind)
    most = _read_most_lanes(options, kind)
    lent = _read_weights(options, kind)
    for level in levels:
        lane = lanes[level]
        if lane == _DROPPED:
            return f"qos_{kind}_sl2vl: level {level} is on VL 15, so its packets are dropped"
        if lane == lanes[0]:
            return f"qos_{kind}_sl2vl: level {level} shares VL {lane} with level 0"
        if lane >= most:
            lanes_text = f"there are {most} virtual lanes, and level {level} is on {lane}"
            return f"qos_{kind}_max_vls: {lanes_text}"
        if not lent.get(lane):
            return f"qos_{kind}_vlarb: VL {lane} of level {level} has no weight"
    return None


def _read_option(options: Mapping[str, str], kind: str, name: str) -> tuple[str, str]:
    """Return name and value of the option in force of a port kind; the value is "" if unset."""
    own = f"qos_{kind}_{name}"
    if options.get(own, "") not in _UNSET:
        return own, options[own]
    value = options.get(f"qos_{name}", "")
    return f"qos_{name}", "" if value in _UNSET else value


def _read_map(options: Mapping[str, str], kind: str) -> tuple[int, ...]:
    name, text = _read_option(options, kind, "sl2vl")
    if not text:
        return _DEFAULT_MAP
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(_DEFAULT_MAP) or not all(_is_lane(part) for part in parts):
        raise ValueError(f"{name} is no list of 16 virtual lanes")
    return tuple(map(int, parts))


def _read_most_lanes(options: Mapping[str, str], kind: str) -> int:
    name, text = _read_option(options, kind, "max_vls")
    if not text or text == "0":
        return _DROPPED
    if not _is_lane(text):
        raise ValueError(f"{name} is {text!r}, no number of virtual lanes")
    return int(text)


def _read_weights(options: Mapping[str, str], kind: str) -> dict[int, int]:
    """Return virtual lane -> its weight in the high and the low arbitration table together."""
    weights: dict[int, int] = {}
    for table in ("vlarb_high", "vlarb_low"):
        name, text = _read_option(options, kind, table)
        if not text:
            # The defaults give each lane a weight in one of the two tables.
            default = {0: 4} if table == "vlarb_high" else dict.fromkeys(_DEFAULT_VLS[1:], 4)
            pairs = list(default.items())
        else:
            pairs = [_read_pair(part, name) for part in text.split(",") if part.strip()]
        for lane, weight in pairs:
            weights[lane] = weights.get(lane, 0) + weight
    return weights


def _read_pair(part: str, name: str) -> tuple[int, int]:
    lane, _, weight = part.strip().partition(":")
    if not (_is_lane(lane) and re.fullmatch(r"\d{1,3}", weight, re.ASCII)):
        raise ValueError(f"{name}: {part.strip()!r} is no virtual lane with a weight")
    return int(lane), int(weight)


def _is_lane(text: str) -> bool:
    return re.fullmatch(r"\d{1,2}", text, re.ASCII) is not None and int(text) <= _DROPPED
