# SPDX-License-Identifier: Apache-2.0
"""The rule of the watch by brute force: it looks at the whole history, at every moment."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from nova_hpc.tenancy.watch import rules
from nova_hpc.tenancy.watch.look import (
    DRIVER,
    FATAL,
    NONFATAL,
    PARENT_FATAL,
    PORT_FATAL,
    DeviceLook,
)
from nova_hpc.tenancy.watch.rules import ServerCondition
from nova_hpc_common.wire.server_faults import FaultWord


@attrs.frozen
class Moment:
    """One look at one device of a server."""

    time: float
    standing: ServerCondition
    look: DeviceLook


def judge_history(history: Sequence[Moment]) -> list[tuple[set[FaultWord], set[FaultWord]]]:
    """For each look, the faults that it tells, and the faults that it finds over."""
    answers: list[tuple[set[FaultWord], set[FaultWord]]] = []
    told: dict[FaultWord, int] = {}
    over: dict[FaultWord, int] = {}
    for number in range(len(history)):
        found, cleared = set(), set()
        if history[number].standing is ServerCondition.AWAY:
            cleared, told, over = set(told), {}, {}
        for word in rules.NODE_WORDS:
            if word in told:
                run = _run(history, number, word, False, told[word] + 1)
                if run and len(run) >= 4 and history[run[-1]].time - history[run[0]].time >= 45:
                    cleared.add(word)
                    del told[word]
                    over[word] = number
                continue
            run = _run(history, number, word, True, over.get(word, -1) + 1)
            if not run:
                continue
            look = history[number].look
            patience = 1.5 if look.present is False else 20
            sure = word is FaultWord.GONE and look.left_guest
            if sure or (len(run) >= 2 and history[number].time - history[run[0]].time >= patience):
                found.add(word)
                told[word] = number
        answers.append((found, cleared))
    return answers


def _run(
    history: Sequence[Moment], number: int, word: FaultWord, faulty: bool, first: int
) -> list[int]:
    """The looks in a row, up to this one, that are settled and agree."""
    run: list[int] = []
    while number >= first and _is_settled(history[number]):
        if _shows(history, number, word) is not faulty:
            break
        run.insert(0, number)
        number -= 1
    return run


def _is_settled(moment: Moment) -> bool:
    busy = moment.look.asleep or moment.look.resetting
    return moment.standing is ServerCondition.SETTLED and not busy


def _since(history: Sequence[Moment], number: int, *standings: ServerCondition) -> int:
    """The first look after the last one with such a standing."""
    while number >= 0 and history[number].standing not in standings:
        number -= 1
    return number + 1


def _shows(history: Sequence[Moment], number: int, word: FaultWord) -> bool | None:
    look = history[number].look
    tenancy = _since(history, number, ServerCondition.AWAY)
    start = _since(history, number, ServerCondition.AWAY, ServerCondition.RESTART)
    # Two looks in a row, without a restart between them.
    pairs = [
        (history[index - 1].look, history[index].look)
        for index in range(tenancy + 1, number + 1)
        if history[index - 1].standing is not ServerCondition.RESTART
        and history[index].standing is not ServerCondition.RESTART
    ]
    if word is FaultWord.GONE:
        if look.left_guest or look.present is False or look.silent:
            return True
        return False if look.present and look.silent is False else None
    if word is FaultWord.LINK:
        verdicts = []
        for name in ("width", "speed"):
            agreed = [
                getattr(b, name)
                for a, b in pairs
                if (a.width, a.speed) == (b.width, b.speed) and b.readable and getattr(b, name)
            ]
            if agreed and getattr(look, name) is not None:
                verdicts.append(getattr(look, name) < max(agreed))
        return any(verdicts) if verdicts else None
    if word is FaultWord.PORT:
        active = {name for a, b in pairs for name in b.ports if a.ports.get(name) and b.ports[name]}
        states = [not look.ports[name] for name in active & look.ports.keys()]
        return any(states) if states else None
    if word is FaultWord.FIRMWARE:
        verdicts = []
        for name in ("ids", "firmware"):
            agreed = [
                getattr(history[index].look, name)
                for index in range(start + 1, number + 1)
                if getattr(history[index].look, name) is not None
                and getattr(history[index].look, name) == getattr(history[index - 1].look, name)
            ]
            if agreed and getattr(look, name) is not None:
                verdicts.append(getattr(look, name) != agreed[0])
        return any(verdicts) if verdicts else None
    return _has_errors(history[start : number + 1])


def _has_errors(history: Sequence[Moment]) -> bool | None:
    """Of counters that never fall: the growth since one hour ago, or since the first look."""
    now = history[-1]
    growth = {}
    for name, value in now.look.counters.items():
        known = [(m.time, m.look.counters[name]) for m in history if name in m.look.counters]
        old = [count for time, count in known if time <= now.time - 3600]
        growth[name] = value - (old[-1] if old else known[0][1])
    if not growth:
        return None
    if any(growth.get(name) for name in (FATAL, PARENT_FATAL, PORT_FATAL, DRIVER)):
        return True
    return growth.get(NONFATAL, 0) > 1.0
