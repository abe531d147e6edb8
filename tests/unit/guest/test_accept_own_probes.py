# SPDX-License-Identifier: Apache-2.0
"""Probes of the user: their files, the figures that they read, and runs of real programs.

The outputs in tests/data/accept/own are real: its README names the programs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest import build, command
from nova_hpc_guest.accept import own_probes
from nova_hpc_guest.accept.own_probes import (
    FigureReader,
    OwnProbes,
    decode_probes,
    join_probes,
    list_digests,
    parse_probes,
    read_probe_file,
)
from nova_hpc_guest.accept.probes import Probe
from nova_hpc_guest.accept.sample import AcceptanceError
from tests.unit.guest.accept_cases import DATA
from tests.unit.guest.accept_world import AcceptWorld, list_processes

TOP = Path(__file__).parents[3]
SAMPLES = TOP / "docs/source/user/samples/probes"
#: Sample, probe, real output, its figure.
REAL = (
    ("lammps", "lammps", "lammps", 202.670),
    ("lammps-gpu", "lammps_gpu", "lammps-gpu", 81.266),
    ("hpcc", "hpcc_hpl", "hpcc", 0.00256378),
    ("hpcc", "hpcc_triad", "hpcc", 59.7652),
    ("hpcc", "hpcc_random", "hpcc", 0.889516),
    ("hpcc", "hpcc_fft", "hpcc", 5.06337),
    ("hpcc", "hpcc_pingpong", "hpcc", 0.150288),
    ("osu", "osu_lat", "osu-latency", 0.38),
    ("osu", "osu_bw", "osu-bandwidth", 3530.72),
    # Not run: its rows have the form of this test of the same suite.
    ("osu-all", "osu_allreduce", "osu-latency", 445.98),
    ("nas", "nas_ep", "nas", 74.17),
    *(
        ("osu-sizes", f"osu_lat_{size}", "osu-latency", value)
        for size, value in {4: 0.4, 16: 0.58, 64: 0.54, 256: 0.36, 1024: 1.42, 4096: 9.43}.items()
    ),
)
GOOD = "[mine]\ncommand = mine --fast\nfigure = rate: (\\S+)\nunit = x/s\nbetter = higher\n"
SPACES = ("\u00a0", "\u202f", "\u2009")


def read_sample(name: str) -> OwnProbes:
    return read_probe_file(str(SAMPLES / f"{name}.ini"))


def probe_of(sample: str, name: str) -> Probe:
    (probe,) = [probe for probe in read_sample(sample).probes if probe.name == name]
    return probe


def describe(probes: OwnProbes) -> str:
    """All of it as text: bound methods of equal readers are not equal."""
    return repr(probes)


def output_of(name: str) -> str:
    return (DATA / "own" / f"{name}.txt").read_text()


# -- the samples ------------------------------------------------------------------------


@pytest.mark.parametrize(("sample", "name", "output", "value"), REAL)
def test_the_samples_read_real_outputs(sample: str, name: str, output: str, value: float) -> None:
    probe = probe_of(sample, name)
    assert probe.read(output_of(output), "", 0.0) == value
    lower = ("osu_lat", "osu_allreduce", "hpcc_pingpong")
    assert probe.higher == (not name.startswith(lower))


def test_every_sample_is_tried() -> None:
    samples = {path.stem: read_sample(path.stem).probes for path in SAMPLES.iterdir()}
    tried = {(sample, name) for sample, name, _, _ in REAL} | {("hoomd", "hoomd")}
    assert {(sample, probe.name) for sample in samples for probe in samples[sample]} == tried
    page = (TOP / "docs/source/user/acceptance.rst").read_text()
    assert set(re.findall(r"samples/probes/([\w-]+)\.ini", page)) == set(samples)


def test_the_lines_that_the_sample_of_hoomd_asks_for() -> None:
    line = re.search(r"^#   (print\(.*\))$", (SAMPLES / "hoomd.ini").read_text(), re.M)
    assert line is not None
    for tps in (1234.5678, 1.5e-07, 2e22):
        program = f"class simulation: tps = {tps!r}\n{line[1]}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert probe_of("hoomd", "hoomd").read(done.stdout, "", 0.0) == tps


@pytest.mark.parametrize(
    ("sample", "name", "output", "good", "bad"),
    [
        ("hpcc", "hpcc_hpl", "hpcc", "Success=1", "Success=0"),
        ("nas", "nas_ep", "nas", "   SUCCESSFUL", " UNSUCCESSFUL"),
    ],
)
def test_a_run_with_wrong_results_has_no_figure(sample, name, output, good, bad) -> None:
    text = output_of(output)
    assert good in text
    with pytest.raises(ValueError, match="expect matches no line"):
        probe_of(sample, name).read(text.replace(good, bad), "", 0.0)


@given(st.sampled_from(REAL), st.data())
def test_a_damaged_output_gives_the_number_or_none(case, data) -> None:
    """Lines are lost, doubled, torn, or filled with something else; never another number."""
    sample, name, output, value = case
    probe, lines = probe_of(sample, name), output_of(output).splitlines(keepends=True)
    (at,) = [place for place, line in enumerate(lines) if _matches(probe, line)]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(("lose", "double", "text", "torn", "end")))
        if kind == "lose":
            lines[place] = ""
        elif kind == "double":
            lines[place] *= 2
        elif kind == "text" and place != at:
            lines[place] = data.draw(st.text(max_size=30).filter(lambda text: "=" not in text))
        elif kind == "torn" and place != at:
            lines[place] = lines[place][: data.draw(st.integers(0, len(lines[place])))]
        elif kind == "end":
            text = "".join(lines)
            lines = [text[: data.draw(st.integers(0, len(text)))]]
            break
    with contextlib.suppress(ValueError):
        assert probe.read("".join(lines), "", 0.0) == value


def _matches(probe: Probe, line: str) -> bool:
    try:
        probe.read("Success=1\n Verification    =               SUCCESSFUL\n" + line, "", 0.0)
    except ValueError:
        return False
    return True


# -- figures ----------------------------------------------------------------------------

#: How programs write a number -> a number of the C locale.
STYLES: dict[str, tuple[Callable[[float], str], bool]] = {
    "plain": (lambda value: f"{value:.6f}", True),
    "short": (lambda value: f"{value:.12g}", True),
    "power": (lambda value: f"{value:.9e}", True),
    "comma": (lambda value: f"{value:.6f}".replace(".", ","), False),
    "german": (lambda value: f"{value + 1000:,.2f}".translate({44: ".", 46: ","}), False),
    "english": (lambda value: f"{value + 1000:,.2f}", False),
    "swiss": (lambda value: f"{value + 1000:,.2f}".replace(",", "'"), False),
    "fortran": (lambda value: f"{value:.9e}".replace("e", "D"), False),
    "minus": (lambda value: f"{-value:.6f}", False),
    "hexadecimal": (float.hex, False),
    **{
        f"french {ord(space):x}": (
            lambda value, space=space: f"{value + 1000:,.2f}".translate({44: space, 46: ","}),
            False,
        )
        for space in SPACES
    },
}
PATTERNS = (r"rate: (\S+)", r"rate: ([\d.]+)", r"rate:.*?(\d+)", r"rate: (\d+\.\d+)", r"(\d+)$")


@given(
    st.floats(1e-5, 1e15),
    st.sampled_from(sorted(STYLES)),
    st.sampled_from(PATTERNS),
    st.sampled_from(("", " x/s", "x/s", ", and more", ".")),
)
def test_no_part_of_a_number_is_taken_for_it(value, style, pattern, after) -> None:
    text = STYLES[style][0](value)
    try:
        read = FigureReader(pattern).read(f"begin\nrate: {text}{after}\nend\n")
    except ValueError:
        # The simplest pattern finds whole numbers.
        assert not (STYLES[style][1] and pattern == PATTERNS[0] and after in ("", " x/s"))
        return
    assert STYLES[style][1]
    assert read == float(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "figure matches no line; the last one is ''"),
        ("rate is high\nbye\n-----\n\n", "figure matches no line; the last one is 'bye'"),
        ("rate: 1\nrate: 2\n", "figure matches 2 times: 'rate: 1' and 'rate: 2'"),
        ("rate: 1 rate: 2\n", "figure matches 2 times"),
        ("rate: nan\n", "'nan' is no number of the C locale: 'rate: nan'"),
        ("rate: inf\n", "'inf' is no number"),
        ("rate: 0\n", "0 is no finite number above 0: 'rate: 0'"),
        ("rate: 1e999\n", "1e999 is no finite number above 0"),
        ("rate: \u0663\n", "'\\u0663' is no number"),
        ("rate: 1_000\n", "'1_000' is no number"),
        ("rate: 12", "the output ends within the line of the figure: 'rate: 12'"),
        ("rate: \ufffd\ufffd\n", "is no number of the C locale"),
        ("x" * 20_000, "a line has more than 16384 characters"),
    ],
)
def test_an_output_without_one_figure_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        FigureReader(r"rate: (\S+)").read(text)


def test_a_progress_line_is_not_the_last_line() -> None:
    text = "10%\r50%\rrate: 5\r\ndone"
    assert FigureReader(r"^rate: (\S+)$").read(text) == 5


# -- files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[mine]\n", "", "no INI file"),
        (GOOD, "", "it has no section: begin with the probe's name, as in [lammps]"),
        (GOOD, "# x" * 9000, "it has more than 16384 characters"),
        ("[mine]", "[Mine]", "[Mine] the name: use up to 13 of a-z, 0-9 and _"),
        ("[mine]", "[DEFAULT]", "[DEFAULT] the name"),
        ("[mine]", "[cpu_one]", "no name of another probe"),
        ("[mine]", "[a_longer_name_]", "the name: use up to 13"),
        ("[mine]", "[\x1b[31m]", "[\\x1b[31m] the name"),
        ("better", "worse", "[mine] 'worse' is no field here: use command, figure, unit"),
        ("unit = x/s\n", "", "[mine] unit is missing: add a line as unit = steps/s"),
        ("mine --fast", "", "command is missing: add a line as command = mpirun"),
        ("mine --fast", "'mine", "command: No closing quotation: close the quotation"),
        ("mine --fast", "'a\x1bb'", "command: use printable words, with the program first"),
        ("mine --fast", "mine {peer}", "has scope = pair"),
        ("unit", "scope = pair\nunit", "has scope = pair"),
        ("unit", "scope = whole\nunit", "has scope = whole"),
        ("mine --fast", "mine {hosts}", "has scope = whole"),
        ("mine --fast", "mine {hosts}\nscope = pair", "has scope = pair"),
        ("unit", "scope = all\nunit", "scope: 'all' is not one of member, pair, whole"),
        (r"(\S+)", r"\S+", "figure has 0 groups, not 1"),
        (r"(\S+)", r"(\S)(\S)", "figure has 2 groups, not 1"),
        (r"(\S+)", r"(\S+", "figure is no regular expression"),
        ("unit", "expect = (ok)\nunit", "expect has 1 groups, not 0"),
        ("x/s", "x s", "unit: use up to 16 characters of ASCII without blanks"),
        ("= higher", "= more", "better: 'more' is not one of higher, lower"),
        ("unit", "seconds = 0\nunit", "seconds: '0' is no number above 0 and up to 7200"),
        ("unit", "seconds = nan\nunit", "seconds: 'nan' is no number"),
        ("unit", "floor = 1,5\nunit", "floor: '1,5' is no number above 0 and up to 1"),
        ("unit", "unit = y\nunit", "no INI file"),
        (GOOD, f"{GOOD}{GOOD}", "no INI file"),
        ("command = mine --fast", "of = other", "of: 'other' is no section above"),
        ("command", "of = other\ncommand", "'command' is no field here"),
    ],
)
def test_a_wrong_file_is_named_with_field_and_cure(old, new, reason, tmp_path: Path) -> None:
    assert GOOD.count(old) == 1
    place = tmp_path / "mine.ini"
    place.write_text(GOOD.replace(old, new))
    with pytest.raises(AcceptanceError) as caught:
        read_probe_file(str(place))
    assert str(caught.value).startswith(f"--probe {str(place)!a}: ")
    assert reason in str(caught.value)
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AcceptanceError, match="No such file"):
        read_probe_file(str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe[x]")
    with pytest.raises(AcceptanceError, match="can't decode"):
        read_probe_file(str(tmp_path / "bytes"))


@given(st.text() | st.text(alphabet="[]mine=of(\\S+)\n #;%{}'\"x"))
def test_no_text_of_a_file_breaks_the_reader(text: str) -> None:
    for damaged in (text, GOOD + text, GOOD.replace("rate: ", text)):
        try:
            probes = parse_probes(damaged)
        except ValueError:
            continue
        assert describe(decode_probes(probes.words[1])) == describe(probes)


def test_the_word_for_another_machine_needs_no_quotation() -> None:
    probes = read_sample("hpcc")
    assert re.fullmatch(r"[\w=-]+", probes.words[1])
    assert describe(decode_probes(probes.words[1])) == describe(probes)
    for word in ("!", "x", "\u00e4", "W10="):
        with pytest.raises(argparse.ArgumentTypeError):
            decode_probes(word)


def test_names_are_unique_and_known() -> None:
    mine = parse_probes(GOOD)
    with pytest.raises(AcceptanceError, match=r"two files have \[mine\]: rename one"):
        join_probes([mine, mine])
    assert join_probes([mine], ("mine", "cpu_one")) == mine.probes
    with pytest.raises(AcceptanceError, match=r"'yours' is not one of cpu_one, .*, mine$"):
        join_probes([mine], ("yours",))


def test_a_digest_changes_with_the_definition() -> None:
    def digest(text: str) -> str:
        (value,) = list_digests(parse_probes(text).probes).values()
        return value

    assert digest(GOOD) == digest(f"# a comment\n{GOOD}floor = 0.5\n")
    changes = (("--fast", ""), ("rate", "r"), ("x/s", "y/s"), ("higher", "lower"))
    digests = {digest(GOOD.replace(old, new)) for old, new in changes}
    assert len(digests | {digest(GOOD)}) == 5


# -- runs -------------------------------------------------------------------------------


@pytest.fixture
def mine(world: AcceptWorld) -> AcceptWorld:
    world.tool("mine", 'echo "rate: 5 of $LC_ALL"\n'.join(("#!/bin/sh\n", "")))
    (world.folder / "mine.ini").write_text(GOOD)
    return world


def run(world: AcceptWorld, *arguments: str, only: str | None = "mine") -> dict:
    file = str(world.folder / "mine.ini")
    _, out, err = world.run("--probe", file, "--format", "json", *arguments, only=only)
    assert out, err
    return json.loads(out)


def beside(world: AcceptWorld, rate: str) -> str:
    """A command that measures an equal machine; its own program has another rate."""
    other = world.folder / "other"
    other.mkdir()
    (other / "mine").write_text(f'#!/bin/sh\necho "rate: {rate}"\n')
    (other / "mine").chmod(0o755)
    return (
        f"/usr/bin/env PATH={other}:{world.tools}:/bin PYTHONPATH={TOP} RATES={world.rates}"
        f" {sys.executable} -m nova_hpc_guest.command accept --root {world.root} --busy --sample"
    )


def test_without_a_baseline_it_is_measured_and_not_judged(mine: AcceptWorld) -> None:
    data = run(mine, only="mine,mem_stream")
    assert [row["probe"] for row in data["rows"]] == ["mem_stream"]
    values = {value["probe"]: value for value in data["measured"]}
    assert values["mine"] == {"probe": "mine", "unit": "x/s", "median": 5.0, "runs": 6}
    assert "mine: compared with nothing; add --beside or --baseline" in data["notes"]
    _, out, _ = mine.run("--probe", str(mine.folder / "mine.ini"), only="mine")
    assert re.search(r"^mine .* 5 .* not judged x/s, 6 runs$", out, re.M)
    assert out.endswith("verdict: not measurable\n")


def test_it_belongs_to_every_measurement(mine: AcceptWorld) -> None:
    data = run(mine, "--sample", only=None)
    assert data["probes"]["mine"]["value"] == 5
    assert "cpu_one" in data["probes"]


@pytest.mark.parametrize(("rate", "verdict"), [("5", "accepted"), ("10", "slow")])
def test_it_is_judged_against_another_machine(mine: AcceptWorld, rate, verdict) -> None:
    data = run(mine, "--beside", beside(mine, rate))
    (row,) = data["rows"]
    assert data["verdict"] == verdict
    assert (row["probe"], row["unit"], row["pairs"], row["floor"]) == ("mine", "x/s", 6, 0.9)
    assert row["ratio"] == pytest.approx(5 / float(rate))
    assert data["unexplained"] == (["mine"] if verdict == "slow" else [])


def test_a_file_of_floors_may_name_it(mine: AcceptWorld) -> None:
    floors = mine.folder / "floors"
    floors.write_text('{"mine": 0.45}')
    data = run(mine, "--beside", beside(mine, "10"), "--floors", str(floors))
    assert (data["verdict"], data["rows"][0]["floor"]) == ("accepted", 0.45)
    floors.write_text('{"yours": 0.45}')
    words = ("--probe", str(mine.folder / "mine.ini"), "--floors", str(floors))
    status, out, _ = mine.run(*words, only="mine")
    assert (status, "'yours' is no probe" in out) == (2, True)


def test_a_program_that_fails_at_the_baseline_is_named(mine: AcceptWorld) -> None:
    data = run(mine, "--beside", beside(mine, "n/a"))
    assert (data["verdict"], data["rounds"], data["rows"]) == ("not measurable", 1, [])
    assert data["failed"]["mine"].startswith("at the baseline: mine printed something that is not")
    assert "'rate: n/a'" in data["failed"]["mine"]


def test_a_lower_figure_may_be_better(mine: AcceptWorld) -> None:
    (mine.folder / "mine.ini").write_text(GOOD.replace("higher", "lower"))
    data = run(mine, "--beside", beside(mine, "2"))
    assert (data["verdict"], data["rows"][0]["ratio"]) == ("slow", pytest.approx(0.4))


def test_a_baseline_of_another_definition_is_refused(mine: AcceptWorld) -> None:
    file, saved = str(mine.folder / "mine.ini"), str(mine.folder / "saved.json")
    status, out, err = mine.run("--probe", file, "--save-baseline", saved, only=None)
    assert "wrote" in out, (status, err)
    assert run(mine, "--baseline", saved)["rows"][0]["verdict"] == "level"
    (mine.folder / "mine.ini").write_text(GOOD.replace("--fast", "--slow"))
    assert "probe mine '" in run(mine, "--baseline", saved)["refused"]["text"]


def test_one_run_gives_further_figures(mine: AcceptWorld) -> None:
    log = mine.folder / "log"
    mine.tool("mine", f"#!/bin/sh\necho run >> {log}\necho rate: 5\necho delay: 7\n")
    more = "[delay]\nof = mine\nfigure = delay: (\\S+)\nunit = us\nbetter = lower\n"
    (mine.folder / "mine.ini").write_text(GOOD + more)
    data = run(mine, only="delay")
    assert [value["probe"] for value in data["measured"]] == ["delay"]
    data = run(mine, "--sample", only="mine,delay")
    assert {name: item["value"] for name, item in data["probes"].items()} == {"mine": 5, "delay": 7}
    assert log.read_text() == "run\n" * 7


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo rubbish\n", "mine printed something that is not its result: figure matches no line"),
        ("echo rate: 1; echo rate: 2\n", "figure matches 2 times: 'rate: 1' and 'rate: 2'"),
        ("echo rate: NaN\n", "'NaN' is no number of the C locale: 'rate: NaN'"),
        ("echo 'rate: 1,5'\n", "'1,5' is no number of the C locale"),
        ("echo; echo Bad input; echo ---; exit 3\n", "mine: it ended with status 3: 'Bad input'"),
        ("echo almost; kill -9 $$\n", "mine: it was killed by SIGKILL: 'almost'"),
        ("head -c 9000 /dev/urandom; echo\n", "printed something that is not its result"),
        (None, "mine: it does not start: No such file or directory"),
    ],
)
def test_a_bad_program_is_named_and_never_accepted(mine: AcceptWorld, text, reason) -> None:
    if text is None:
        (mine.tools / "mine").unlink()
    else:
        mine.tool("mine", f"#!/bin/sh\nPATH=/bin:/usr/bin\n{text}")
    data = run(mine, only="mine,mem_stream")
    assert data["verdict"] == "not measurable"
    assert reason in data["failed"]["mine"]
    assert data["failed"]["mine"].isascii()


def test_a_program_that_fails_is_not_run_again(mine: AcceptWorld) -> None:
    log = mine.folder / "log"
    mine.tool("mine", f"#!/bin/sh\necho run >> {log}\nexit 3\n")
    data = run(mine, only="mine,mem_stream")
    assert log.read_text() == "run\n"
    assert [row["pairs"] for row in data["rows"]] == [6]


def test_a_program_that_hangs_is_ended_with_its_children(mine: AcceptWorld) -> None:
    mark = f"317{os.getpid()}"
    mine.tool("mine", f"#!/bin/sh\n/bin/sleep {mark} & /bin/sleep {mark}\n")
    (mine.folder / "mine.ini").write_text(f"{GOOD}seconds = 0.3\n")
    start = time.monotonic()
    data = run(mine, "--sample")
    assert data["failed"]["mine"] == "mine: it was ended at its limit of 0.3 s"
    assert time.monotonic() - start < 20
    assert not list_processes(mark)


def test_the_locale_is_that_of_c(mine: AcceptWorld) -> None:
    (mine.folder / "mine.ini").write_text(GOOD.replace("rate: (\\S+)", "rate: (\\S+) of C$"))
    assert run(mine, "--sample")["probes"]["mine"]["value"] == 5


def test_a_pair_needs_a_peer(mine: AcceptWorld) -> None:
    mine.tool("mine", '#!/bin/sh\necho "rate: 5 with $2"\n')
    text = GOOD.replace("mine --fast", "mine --to {peer}\nscope = pair")
    (mine.folder / "mine.ini").write_text(text.replace("(\\S+)", "(\\S+) with 10.1.2.3$"))
    assert run(mine, "--sample")["missing"] == {"mine": "no --peer"}
    assert run(mine, "--sample", "--peer", "10.1.2.3")["probes"]["mine"]["value"] == 5


def test_a_run_over_a_set_needs_its_addresses(mine: AcceptWorld) -> None:
    mine.tool("mine", '#!/bin/sh\n[ "$*" = "-np 2 -H 10.1.2.3,10.1.2.4" ] && echo rate: 5\n')
    text = GOOD.replace("mine --fast", "mine -np {members} -H {hosts}\nscope = whole")
    (mine.folder / "mine.ini").write_text(text)
    reason = "it runs over all members of a cluster: openstack hpc cluster accept"
    assert run(mine, "--sample")["missing"] == {"mine": reason}
    data = run(mine, "--sample", "--hosts", "10.1.2.3,10.1.2.4")
    assert data["probes"]["mine"]["value"] == 5
    # It can be made there, so it is no obstacle for the machine that asks.
    assert run(mine, "--sample", "--first", "--busy")["first"]["obstacles"].get("mine") is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "yours"), "'yours' is not one of cpu_one"),
        (("--probe-data", "rubbish!"), "argument --probe-data"),
    ],
)
def test_wrong_options_end_the_command(arguments, words, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["accept", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_file_that_cannot_be_used_refuses_the_run(mine: AcceptWorld) -> None:
    for arguments, only, words in (
        (("--probe", "/none"), None, "refused: --probe '/none': No such file or directory\n"),
        (("--probe", str(mine.folder / "mine.ini")), "yours", "refused: --only: 'yours' is not"),
    ):
        status, out, _ = mine.run(*arguments, only=only)
        assert status == 2
        assert out.startswith(words)


def test_the_help_has_an_example_and_no_internal_option(capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(["accept", "--help"])
    text = capsys.readouterr().out
    for words in ("as fast as it should be", "exit status:\n  0  accepted", "--probe lammps.ini"):
        assert words in text
    internal = ("--first", "--setting", "--within", "--serve", "--hold", "--probe-data")
    assert [option for option in internal if option in text] == []


def test_the_time_limits_are_part_of_the_budget() -> None:
    from nova_hpc_guest.accept.options import find_budget

    assert find_budget("quick", ()) == 240
    assert find_budget("quick", read_sample("hpcc").probes) == 240 + 12 * 1800


def test_the_one_file_reads_probes(mine: AcceptWorld) -> None:
    place = mine.folder / "nova-hpc-guest"
    place.write_bytes(build.single_file())
    assert "nova_hpc_guest/accept/own_probes.py" in zipfile.ZipFile(place).namelist()
    words = [sys.executable, "-I", str(place), "accept", "--root", str(mine.root), "--sample"]
    file = str(mine.folder / "mine.ini")
    done = subprocess.run(
        [*words, "--only", "mine", "--probe", file],
        env=mine.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["probes"]["mine"]["value"] == 5
    assert own_probes.PEER == "{peer}"
