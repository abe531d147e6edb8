# SPDX-License-Identifier: Apache-2.0
"""A machine that is measured by a command which prints samples, wherever that runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.guest.accept.first_sample import FirstSample, read_first_sample
from nova_hpc.guest.accept.probes import FULL, Probe
from nova_hpc.guest.accept.sample import AcceptanceError, Sample, read_sample
from nova_hpc_tools.accept.remote_calls import (
    CallEnd,
    RemoteCall,
    run_calls,
    started_calls,
    wait_for_calls,
)

#: Seconds beside the limits of the probes themselves: to connect, to look at tools, to end.
_MARGIN: Final = 90.0
_SERVE_LIMIT: Final = 60.0
#: Members that are asked at the same time; a connection takes some memory and a process here.
_AT_ONCE: Final = 32
_LOOK: Final = 0.05


class RemoteMember:
    """One machine. Its text is another's: what makes no sense is an error, and nothing else.

    :param build_words: makes of the words of ``nova-hpc-guest`` those of a command here.
    :param scale: part of the work that probes of CPU and memory are given.
    :param environment: of that command; None: this command's.
    """

    def __init__(
        self,
        build_words: Callable[[Sequence[str]], list[str]],
        tier: str,
        scale: float = 1.0,
        more: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._build_words = build_words
        self._tier = tier
        self._more = tuple(more)
        self.environment = environment
        self.scale = scale

    def ask_first(self, busy: bool = False) -> FirstSample:
        """What has to be known before it is measured.

        :param busy: measure it whatever else it does.
        :raises AcceptanceError: it does not answer, or with something else.
        """
        (answer,) = ask_members([self], busy)
        if isinstance(answer, str):
            raise AcceptanceError(answer)
        return answer

    def measure_round(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None = None
    ) -> Sample:
        """Run each probe once, there.

        :raises AcceptanceError: it does not answer, or with something else.
        """
        words = self.build_sample_words(probes, settings, None)
        (ended,) = run_calls([words], _find_limit(probes), self.environment)
        return read_sample(_take_document(ended))

    def build_first_words(self, busy: bool) -> list[str]:
        """The command that says what has to be known first."""
        words = ["--sample", "--first", "--only", "clock", *(["--busy"] if busy else [])]
        return self._accept_words(words)

    def build_serve_words(self, probe: Probe, seconds: float) -> list[str]:
        """The command that answers another machine's probe, for so long."""
        return self._accept_words(["--serve", probe.name, "--budget", f"{seconds:g}"])

    def build_sample_words(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None, peer: str | None
    ) -> list[str]:
        """The command that prints one round.

        :param peer: address of the machine that answers; None: no other one.
        """
        words = ["--sample", "--only", ",".join(probe.name for probe in probes)]
        words += ["--scale", f"{self.scale:g}"]
        for name, value in (settings or {}).items():
            words += ["--setting", f"{name}={value}"]
        if peer is not None:
            words += ["--peer", peer]
        return self._accept_words(words)

    def _accept_words(self, words: Sequence[str]) -> list[str]:
        tier = ["--tier", self._tier, "--yes"] if self._tier == FULL else []
        return self._build_words(["accept", *tier, *words, *self._more, "--hold"])


def ask_members(members: Sequence[RemoteMember], busy: bool = False) -> list[FirstSample | str]:
    """Ask several members at the same time what has to be known first.

    :param busy: measure them whatever else they do.
    :returns: of each its answer, or why there is none.
    """
    answers: list[FirstSample | str] = []
    for start in range(0, len(members), _AT_ONCE):
        some = members[start : start + _AT_ONCE]
        commands = [member.build_first_words(busy) for member in some]
        for ended in run_calls(commands, _MARGIN, some[0].environment):
            try:
                answers.append(read_first_sample(_take_document(ended)))
            except AcceptanceError as error:
                answers.append(str(error))
    return answers


@attrs.frozen
class PairCall:
    """Two members at a time.

    :ivar client: asks.
    :ivar server: answers.
    :ivar address: the server's.
    """

    client: RemoteMember
    server: RemoteMember
    address: str


def measure_pairs(
    pairs: Sequence[PairCall],
    probes: Sequence[Probe],
    settings: Mapping[str, str] | None = None,
) -> list[Sample | str]:
    """Measure between two machines each, all pairs at the same time.

    :param probes: of one run of one tool, whose server the first one names.
    :returns: of each pair its sample, or why there is none.
    """
    limit = _find_limit(probes)
    environment = pairs[0].client.environment if pairs else None
    results: list[Sample | str] = ["it was not measured"] * len(pairs)
    serving = [pair.server.build_serve_words(probes[0], 2 * limit) for pair in pairs]
    with started_calls(serving, 2 * limit, environment) as servers:
        refusals = _wait_for_servers(servers)
        places = [place for place, refusal in enumerate(refusals) if refusal is None]
        asking = [
            pairs[place].client.build_sample_words(probes, settings, pairs[place].address)
            for place in places
        ]
        for place, refusal in enumerate(refusals):
            if refusal is not None:
                results[place] = f"the other one: {refusal}"
        with started_calls(asking, limit, environment) as clients:
            for place, ended in zip(places, wait_for_calls(clients), strict=True):
                try:
                    results[place] = read_sample(_take_document(ended))
                except AcceptanceError as error:
                    results[place] = str(error)
    return results


def _wait_for_servers(servers: Sequence[RemoteCall]) -> list[str | None]:
    """Of each server why it does not serve; None: it does."""
    until = time.monotonic() + _SERVE_LIMIT
    states: dict[int, str | None] = {}
    while len(states) < len(servers):
        for place, call in enumerate(servers):
            if place in states:
                continue
            ended = call.poll()
            if ended is not None:
                states[place] = ended.problem or "it does not answer the probe"
            elif "serving" in call.read_output():
                states[place] = None
            elif time.monotonic() > until:
                states[place] = f"it does not serve within {_SERVE_LIMIT:g} s"
        time.sleep(_LOOK)
    return [states[place] for place in range(len(servers))]


def _find_limit(probes: Sequence[Probe]) -> float:
    return _MARGIN + sum(2 * probe.limit for probe in probes)


def _take_document(ended: CallEnd) -> str:
    """The line of the document; what shells and ssh say before it is passed over.

    :raises AcceptanceError: the command did not end well.
    """
    line = next((text for text in ended.output.splitlines() if text.startswith("{")), "")
    if ended.problem is not None and not line:
        raise AcceptanceError(ended.problem)
    if not line:
        raise AcceptanceError("what it printed is no sample")
    return line
