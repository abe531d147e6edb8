# SPDX-License-Identifier: Apache-2.0
"""One run of ``accept``: check the promise, measure in turns, name causes, give the verdict."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from .. import document, machine
from ..compare import GuestFinding, GuestWishes, compare_with_machine
from ..document import DocumentError, GuestDocument, NoDocumentError
from ..files import Root
from ..pkeys import read_ib_ports
from . import result as results
from .baseline import (
    AcceptanceBaseline,
    build_key,
    find_key_differences,
    join_baselines,
    read_baseline,
    write_baseline,
)
from .diagnosis import Diagnosis, find_causes
from .distribution import list_distributions
from .evidence import BESIDE, FILE, LinkFaults, find_link_faults, gather_evidence
from .first_sample import FirstSample, write_first_sample
from .measuring import LocalMachine, MeasuringOptions
from .options import AcceptOptions, complete_options
from .own_probes import join_probes, list_digests, name_tool
from .picture import draw_result
from .probes import FULL, OWN, PROBE_OF, Probe, list_probes
from .published import compare_published, load_published
from .refusal import Refusal, refuse_busy_machine, refuse_emulation, refuse_used_gpus
from .result import AcceptanceResult, MeasuredValue
from .rounds import (
    BesideSource,
    FileSource,
    OwnSource,
    RoundSource,
    Series,
    find_ceilings,
    make_experiment,
    parse_setting,
    run_series,
)
from .sample import AcceptanceError, is_number, shorten, write_sample
from .tools import ENDING, HeldSignals, adopt_orphans
from .views import format_junit, format_result

#: The longest file of a baseline or of floors.
_LONGEST: Final = 1 << 24


class EndedError(KeyboardInterrupt):
    """A signal ended the command; its tools' processes have been ended."""


class Promise(NamedTuple):
    """The cloud's promise about this machine, and the findings against it."""

    document: GuestDocument | None
    #: Why the promise is missing.
    why: str
    #: The text of the document.
    data: bytes | None = None
    findings: tuple[GuestFinding, ...] = ()
    links: LinkFaults = LinkFaults()


