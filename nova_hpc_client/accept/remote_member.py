# SPDX-License-Identifier: Apache-2.0
"""A machine that is measured by a command that prints samples, on this machine or another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_client.accept.remote_calls import (
    CallEnd,
    RemoteCall,
    run_calls,
    started_calls,
    wait_for_calls,
)
from nova_hpc_guest.accept.first_sample import FirstSample, read_first_sample
from nova_hpc_guest.accept.probes import CLUSTER, FULL, Probe
from nova_hpc_guest.accept.sample import AcceptanceError, Sample, read_sample

#: Seconds added to the limits of the probes themselves: to connect, to check tools, to end.
_MARGIN: Final = 90.0
_SERVE_LIMIT: Final = 60.0
#: Members that are contacted at the same time; each connection needs a process and memory here.
_AT_ONCE: Final = 32
_LOOK: Final = 0.05


class RemoteMember:
    """A machine to measure, reached by a command. Its output is not trusted.

    Invalid output only gives an error.

    :param build_words: turns words of ``nova-hpc-guest`` into a command that runs here.
    :param tier: the tier of probes: quick, full or cluster.
    :param scale: part of the full work that probes of CPU and memory do.
    :param more: further words of ``nova-hpc-guest accept`` for every call.
    :param environment: environment of the command; None for this process's own.
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
        """Read the machine's first sample: the facts that are needed before it is measured.

        :param busy: measure it even if it is busy.
        :raises AcceptanceError: it does not answer, or its answer is invalid.
        """
        (answer,) = ask_members([self], busy)
        if isinstance(answer, str):
            raise AcceptanceError(answer)
        return answer

    def measure_round(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None = None
    ) -> Sample:
        """Run each probe once on the machine.

        :raises AcceptanceError: it does not answer, or its answer is invalid.
        """
        words = self.build_sample_words(probes, settings, None)
        (ended,) = run_calls([words], _find_limit(probes), self.environment)
        return read_sample(_take_document(ended))

    def build_first_words(self, busy: bool) -> list[str]:
        """Build the command that prints the member's first sample.

        :param busy: measure also if the machine is busy.
        """
        words = ["--sample", "--first", "--only", "clock", *(["--busy"] if busy else [])]
        return self._accept_words(words)

    def build_serve_words(self, probe: Probe, seconds: float) -> list[str]:
        """Build the command that answers another machine's probe for *seconds*."""
        return self._accept_words(["--serve", probe.name, "--budget", f"{seconds:g}"])

    def build_sample_words(
        self,
        probes: Sequence[Probe],
        settings: Mapping[str, str] | None,
        peer: str | None,
        hosts: Sequence[str] = (),
    ) -> list[str]:
        """Build the command that measures one round and prints the sample.

        :param settings: changed settings of the round.
        :param peer: address of the machine that answers; None if the probes need none.
        :param hosts: addresses of the machines over which one run goes.
        """
        words = ["--sample", "--only", ",".join(probe.name for probe in probes)]
        words += ["--scale", f"{self.scale:g}"]
        for name, value in (settings or {}).items():
            words += ["--setting", f"{name}={value}"]
        if peer is not None:
            words += ["--peer", peer]
        if hosts:
            words += ["--hosts", ",".join(hosts)]
        return self._accept_words(words)

    def _accept_words(self, words: Sequence[str]) -> list[str]:
        tier = {FULL: ["--tier", FULL, "--yes"], CLUSTER: ["--tier", CLUSTER]}.get(self._tier, [])
        return self._build_words(["accept", *tier, *words, *self._more, "--hold"])


def ask_members(members: Sequence[RemoteMember], busy: bool = False) -> list[FirstSample | str]:
    """Read the first samples of several members at the same time.

    :param busy: measure them even if they are busy.
    :returns: for each member, its answer or the reason why there is none.
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
    """Two members whose connection is measured.

    :ivar client: the member that connects and prints the sample.
    :ivar server: the member that answers.
    :ivar address: the server's address.
    """

    client: RemoteMember
    server: RemoteMember
    address: str


def measure_pairs(
    pairs: Sequence[PairCall],
    probes: Sequence[Probe],
    settings: Mapping[str, str] | None = None,
) -> list[Sample | str]:
    """Measure the connection of each pair of machines, all pairs at the same time.

    The servers start first. Each client starts only if its server has reported that it serves.

    :param probes: probes of one run of one tool; the first one names the tool's server, if any.
    :returns: for each pair, its sample or the reason why there is none.
    """
    limit = _find_limit(probes)
    environment = pairs[0].client.environment if pairs else None
    results: list[Sample | str] = ["it was not measured"] * len(pairs)
    served = pairs if probes[0].server else ()
    serving = [pair.server.build_serve_words(probes[0], 2 * limit) for pair in served]
    with started_calls(serving, 2 * limit, environment) as servers:
        refusals = _wait_for_servers(servers) if servers else [None] * len(pairs)
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


@attrs.frozen
class SetCall:
    """Machines over which a program runs once.

    :ivar first: the first of them, which starts the program.
    :ivar addresses: the addresses of all.
    """

    first: RemoteMember
    addresses: tuple[str, ...]


def measure_sets(sets: Sequence[SetCall], probe: Probe) -> list[Sample | str]:
    """Run a program once over each set of machines, over all sets at the same time.

    :returns: for each set, its sample or the reason why there is none.
    """
    asking = [call.first.build_sample_words([probe], None, None, call.addresses) for call in sets]
    results: list[Sample | str] = []
    for ended in run_calls(asking, _find_limit([probe]), sets[0].first.environment):
        try:
            results.append(read_sample(_take_document(ended)))
        except AcceptanceError as error:
            results.append(str(error))
    return results


def _wait_for_servers(servers: Sequence[RemoteCall]) -> list[str | None]:
    """Wait for the servers of a probe; return for each why it does not serve, or None."""
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
    """Return the line with the document; other output of shells and ssh is ignored.

    :raises AcceptanceError: the output contains no document.
    """
    line = next((text for text in ended.output.splitlines() if text.startswith("{")), "")
    if ended.problem is not None and not line:
        raise AcceptanceError(ended.problem)
    if not line:
        raise AcceptanceError("its output is no sample")
    return line
