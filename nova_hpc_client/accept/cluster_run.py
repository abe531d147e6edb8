# SPDX-License-Identifier: Apache-2.0
"""Measures a cluster: each member's own report, then members in turns, then pairs of members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_client.accept import turns
from nova_hpc_client.accept.cluster_result import (
    LINKS,
    TURN,
    ClusterAcceptance,
    MemberAcceptance,
    WholeResult,
)
from nova_hpc_client.accept.cluster_terms import AcceptedHost, ClusterTerms, ShowStep
from nova_hpc_client.accept.remote_member import PairCall, ask_members, measure_pairs
from nova_hpc_client.accept.whole_run import WholeMeasuring
from nova_hpc_guest.accept.baseline import build_key, find_key_differences
from nova_hpc_guest.accept.diagnosis import Diagnosis, find_causes
from nova_hpc_guest.accept.distribution import list_distributions
from nova_hpc_guest.accept.evidence import REST, AcceptanceRow, gather_evidence
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.first_sample import FirstSample
from nova_hpc_guest.accept.gpus import count_gpus
from nova_hpc_guest.accept.probes import CLUSTER, OWN, PROBES, Probe, list_probes
from nova_hpc_guest.accept.ratio import SLOW, UNDECIDED
from nova_hpc_guest.accept.refusal import GPU_BUSY, Refusal
from nova_hpc_guest.accept.result import UNMEASURED, AcceptanceResult, MeasuredValue
from nova_hpc_guest.accept.rounds import MOST_ROUNDS, make_experiment
from nova_hpc_guest.accept.sample import AcceptanceError, Sample

#: Seconds between two tries while members are still starting.
_AGAIN: Final = 5.0


class ClusterMeasuring:
    """One acceptance measurement of all members of a cluster.

    :param show: called before each step.
    """

    def __init__(
        self, name: str, hosts: Sequence[AcceptedHost], terms: ClusterTerms, show: ShowStep
    ) -> None:
        self._name = name
        self._hosts = {host.number: host for host in hosts}
        self._terms = terms
        self._show = show
        self._probe_of = {probe.name: probe for probe in (*PROBES, *terms.own)}
        probes = list_probes(terms.tier, terms.only, terms.own)
        #: Probes between two members: over the loopback of one they would not measure the network.
        self._link_probes = [probe for probe in probes if self._is_of_links(probe)]
        #: Programs over all members.
        self._whole_probes = [probe for probe in probes if "hosts" in probe.needs]
        self._turn_probes = [
            probe
            for probe in probes
            if probe not in (*self._link_probes, *self._whole_probes) and terms.tier != CLUSTER
        ]
        self._first: dict[int, FirstSample] = {}
        #: Number of a member that does not answer -> the reason.
        self._lost: dict[int, str] = {}
        #: Number of a member that is blamed for failed links -> the reason.
        self._blamed: dict[int, str] = {}
        #: Number of a member that must not be compared -> the reason.
        self._refused: dict[int, Refusal] = {}
        self._rounds: list[dict[int, Sample]] = []
        self._links: dict[turns.Link, list[Sample]] = {}
        self._notes: list[str] = []
        self._whole: list[WholeResult] = []

    def measure(self) -> ClusterAcceptance:
        """Measure and judge all members. No behaviour of a member raises an error.

        The phases: read each member's first sample, leave out busy and different machines, measure
        members in turns, measure pairs of members, measure programs over all members, judge each
        member against the others.
        """
        self._ask_members()
        self._refuse_members()
        if len(self._list_able()) > 1:
            self._take_turns()
            if self._terms.tier != CLUSTER:
                self._measure_links()
            self._measure_whole()
        else:
            self._notes.append("fewer than two members can be measured: nothing is compared")
        rows = self._judge_all()
        slow = {
            number
            for number, judged in rows.items()
            if any(row.verdict == SLOW for row in judged.values())
        }
        members = tuple(
            MemberAcceptance(
                *(number, host.name, host.server),
                self._judge_member(number, rows[number], slow),
                tuple(whole.remarks[number] for whole in self._whole if number in whole.remarks),
            )
            for number, host in self._hosts.items()
        )
        notes = tuple(self._notes)
        return ClusterAcceptance(
            *(self._name, self._terms.tier, members, len(self._rounds), notes),
            whole=tuple(self._whole),
        )

    # -- first ---------------------------------------------------------------

    def _list_able(self) -> list[int]:
        """Return numbers of the members that answer and are compared."""
        return [
            number
            for number in self._hosts
            if number not in self._lost and number not in self._refused
        ]

    def _ask_members(self) -> None:
        """Read the first samples, and set the part of the work that all members do.

        New members may still be starting, so those without an answer are tried again until
        *patience* is over. All members do the smallest part that any of them chose, because their
        runs are compared with each other.
        """
        terms = self._terms
        until = terms.clock() + terms.patience
        self._lost = {number: host.problem for number, host in self._hosts.items() if host.problem}
        waiting = [number for number in self._hosts if number not in self._lost]
        while waiting:
            self._show("asking members", len(self._hosts) - len(waiting), len(self._hosts))
            answers = ask_members([self._hosts[number].remote for number in waiting], terms.busy)
            for number, answer in zip(list(waiting), answers, strict=True):
                if isinstance(answer, str):
                    self._lost[number] = answer
                else:
                    self._first[number] = answer
                    self._lost.pop(number, None)
                    waiting.remove(number)
            if not waiting or terms.clock() >= until:
                break
            terms.sleep(_AGAIN)
        scale = min((first.scale for first in self._first.values()), default=1.0)
        for host in self._hosts.values():
            host.remote.scale = scale

    def _refuse_members(self) -> None:
        """Leave out members that are busy, or whose kind of machine differs from most others.

        A ratio between different machines would show the difference and not a fault. A busy GPU
        only matters if a probe uses GPUs.
        """
        for number, first in self._first.items():
            refused = first.refused
            if refused is not None and (refused.kind != GPU_BUSY or self._measures_gpus()):
                self._refused[number] = refused
        keys = {number: build_key(first.sample.facts, {}) for number, first in self._first.items()}
        alike = {
            number: {
                other for other, theirs in keys.items() if not find_key_differences(key, theirs, ())
            }
            for number, key in keys.items()
        }
        most = max(alike, key=lambda number: len(alike[number]), default=0)
        for number in keys:
            if number not in alike[most]:
                differences = "; ".join(find_key_differences(keys[most], keys[number], ()))
                text = f"it is another machine than most members: {differences}"
                self._refused.setdefault(number, Refusal("key", text))

    def _measures_gpus(self) -> bool:
        probes = (*self._turn_probes, *self._link_probes, *self._whole_probes)
        return any("gpu" in probe.needs for probe in probes)

    # -- turns ---------------------------------------------------------------

    def _take_turns(self) -> None:
        """Measure rounds until each probe of each member is decided, or the budget ends.

        A round begins only if the budget has room for one as long as the last round. A probe is
        left out after its own limit of runs, or when it is decided for all members after the least
        number of rounds.
        """
        terms = self._terms
        begun, longest, turn = terms.clock(), 0.0, 0
        pending = [probe for probe in self._turn_probes if probe.most is None or probe.most > 0]
        while pending and turn < MOST_ROUNDS and len(self._list_able()) > 1:
            start = terms.clock()
            if turn and start - begun + longest > terms.budget:
                self._notes.append("the budget ended before everything was decided")
                return
            self._rounds.append(self._take_round(pending, turn))
            longest = max(longest, terms.clock() - start) if turn < 2 else terms.clock() - start
            turn += 1
            opened = self._find_open_probes()
            pending = [
                probe
                for probe in pending
                if (probe.most is None or turn < probe.most)
                and (turn < terms.least or probe.name in opened)
                and not self._fails_everywhere(probe)
            ]

    def _take_round(self, probes: Sequence[Probe], turn: int) -> dict[int, Sample]:
        samples: dict[int, Sample] = {}
        living = self._list_able()
        for done, number in enumerate(turns.order_turn(living, turn)):
            host = self._hosts[number]
            what = f"round {turn + 1}: {host.name}"
            self._show(what, done, len(living))
            try:
                samples[number] = host.remote.measure_round(probes)
            except AcceptanceError as error:
                self._lost[number] = f"in round {turn + 1}: {error}"
        return samples

    def _find_open_probes(self) -> set[str]:
        judged = [self._judge_turns(number) for number in self._list_able()]
        return {name for rows in judged for name, row in rows.items() if row.verdict == UNDECIDED}

    def _fails_everywhere(self, probe: Probe) -> bool:
        """Whether a program of the user gave no figure on any member in the last round."""
        samples = self._rounds[-1].values()
        return probe.tier == OWN and not any(probe.name in one.readings for one in samples)

    def _judge_turns(self, number: int) -> dict[str, AcceptanceRow]:
        probes = [probe for probe in self._turn_probes if _may_be_judged(probe)]
        return turns.judge_member(number, self._rounds, probes, self._terms.floors)

    # -- links ---------------------------------------------------------------

    def _measure_links(self) -> None:
        """Measure all pairs of members, as often as a judgement needs.

        The pairs of one round have no member in common, so they are measured at the same time.
        A failed link is not measured again.
        """
        living = self._list_able()
        runs = [probes for probes in self._group_runs() if self._can_link(probes[0])]
        passes = turns.count_passes(len(living))
        if not runs or len(living) < 2:
            return
        if not passes:
            self._notes.append("two members have one link, and nothing to compare it with")
            passes = 1
        rounds = turns.pair_up_members(living)
        total, done = passes * len(rounds) * len(runs), 0
        failed: dict[turns.Link, str] = {}
        for turn in range(passes):
            for links in rounds:
                for probes in runs:
                    self._show("pairs of members", done, total)
                    done += 1
                    self._measure_round_of_links(links, probes, turn, failed)
        for number, reason in turns.blame_members(failed).items():
            self._blamed[number] = reason

    def _can_link(self, probe: Probe) -> bool:
        """Whether all members can run a probe; a note names the first member that cannot."""
        for number in self._list_able():
            obstacle = self._first[number].obstacles.get(probe.name)
            if obstacle is not None:
                name = self._hosts[number].name
                self._notes.append(f"{probe.name} was left out: {name} has {obstacle}")
                return False
        return True

    def _measure_round_of_links(
        self,
        links: Sequence[turns.Link],
        probes: Sequence[Probe],
        turn: int,
        failed: dict[turns.Link, str],
    ) -> None:
        asked = [link for link in links if link not in failed]
        pairs = [self._pair_call(link, turn) for link in asked]
        for link, answer in zip(asked, measure_pairs(pairs, probes), strict=True):
            if isinstance(answer, str):
                failed[link] = answer
                continue
            reading = answer.readings.get(probes[0].name)
            if reading is not None and reading.at_limit:
                failed[link] = f"{probes[0].name} was at its limit"
            elif reading is None and answer.failed:
                failed[link] = next(iter(answer.failed.values()))
            else:
                self._links.setdefault(link, []).append(answer)

    def _pair_call(self, link: turns.Link, turn: int) -> PairCall:
        """Build the call for a pair of members; client and server swap in every other pass."""
        first, second = link if turn % 2 == 0 else link[::-1]
        return PairCall(
            self._hosts[first].remote, self._hosts[second].remote, self._hosts[second].address
        )

    # -- all members at once -------------------------------------------------

    def _measure_whole(self) -> None:
        """Measure programs over all members; in the tier ``cluster`` also the links of networks."""
        hosts = {number: self._hosts[number] for number in self._list_able()}
        if len(hosts) < 2:
            return
        of_links = self._link_probes if self._terms.tier == CLUSTER else []
        facts = {number: self._first[number].sample.facts for number in hosts}
        gpus = all(map(count_gpus, facts.values()))
        programs = [
            probe
            for probe in self._whole_probes
            if (gpus or "gpu" not in probe.needs) and self._can_link(probe)
        ]
        run = WholeMeasuring(hosts, facts, self._terms, self._show)
        run.measure_programs({probe.name: probe for probe in programs})
        if any(result.verdict == UNMEASURED for result in run.results):
            self._find_lost()
        for probe in of_links:
            if probe.tier != OWN and set(hosts) == set(self._list_able()) and self._can_link(probe):
                run.measure_networks(probe)
        self._blamed.update(run.blamed)
        self._whole = run.results
        self._notes += run.notes

    def _find_lost(self) -> None:
        """Look for members that do not answer after a program over all of them has failed."""
        able = self._list_able()
        answers = ask_members([self._hosts[number].remote for number in able], True)
        for number, answer in zip(able, answers, strict=True):
            if isinstance(answer, str):
                self._lost[number] = f"after a program over all members: {answer}"

    # -- judging -------------------------------------------------------------

    def _judge_all(self) -> dict[int, dict[str, AcceptanceRow]]:
        probes = [probe for probe in self._link_probes if _may_be_judged(probe) and self._links]
        return {
            number: {
                **self._judge_turns(number),
                **turns.judge_links(number, self._links, probes, self._terms.floors),
            }
            for number in self._hosts
        }

    def _judge_member(
        self,
        number: int,
        rows: Mapping[str, AcceptanceRow],
        slow: set[int],
    ) -> AcceptanceResult:
        first = self._first.get(number)
        findings = first.findings if first else ()
        samples = [samples[number] for samples in self._rounds if number in samples]
        rest = [
            sample for every in self._rounds for other, sample in every.items() if other != number
        ]
        on_links = [
            sample for link, answers in self._links.items() if number in link for sample in answers
        ]
        lost = {
            name: reasons[number]
            for name, reasons in ((TURN, self._lost), (LINKS, self._blamed))
            if number in reasons
        }
        everything = [*on_links, *samples]
        diagnosis = Diagnosis((), ())
        if any(row.verdict == SLOW for row in rows.values()):
            diagnosis = self._find_causes(number, rows, slow, everything)
        last = everything[-1].facts if everything else first.sample.facts if first else None
        return AcceptanceResult(
            tier=self._terms.tier,
            boot=None,
            facts=last or GuestFacts(),
            rows=tuple(
                rows[name]
                for name in self._probe_of
                # Undecided probes of a member that failed are left out: its failure is the reason.
                if name in rows and not (lost and rows[name].verdict == UNDECIDED)
            )
            + tuple(whole.rows[number] for whole in self._whole if number in whole.rows),
            measured=tuple(_list_medians(everything, self._probe_of)),
            missing=_join_texts([sample.missing for sample in everything]),
            failed={**_join_texts([sample.failed for sample in everything]), **lost},
            promised=first is not None and first.promise is not None,
            unpromised=first.unpromised if first else "",
            findings=findings,
            diagnosis=diagnosis,
            baseline={"kind": REST},
            # A broken promise is a result even if the member was refused.
            refused=None
            if any(finding.wrong for finding in findings)
            else self._refused.get(number),
            partial=bool(self._terms.only),
            rounds=len(samples),
            distributions=list_distributions(rest, samples),
        )

    def _find_causes(
        self,
        number: int,
        rows: Mapping[str, AcceptanceRow],
        slow: set[int],
        samples: Sequence[Sample],
    ) -> Diagnosis:
        first = self._first[number]
        reference = turns.choose_reference(number, self._rounds, self._turn_probes, slow)
        base = [
            sample for link, some in self._links.items() if number not in link for sample in some
        ]
        if reference is not None:
            base += [samples[reference] for samples in self._rounds if reference in samples]
        seen = gather_evidence(rows, base, samples, first.promise, first.findings, first.links)
        name = self._hosts[number].name

        def again(setting: str, probe: str) -> float | None:
            self._show(f"{name}: {probe} again with {setting}", 0, 1)
            return self._make_experiment(number, slow, setting, probe)

        return find_causes(seen, again)

    def _make_experiment(
        self, number: int, slow: set[int], setting: str, probe: str
    ) -> float | None:
        """Repeat a probe with another setting; None if that is impossible.

        A probe between members uses a peer that is not slow itself, if there is one.
        """
        try:
            if not self._is_of_links(self._probe_of[probe]):
                return make_experiment(self._hosts[number].remote, setting, probe)
            peers = [other for other in self._list_able() if other != number]
            peer = min(peers, key=lambda other: (other in slow, other), default=None)
            if peer is None:
                return None
            machine = _LinkedMachine(self._pair_call((number, peer), 0))
            return make_experiment(machine, setting, probe)
        except AcceptanceError:
            # A failed experiment proves nothing.
            return None

    def _is_of_links(self, probe: Probe) -> bool:
        """Whether a probe is measured between members; nccl_pair is not: it needs mpirun there."""
        of = self._probe_of[probe.of] if probe.of else probe
        return bool(of.server) or (of.tier == OWN and "peer" in of.needs)

    def _group_runs(self) -> list[list[Probe]]:
        """Group the probes that one run of one tool measures; the run's own probe comes first."""
        groups: dict[str, list[Probe]] = {}
        for probe in self._link_probes:
            groups.setdefault(probe.of or probe.name, []).append(probe)
        runs = []
        for name, group in groups.items():
            # The other probes are values of this probe's run, so it is added if it is missing.
            own = self._probe_of[name]
            runs.append([own, *(probe for probe in group if probe is not own)])
        return runs


@attrs.frozen
class _LinkedMachine:
    """A pair of members that is measured like a single machine."""

    pair: PairCall

    def measure_round(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None = None
    ) -> Sample:
        (answer,) = measure_pairs([self.pair], probes, settings)
        if isinstance(answer, str):
            raise AcceptanceError(answer)
        return answer


def _may_be_judged(probe: Probe) -> bool:
    return probe.most is None or probe.most >= 6


def _list_medians(samples: Sequence[Sample], probe_of: Mapping[str, Probe]) -> list[MeasuredValue]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, reading in sample.readings.items():
            if name in probe_of:
                values.setdefault(name, []).append(reading.value)
    return [
        MeasuredValue(name, probe_of[name].unit, sorted(found)[len(found) // 2], len(found))
        for name, found in values.items()
    ]


def _join_texts(texts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for some in texts:
        joined.update(some)
    return joined