def run_accept(root: Root, options: AcceptOptions) -> tuple[int, list[str]]:
    """Run ``nova-hpc-guest accept``; return its exit status and the lines to print.

    :raises EndedError: a signal ended the command.
    """
    if options.gate:
        status, line = results.judge_gate(root, options.tier)
        return status, [line]
    with end_on_signals(), adopt_orphans():
        if options.hold:
            end_with_input()
        try:
            options = complete_options(options)
            if options.serve is not None:
                return _serve_probe(root, options)
            if options.sample:
                return _run_sample(root, options)
            result = measure_acceptance(root, options)
        except AcceptanceError as error:
            return results.STATUSES[results.REFUSED], [f"refused: {error}"]
    text = results.write_acceptance(result)
    if not options.only and result.refused is None:
        problem = results.keep_result(root, text)
        if problem is not None:
            result = result._replace(notes=(*result.notes, f"not kept for --gate: {problem}"))
    return result.status, list(_format_lines(result, options.form))


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Make SIGTERM, SIGINT and SIGHUP raise :class:`EndedError` once while the block runs."""

    def end(number: int, _: object) -> None:
        if HeldSignals.note(number):
            return
        for each_number in ENDING:
            signal.signal(each_number, signal.SIG_IGN)
        raise EndedError(f"ended by {signal.Signals(number).name}")

    try:
        before = [(number, signal.signal(number, end)) for number in ENDING]
    except ValueError:  # not in the main thread: the caller's handlers stay
        yield
        return
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def end_with_input() -> None:
    """End this command from now on at the end of standard input, as SIGTERM does.

    Without a terminal, this is the only sign of ssh's own end on this side.
    """

    def watch() -> None:
        # The main thread handles the signal, and holds it back while it starts a tool.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        with contextlib.suppress(OSError):
            while os.read(0, 1 << 12):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def measure_acceptance(root: Root, options: AcceptOptions) -> AcceptanceResult:
    """Check the promise, measure the probes, and find the causes of slow ones.

    :raises AcceptanceError: an option names something that cannot be used.
    """
    own = join_probes(options.own)
    floors = read_floors(options.floors, own)
    baseline = _read_baselines(options.baselines)
    promise = check_promise(root, options.skip)
    wishes = MeasuringOptions(options.peer, options.hosts, options.folder, own=own)
    local = LocalMachine(root, wishes, promise.document)
    local.scale = options.scale or _read_scale(baseline) or local.find_scale()
    probes = list_probes(options.tier, options.only, own)
    source, refused, about = _choose_source(local, probes, options, promise, baseline)
    if refused is None and not options.busy:
        refused = _refuse_busy(root, local, probes)
    result = AcceptanceResult(
        tier=options.tier,
        boot=results.read_boot_id(root),
        facts=local.facts,
        tools={
            name: (state.version or "?", state.tried)
            for name, state in local.toolbox.states.items()
        },
        promised=promise.document is not None,
        unpromised=promise.why,
        findings=promise.findings,
        baseline=about,
        refused=refused,
        partial=bool(options.only),
    )
    if refused is not None:
        return result
    with show_progress() as progress:
        series = run_series(source, probes, floors, options.pairs, options.budget, progress)
        return _judge(result, series, source, local, probes, options, promise, progress)


def check_promise(root: Root, skip: Sequence[str] = ()) -> Promise:
    """Compare this machine with the cloud's document, as ``nova-hpc-guest check``.

    A cloud without a document is not a fault.

    :param skip: kinds of findings to leave out.
    """
    try:
        data, promised = document.read_guest_document(root)
    except NoDocumentError as error:
        return Promise(None, str(error))
    except DocumentError as error:
        finding = GuestFinding("device", None, f"the cloud's document: {error}", True)
        return Promise(None, str(error), None, (finding,))
    real = machine.read_machine(root, promised.shared_memory)
    compared = compare_with_machine(
        promised, real, GuestWishes(skip=tuple(skip)), read_ib_ports(root, real.functions)
    )
    links = find_link_faults(promised, compared.places)
    return Promise(promised, "", data, compared.findings, links)


def _judge(
    result: AcceptanceResult,
    series: Series,
    source: RoundSource,
    local: LocalMachine,
    probes: Sequence[Probe],
    options: AcceptOptions,
    promise: Promise,
    progress: Callable[[str], None],
) -> AcceptanceResult:
    """Complete the result after the rounds.

    Phases: NVIDIA's own diagnosis (full tier, all probes), evidence and causes with their
    experiments, the baseline file, the comparison with published ratios.
    """
    findings = list(promise.findings)
    notes = []
    if options.tier == FULL and not options.only:
        progress("dcgmi diag")
        failed, why = local.diagnose_gpus()
        findings += [
            GuestFinding("dcgm", None, f"dcgmi diag: {name} failed", True) for name in failed
        ]
        if why is not None:
            notes.append(f"dcgmi diag: {why}")
    diagnosis = Diagnosis((), ())
    facts = None
    if series.rows:
        seen = gather_evidence(
            series.rows, series.base, series.test, promise.document, findings, promise.links
        )
        facts = None if isinstance(source, OwnSource) else seen.base

        def again(setting: str, probe: str) -> float | None:
            if not _can_change(local, setting):
                return None
            progress(f"{probe} again with {setting}")
            return make_experiment(local, setting, probe)

        diagnosis = find_causes(seen, again)
    if options.save is not None:
        _save_baseline(options.save, local, series, probes)
        notes.append(f"wrote {options.save}")
    own = [probe.name for probe in probes if probe.tier == OWN]
    missing, broken = _join_reasons(series, own)
    if alone := ", ".join(name for name in own if name not in {**series.rows, **missing, **broken}):
        notes.append(f"{alone}: compared with nothing; add --beside or --baseline")
    rows = tuple(series.rows[probe.name] for probe in probes if probe.name in series.rows)
    published: list[dict[str, Any]] = []
    if options.published:
        published = compare_published(load_published(), series.rows, facts)
    return result._replace(
        facts=series.test[-1].facts if series.test else local.facts,
        rows=rows,
        measured=tuple(_list_values(probes, series)),
        missing=missing,
        failed=broken,
        findings=tuple(findings),
        diagnosis=diagnosis,
        short=series.short,
        rounds=series.rounds,
        notes=tuple(notes),
        published=tuple(published),
        distributions=list_distributions(series.base, series.test),
    )


def _run_sample(root: Root, options: AcceptOptions) -> tuple[int, list[str]]:
    promise = check_promise(root, options.skip)
    own = join_probes(options.own)
    wishes = MeasuringOptions(
        options.peer, options.hosts, options.folder, options.scale or 1.0, options.within, own
    )
    local = LocalMachine(root, wishes, promise.document)
    if options.setting is not None and not _can_change(local, options.setting):
        raise AcceptanceError(f"--setting {options.setting} cannot be made here")
    refused = None
    if options.first and not options.busy:
        # Before anything of this command keeps a CPU busy.
        refused = _refuse_busy(root, local, list_probes(options.tier))
    changed = parse_setting(options.setting) if options.setting is not None else None
    sample = local.measure_round(list_probes(options.tier, options.only, own), changed)
    status = 0 if sample.readings else results.STATUSES[results.UNMEASURED]
    if not options.first:
        return status, [write_sample(sample)]
    first = FirstSample(
        sample,
        options.scale or local.find_scale(),
        promise.document,
        promise.why,
        promise.findings,
        promise.links,
        refused,
        {
            probe.name: obstacle
            for probe in list_probes(options.tier)
            for obstacle in [local.find_obstacle(probe, alone=False)]
            if obstacle is not None and probe.of is None
        },
    )
    return status, [write_first_sample(first, promise.data)]


def _refuse_busy(root: Root, local: LocalMachine, probes: Sequence[Probe]) -> Refusal | None:
    """Whether others use the CPUs, or the GPUs of a probe that can be made here."""
    able = [probe for probe in probes if local.find_obstacle(probe) is None]
    return refuse_busy_machine(root, local.facts.allowed) or refuse_used_gpus(able, os.environ)


def _serve_probe(root: Root, options: AcceptOptions) -> tuple[int, list[str]]:
    """Answer another machine's probe until the budget, or this command, ends."""
    local = LocalMachine(root, MeasuringOptions())
    until = time.monotonic() + options.budget
    with local.answer_probe(PROBE_OF[options.serve or ""]) as server:
        # The other machine reads the line while this command goes on.
        print("serving", flush=True)
        while server.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    return 0, []


