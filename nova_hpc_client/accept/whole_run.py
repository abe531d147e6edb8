# SPDX-License-Identifier: Apache-2.0
"""Measures programs over all members at once, and the links of members on each network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from nova_hpc_client.accept import bisection
from nova_hpc_client.accept.bisection import (
    FaultLocation,
    Figures,
    FigureTerms,
    MemberSet,
    Question,
)
from nova_hpc_client.accept.cluster_result import WholeResult
from nova_hpc_client.accept.cluster_terms import AcceptedHost, ClusterTerms, ShowStep
from nova_hpc_client.accept.link_rates import find_link_limit
from nova_hpc_client.accept.remote_member import PairCall, SetCall, measure_pairs, measure_sets
from nova_hpc_client.accept.turns import blame_members, order_turn, pair_up_members
from nova_hpc_guest.accept.evidence import REST, AcceptanceRow, judge_probe
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.measuring import NO_IPV6
from nova_hpc_guest.accept.network import is_ipv6
from nova_hpc_guest.accept.probes import CLUSTER, Probe
from nova_hpc_guest.accept.ratio import LEAST_PAIRS, LEVEL, SLOW, UNDECIDED
from nova_hpc_guest.accept.result import ACCEPTED, UNMEASURED
from nova_hpc_guest.accept.sample import AcceptanceError, Reading

#: Turns after which a comparison stays undecided.
_MOST_TURNS: Final = 16
#: Rounds of pairs without any figure after which a network is left out.
_SILENT_ROUNDS: Final = 3
#: Sets that are measured at the same time.
_AT_ONCE: Final = 32
_OF_GPUS: Final = "nccl_all"
_NO_RATE: Final = "it is unknown, or not in the table"
_ONE_RANK: Final = "one rank of a member fills no adapter"
_LINKS: Final = "the links"
_NO_FIGURE: Final = "it gave no figure"
_ONE_LINK: Final = "two members have one link, and nothing to compare it with"


class _BudgetEndError(Exception):
    """The time limit is over; the text names the step that was not begun."""


class WholeMeasuring:
    """The measurement of programs over all members, and of all links between them.

    :param hosts: the members that can be measured, by their numbers.
    :param facts: number of a member -> its facts.
    :param show: called before each run.
    """

    def __init__(
        self,
        hosts: Mapping[int, AcceptedHost],
        facts: Mapping[int, GuestFacts],
        terms: ClusterTerms,
        show: ShowStep,
    ) -> None:
        self._hosts = hosts
        self._facts = facts
        self._terms = terms
        self._show = show
        self._until = terms.clock() + terms.budget
        #: Answers to the questions about one probe.
        self._history: list[Figures] = []
        #: Number of a member that is blamed for failed links -> the reason.
        self.blamed: dict[int, str] = {}
        self.results: list[WholeResult] = []
        self.notes: list[str] = []

    def measure_programs(self, programs: dict[str, Probe]) -> None:
        """Measure programs over all members.

        :param programs: name -> probe. That of GPUs makes the one of hosts' memory needless.
        """
        if _OF_GPUS in programs:
            programs.pop("all_reduce", None)
        topology = programs.pop("nccl_topo", None)
        for probe in programs.values():
            result = self._measure_program(probe)
            self.results.append(result)
            if result.verdict == UNMEASURED or probe.tier != CLUSTER:
                continue
            self._compare_with_links(probe)
            if topology is not None:
                self._add_topology(probe, topology)

    def measure_networks(self, probe: Probe) -> None:
        """Measure all links on each network that all members have, or on the chosen one."""
        if "rdma" in probe.needs and any(is_ipv6(host.address) for host in self._hosts.values()):
            self.notes.append(f"{probe.name} was left out: {NO_IPV6}")
            return
        common = sorted(set.intersection(*(set(host.rails) for host in self._hosts.values())))
        for name in common if len(common) > 1 and probe.tool == "iperf3" else [""]:
            result = self._measure_links(probe, name)
            if result is not None:
                self.results.append(result)
        if not any(result.probe.startswith(probe.name) for result in self.results):
            reason = "no two members reach each other on any network"
            self.results.append(WholeResult(probe.name, probe.unit, 0.0, UNMEASURED, reason))

    def _add_row(self, row: AcceptanceRow, says: str) -> None:
        verdict = ACCEPTED if row.verdict == LEVEL else row.verdict
        self.results.append(WholeResult(row.probe, row.unit, row.test, verdict, says))

    def _add_topology(self, base: Probe, test: Probe) -> None:
        """Compare two programs over all members in turns."""
        runs: dict[str, list[Reading]] = {base.name: [], test.name: []}
        try:
            for turn in range(LEAST_PAIRS):
                for place in order_turn((0, 1), turn):
                    probe = (base, test)[place]
                    text = f"{probe.name} over all members"
                    (figure,) = self._run_sets(probe, [tuple(self._hosts)], text, turn, LEAST_PAIRS)
                    runs[probe.name].append(Reading(figure))
        except _BudgetEndError as error:
            self.notes.append(f"the budget ended; not done: {error}")
        except AcceptanceError as error:
            self.notes.append(f"{test.name}: {error}")
        else:
            row = judge_probe(test, runs[base.name], runs[test.name], base.name, test.floor)
            says = f"{row.ratio:.2f} ({row.low:.2f}-{row.high:.2f}) of {row.against}"
            self._add_row(row, says)

    # -- programs over all members -------------------------------------------

    def _measure_program(self, probe: Probe) -> WholeResult:
        """Measure a program over all members, and search for the one that slows it."""
        try:
            location = self._search(probe)
        except _BudgetEndError as error:
            location = FaultLocation(UNDECIDED, f"the budget ended; not done: {error}")
        except AcceptanceError as error:
            return WholeResult(probe.name, probe.unit, 0.0, UNMEASURED, str(error))
        runs = self._find_runs(tuple(self._hosts))
        figure = median(runs) if runs else 0.0
        rows = self._build_rows(probe, probe.name, location)
        return self._build_result(probe, probe.name, figure, location, rows, "")

    def _compare_with_links(self, probe: Probe) -> None:
        """Compare a bus bandwidth of GPUs with the limit of the slowest adapters.

        It is judged only if a source gives a floor; otherwise a note has the part. One process of
        MPI on each member does not fill an adapter, so all_reduce is not compared.
        """
        limits = [find_link_limit(self._facts[number]) for number in self._hosts]
        runs = self._find_runs(tuple(self._hosts))
        known = [limit for limit in limits if limit is not None]
        if not runs or probe.name != _OF_GPUS or len(known) < len(limits):
            reason = _NO_RATE if probe.name == _OF_GPUS else _ONE_RANK
            self.notes.append(f"{probe.name} is not compared with the rate of links: {reason}")
            return
        limit = min(known, key=lambda limit: limit.most)
        base, test = [Reading(limit.most)] * len(runs), [Reading(run) for run in runs]
        row = judge_probe(probe, base, test, _LINKS, limit.floor or probe.floor)
        says = (
            f"{row.ratio:.0%} ({row.low:.0%}-{row.high:.0%}) of the limit of the links, "
            f"{limit.most:.4g} {probe.unit}"
        )
        if limit.floor is None:
            self.notes.append(f"{probe.name} has {says}; not judged: no floor of a source")
        else:
            self._add_row(row, f"{says}; floor {limit.floor:.0%}")

    def _find_runs(self, everyone: MemberSet) -> Sequence[float]:
        return next((figures[everyone] for figures in self._history if everyone in figures), ())

    def _search(self, probe: Probe) -> FaultLocation:
        self._history = []
        terms = self._terms_of(probe)
        everyone = tuple(self._hosts)
        if len(everyone) < 3:
            self._answer(probe, Question((everyone,)), terms)
            return FaultLocation(LEVEL, _ONE_LINK)
        search = bisection.search_members(everyone, terms)
        question = next(search)
        while True:
            try:
                question = search.send(self._answer(probe, question, terms))
            except StopIteration as end:
                location: FaultLocation = end.value
                return location

    def _answer(self, probe: Probe, question: Question, terms: FigureTerms) -> Figures:
        """Measure the sets of a question in turns, A B B A, until they are decided."""
        sets = question.sets
        figures: dict[MemberSet, list[float]] = {members: [] for members in sets}
        text = f"{probe.name} over sets of {len(sets[-1])} members"
        once = question.kind == bisection.ONCE
        batches = _batch_sets(sets) if once else [[members] for members in sets]
        least = 1 if once else LEAST_PAIRS
        if not once:
            self._history.append(figures)
        turn = 0
        while turn < least or (turn < _MOST_TURNS and bisection.is_open(question, figures, terms)):
            for place in order_turn(range(len(batches)), turn):
                done, total = sum(map(len, figures.values())), max(turn + 1, least) * len(sets)
                values = self._run_sets(probe, batches[place], text, done, total)
                for members, value in zip(batches[place], values, strict=True):
                    figures[members].append(value)
            turn += 1
        return figures

    def _run_sets(
        self, probe: Probe, sets: Sequence[MemberSet], text: str, done: int, total: int
    ) -> list[float]:
        """Run a program once over each of several sets, at the same time.

        :raises AcceptanceError: a run gives no figure.
        """
        self._begin_step(text, done, total)
        calls = [
            SetCall(
                self._hosts[members[0]].remote,
                tuple(self._hosts[number].address for number in members),
            )
            for members in sets
        ]
        values = []
        for members, answer in zip(sets, measure_sets(calls, probe), strict=True):
            reasons = {} if isinstance(answer, str) else {**answer.missing, **answer.failed}
            if isinstance(answer, str) or probe.name not in answer.readings:
                reason = answer if isinstance(answer, str) else reasons.get(probe.name, _NO_FIGURE)
                raise AcceptanceError(f"{self._name_members(members)}: {reason}")
            values.append(answer.readings[probe.name].value)
        return values

    def _begin_step(self, text: str, done: int, total: int) -> None:
        if self._terms.clock() > self._until:
            raise _BudgetEndError(text)
        self._show(text, done, total)

    # -- links ---------------------------------------------------------------

    def _measure_links(self, probe: Probe, network: str) -> WholeResult | None:
        """Measure each two members on one network.

        :param network: its name; empty for the addresses over which members are reached.
        :returns: None for a network on which no two members reach each other, such as InfiniBand
            without addresses for TCP.
        """
        name = f"{probe.name}@{network}" if network else probe.name
        rounds = pair_up_members(tuple(self._hosts))
        links = [link for some in rounds for link in some]
        figures: dict[MemberSet, list[float]] = {link: [] for link in links}
        failed: dict[tuple[int, int], str] = {}
        question, terms = Question(tuple(links), bisection.LINKS), self._terms_of(probe)
        self._history = [figures]
        turn = 0
        try:
            while not failed and (
                turn < LEAST_PAIRS
                or (turn < _MOST_TURNS and bisection.is_open(question, figures, terms))
            ):
                for place, some in enumerate(rounds, 1):
                    self._begin_step(name, turn, max(turn + 1, LEAST_PAIRS))
                    pairs = [self._pair_call(link, network, turn) for link in some]
                    for link, answer in zip(some, measure_pairs(pairs, [probe]), strict=True):
                        if isinstance(answer, str):
                            failed[link] = answer
                        elif probe.name in answer.readings:
                            figures[link].append(answer.readings[probe.name].value)
                        else:
                            failed[link] = answer.failed.get(probe.name, _NO_FIGURE)
                    # One dead member fails one link of each round, so three rounds are needed.
                    tried = sum(map(len, rounds[:place]))
                    enough = turn == 0 and place == min(_SILENT_ROUNDS, len(rounds))
                    if network and enough and len(failed) == tried:
                        reason = next(iter(failed.values()))
                        self.notes.append(
                            f"{name} was left out: no two members reach each other "
                            f"there ({reason}); InfiniBand needs addresses for TCP"
                        )
                        return None
                turn += 1
            location = (
                bisection.locate_fault({link: figures[link] for link in links}, terms)
                if len(links) > 1 and not failed
                else FaultLocation(LEVEL, _ONE_LINK)
            )
        except _BudgetEndError as error:
            location = FaultLocation(UNDECIDED, f"the budget ended; not done: {error}")
        if failed:
            self.blamed.update(blame_members(failed))
            return WholeResult(name, probe.unit, 0.0, UNMEASURED, next(iter(failed.values())))
        runs = [value for values in figures.values() for value in values]
        rows = self._build_rows(probe, name, location)
        figure = median(runs) if runs else 0.0
        return self._build_result(probe, name, figure, location, rows, network)

    def _pair_call(self, link: tuple[int, int], network: str, turn: int) -> PairCall:
        first, second = (self._hosts[number] for number in link[:: 1 if turn % 2 == 0 else -1])
        address = second.rails[network] if network else second.address
        return PairCall(first.remote, second.remote, address)

    # -- judging -------------------------------------------------------------

    def _terms_of(self, probe: Probe) -> FigureTerms:
        return FigureTerms(probe.higher, self._terms.floors.get(probe.name, probe.floor))

    def _build_rows(
        self, probe: Probe, name: str, location: FaultLocation
    ) -> dict[int, AcceptanceRow]:
        """Compare each member's best sets with the sets without it, in the last answer with both.

        The location decides the verdict: a member is slow only if it is named.
        """
        rows = {}
        for number in self._hosts:
            for figures in reversed(self._history):
                turns = min(map(len, figures.values()))
                some = [members for members in figures if len(members) < len(self._hosts)]
                having = [figures[members] for members in some if number in members]
                others = [figures[members] for members in some if number not in members]
                if not having or not others or not turns:
                    continue
                best = max if probe.higher else min
                test = [Reading(best(runs[turn] for runs in having)) for turn in range(turns)]
                base = [Reading(median(runs[turn] for runs in others)) for turn in range(turns)]
                row = judge_probe(probe, base, test, REST, self._terms_of(probe).floor)
                verdict = UNDECIDED if location.verdict == UNDECIDED else LEVEL
                verdict = SLOW if location.members == (number,) else verdict
                rows[number] = row._replace(probe=name, verdict=verdict)
                break
        return rows

    def _build_result(
        self,
        probe: Probe,
        name: str,
        figure: float,
        location: FaultLocation,
        rows: Mapping[int, AcceptanceRow],
        network: str,
    ) -> WholeResult:
        verdict, says, remarks = location.verdict, location.reason, {}
        where = f" on {network}" if network else ""
        if len(location.members) == 1:
            says = f"{self._name_members(location.members)}{where}"
            remarks[location.members[0]] = (
                f"slows the {name} of all members"
                if "hosts" in probe.needs
                else f"all of its links{where} are slow, and no others are"
            )
        elif location.members:
            says = f"the link between {self._name_members(location.members)}{where}"
        verdict = ACCEPTED if verdict == LEVEL else verdict
        return WholeResult(name, probe.unit, figure, verdict, says, rows, remarks)

    def _name_members(self, members: MemberSet) -> str:
        names = [self._hosts[number].name for number in members]
        return " and ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"


def _batch_sets(sets: Sequence[MemberSet]) -> list[list[MemberSet]]:
    """Split sets at each one that has a member of the batch before it."""
    batches: list[list[MemberSet]] = []
    busy: set[int] = set()
    for members in sets:
        if not batches or busy & set(members) or len(batches[-1]) == _AT_ONCE:
            batches.append([])
            busy = set()
        batches[-1].append(members)
        busy |= set(members)
    return batches