def _choose_source(
    local: LocalMachine,
    probes: Sequence[Probe],
    options: AcceptOptions,
    promise: Promise,
    baseline: AcceptanceBaseline | None,
) -> tuple[RoundSource, Refusal | None, dict[str, Any]]:
    """Choose the baseline's side; return it, why it is refused, and its entry in the result."""
    versions = {**local.toolbox.list_versions(), **list_digests(probes)}
    key = build_key(local.facts, versions, local.scale)
    if baseline is not None:
        tools = [name for probe in probes for name in (probe.tool, name_tool(probe))]
        refused = refuse_emulation(baseline.samples[-1].facts, local.facts)
        differences = find_key_differences(baseline.key, key, tools)
        if refused is None and differences:
            refused = Refusal(
                "key", f"the baseline is of another machine: {'; '.join(differences)}"
            )
        about: dict[str, Any] = {
            "kind": FILE,
            "key": baseline.key,
            "sha256": baseline.sha256,
            "rounds": len(baseline.samples),
        }
        return FileSource(local, baseline.samples), refused, about
    if options.beside is not None:
        source = BesideSource(local, options.beside, os.environ, local.scale, options.own)
        # Warms both sides up, and finds a fault of the other side early.
        other = source.ask_other([probe for probe in probes if probe.name == "clock"] or probes[:1])
        refused = refuse_emulation(other.facts, local.facts)
        return source, refused, {"kind": BESIDE, "key": build_key(other.facts, {}, local.scale)}
    ceilings = find_ceilings(promise.document, local.facts.rdma)
    return OwnSource(local, local.facts, ceilings), None, {"kind": "itself", "key": key}


def _can_change(local: LocalMachine, setting: str) -> bool:
    """Whether a setting can be made here without rights."""
    if setting == "cpus=all":
        # A control group may hold this process to fewer CPUs than it requests.
        allowed = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, local.facts.online)
            return len(os.sched_getaffinity(0)) == len(local.facts.online)
        except OSError:
            return False
        finally:
            os.sched_setaffinity(0, allowed)
    if setting == "topology=install":
        return Path("/run/nova-hpc/nccl-topology.xml").exists()
    if setting == "cpus=half":
        return len(local.facts.allowed) > 1
    return True


def _save_baseline(path: str, local: LocalMachine, series: Series, probes: Sequence[Probe]) -> None:
    versions = {**local.toolbox.list_versions(), **list_digests(probes)}
    text = write_baseline(build_key(local.facts, versions, local.scale), series.test)
    try:
        with open(path, "x", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
    except OSError as error:
        raise AcceptanceError(f"--save-baseline {path!a}: {error.strerror or error}") from error


def _list_values(probes: Sequence[Probe], series: Series) -> Iterator[MeasuredValue]:
    for probe in probes:
        values = [
            sample.readings[probe.name].value
            for sample in series.test
            if probe.name in sample.readings
        ]
        if values:
            yield MeasuredValue(probe.name, probe.unit, median(values), len(values))


def _join_reasons(series: Series, own: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return probes that were missing, and probes whose tool failed in any round, with reasons.

    :param own: names of the user's probes, which count as failed also if the baseline's run failed.
    """
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}
    for sample in series.base:
        for name in sample.failed:
            if name in own:
                failed[name] = f"at the baseline: {sample.failed[name]}"
    for sample in series.test:
        missing.update(sample.missing)
        failed.update(sample.failed)
    return missing, failed


def _read_baselines(paths: Sequence[str]) -> AcceptanceBaseline | None:
    if not paths:
        return None
    return join_baselines([read_baseline(_read_file(path, "--baseline")) for path in paths])


def _read_scale(baseline: AcceptanceBaseline | None) -> float | None:
    """Return the part of the work with which a file was measured; None without a file.

    :raises AcceptanceError: the file's number is none.
    """
    scale = 1.0 if baseline is None else baseline.key.get("scale", 1.0)
    if not is_number(scale) or not 0 < scale <= 1:
        raise AcceptanceError(f"the baseline: scale is {shorten(scale)}")
    return None if baseline is None else float(scale)


def read_floors(path: str | None, own: Sequence[Probe] = ()) -> dict[str, float]:
    """Read the floors of a file: probe -> ratio below which it is slow.

    :param own: the probes of the user, which a file may name, too.
    :raises AcceptanceError: it cannot be read, or is none.
    """
    if path is None:
        return {}
    try:
        data = json.loads(_read_file(path, "--floors"))
    except (ValueError, RecursionError) as error:
        raise AcceptanceError(f"--floors {path!a}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise AcceptanceError(f"--floors {path!a}: no JSON object")
    names = {*PROBE_OF, *(probe.name for probe in own)}
    for name, floor in data.items():
        if name not in names:
            raise AcceptanceError(f"--floors {path!a}: {name!a} is no probe")
        if not is_number(floor) or not 0 < floor <= 1:
            raise AcceptanceError(f"--floors {path!a}: {name} is no ratio from 0 to 1")
    return {name: float(floor) for name, floor in data.items()}


def _read_file(path: str, option: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            text = file.read(_LONGEST)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AcceptanceError(f"{option} {path!a}: {reason}") from error
    return text


def _format_lines(result: AcceptanceResult, form: str) -> Iterator[str]:
    if form == "json":
        yield results.write_acceptance(result).rstrip("\n")
    elif form == "svg":
        yield draw_result(result)
    elif form == "junit":
        yield format_junit(result)
    else:
        yield from format_result(result)


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the present step on one line; without a terminal nothing."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield lambda _: None
        return

    def show(text: str) -> None:
        with contextlib.suppress(OSError):
            stream.write(f"\r\033[K{text[:78]}")
            stream.flush()

    try:
        yield show
    finally:
        show("")
