# SPDX-License-Identifier: Apache-2.0
"""The page *Why was my server refused?* has what users of servers can read, and nothing else."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

import attrs
import pytest

from nova_hpc.placement import flavor, user_reasons
from nova_hpc.placement.model import Ports, Unmet, Want, WantedCell
from nova_hpc.placement.shortage import HostWish, Shortage, WishSign, WishSource
from nova_hpc.placement.solver.operator_reasons import PLACES
from nova_hpc.tenancy.segments.segment_choice import LACK_TEXTS
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc_common.level import AffinityPolicy, Level
from tests.unit.refusal_texts import (
    NEUTRON_SAYS,
    PACKAGES,
    TOP,
    VALUE,
    all_texts,
    read_texts,
)

PAGE = TOP / "docs/source/user/refused.rst"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = tuple(re.findall(r"^   \* - ``([^`]+)``$", TEXT, re.M))
GPU = (Want("0", "gpu", 4),)
#: Shown with a flavor for each on the page of all keys (test_flavor_page.py).
OF_FLAVORS = ("flavor.py", "grouping.py", "roles.py")
OF_NOVA = ("No valid host was found.",)
#: Which hosts were asked.
ASKED = ({"unusable": True}, {"cut": True}, {"left_out": True})


def read_rows(name: str) -> tuple[str, ...]:
    """The texts that a page has rows for."""
    text = (TOP / f"docs/source/{name}.rst").read_text(encoding="utf-8")
    return tuple(re.findall(r"^   \* - ``([^`]+)``$", text, re.M))


def rows_of(said: str, rows: tuple[str, ...] = ROWS) -> list[str]:
    """The rows whose words are in a text, the most telling first."""
    found = []
    for row in rows:
        pieces = [re.escape(each.strip(" .")) for each in row.split("...")]
        if re.search(".*".join(pieces), said.replace(VALUE, "1")):
            found.append(row)
    return sorted(found, key=lambda row: -len(row.replace("...", "")))


@pytest.mark.parametrize("text", all_texts(), ids=str)
def test_each_text_of_the_code_has_its_row(text) -> None:
    if not text.where.startswith(OF_FLAVORS):
        # A frame of two values alone is filled by another text, which has a row.
        assert rows_of(text.literal) or len(re.sub(r"[\W\0]", "", text.literal)) < 30


def test_each_text_of_neutron_has_its_row() -> None:
    """On the users' page of these networks, or on the operators'."""
    rows = read_rows("user/infiniband-networks") + read_rows("admin/infiniband-partitions")
    texts = [
        text
        for path in sorted((TOP / "neutron_drivers").rglob("*.py"))
        for text in read_texts(path, NEUTRON_SAYS)
    ]
    assert len(texts) > 12
    assert [str(each) for each in texts if not rows_of(each.literal, rows)] == []


def request(level: Level):
    specs = {
        flavor.AFFINITY: level.word,
        flavor.NUMA_POLICY: flavor.numa_policies(level, AffinityPolicy.REQUIRED)[0][0],
        flavor.NVLINK: "required",
    }
    ports = (Ports("p", "port", 4),)
    return flavor.build_request(specs, GPU, (WantedCell(0, 8, 1 << 20),), ports=ports)


def test_each_unmet_wish_has_a_row_of_its_own() -> None:
    said = {unmet: user_reasons.refusal_sentence(request(Level.SWITCH), unmet) for unmet in Unmet}
    best = {unmet: rows_of(sentence)[0] for unmet, sentence in said.items()}
    assert len(set(best.values())) == len(Unmet), best


@pytest.mark.parametrize("level", Level)
def test_each_level_is_on_the_page(level) -> None:
    assert PLACES[level] in " ".join(TEXT.split())


@pytest.mark.parametrize("asked", ASKED, ids=lambda each: next(iter(each)))
def test_which_hosts_were_asked_has_a_row(asked) -> None:
    hosts = user_reasons.AskedHosts(**asked)
    said = user_reasons.refusal_sentence(request(Level.NUMA), Unmet.DEVICES, hosts)
    plain = rows_of(user_reasons.refusal_sentence(request(Level.NUMA), Unmet.DEVICES))
    assert set(rows_of(said)) - set(plain)


def unplaced() -> Iterator[tuple[Shortage | None, tuple[Want, ...]]]:
    """Of each wish: no host at all meets it, and none of those with the devices does."""
    gpu = HostWish(WishSign.DEVICES, "gpu", frozenset("a"), amount=4, free={"a": 4})
    for sign, source in itertools.product(WishSign, WishSource):
        inverted = sign in (WishSign.BANNED, WishSign.CLOSED)
        for some in (frozenset(), frozenset("b")):
            met = frozenset("a" if some else "ab") if inverted else some
            wish = HostWish(sign, "VCPU", met, inverted, amount=4, source=source)
            yield Shortage((gpu, wish)), GPU
    yield None, GPU
    yield Shortage((gpu,)), GPU
    yield Shortage((gpu,), isolated=True), GPU


def test_each_wish_that_placement_does_not_meet_has_a_row() -> None:
    for shortage, wants in unplaced():
        said = user_reasons.explain_unplaced(shortage, wants)
        assert rows_of(said), said


def test_what_placement_does_not_tell_has_a_row() -> None:
    said = [
        *(user_reasons.explain_unplaced(*each) for each in [*unplaced()][-3:]),
        user_reasons.explain_all_left_out(GPU),
        user_reasons.explain_other_rules(GPU),
        user_reasons.UNUSABLE,
    ]
    best = [rows_of(each)[0] for each in said]
    assert len(set(best)) == len(said), best


@pytest.mark.parametrize("sign", HealthSign)
def test_each_sign_of_a_device_has_a_row(sign) -> None:
    assert Symptom(sign, "for operators").user in ROWS


@pytest.mark.parametrize("lack", LACK_TEXTS, ids=lambda each: each.name)
def test_each_lack_of_shared_memory_has_a_row(lack) -> None:
    assert rows_of(LACK_TEXTS[lack])


def test_each_end_of_a_text_has_a_row() -> None:
    """What ends the sentence of devices that were refused together."""
    ends = set()
    for path in sorted((TOP / "nova_hpc/tenancy").rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        ends |= set(re.findall(r'^ +what = "(\w+ [^"]+)"$', code, re.M))
        ends |= set(re.findall(r'of_devices\([^"]*"(\w+ [^"]+)"\)', code))
    assert len(ends) >= 3
    assert ends <= set(ROWS)


def test_each_kind_of_a_failed_start_is_named() -> None:
    code = (TOP / "virt_driver_patches/errors.py").read_text(encoding="utf-8")
    block = code.partition("class FaultKind(enum.Enum):")[2].partition("\n\n\n")[0]
    kinds = re.findall(r'= "([^"]+)"', block)
    assert len(kinds) == 5
    for kind in kinds:
        assert kind in " ".join(TEXT.split())


def sentences() -> list[str]:
    """What the code makes of the wishes, signs and lacks that there are."""
    said = [
        user_reasons.refusal_sentence(request(level), each) for level in Level for each in Unmet
    ]
    for asked in ASKED:
        hosts = user_reasons.AskedHosts(**asked)
        said.append(user_reasons.refusal_sentence(request(Level.NUMA), Unmet.DEVICES, hosts))
    said += [user_reasons.explain_unplaced(*each) for each in unplaced()]
    said += [user_reasons.explain_all_left_out(GPU), user_reasons.explain_other_rules(GPU)]
    said += [Symptom(sign, "").user for sign in HealthSign]
    # Of the frame for shared memory the ends are these.
    said += [
        *LACK_TEXTS.values(),
        *(f"A server that shares memory {end}" for end in refused_ends()),
    ]
    return [*said, *(text.literal.replace(VALUE, "1") for text in all_texts())]


def refused_ends() -> list[str]:
    """What is refused of servers that share memory (``segments.REFUSED``)."""
    tree = ast.parse((TOP / "virt_driver_patches/driver/segments.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "REFUSED"
    )
    return list(ast.literal_eval(table).values())


def test_each_action_on_shared_memory_has_a_row() -> None:
    for end in refused_ends():
        assert rows_of(f"A server that shares memory {end}")[0] not in (
            "A server that shares memory ...",
        )


def test_each_row_is_said() -> None:
    """By the code as it runs, or in its words between what differs."""
    said = {row for sentence in sentences() for row in rows_of(sentence)}
    code = "".join(
        path.read_text(encoding="utf-8")
        for name in PACKAGES
        for path in sorted((TOP / name).rglob("*.py"))
    )
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    rest = [row for row in ROWS if row not in said and row not in OF_NOVA]
    assert [
        row for row in rest if not all(piece.strip() in code for piece in row.split("..."))
    ] == []
    assert len(said) > 80


def test_a_text_without_a_row_is_found() -> None:
    said = attrs.evolve(all_texts()[0], literal="The moon is in the way of the server")
    assert rows_of(said.literal) == []


def test_no_row_is_so_wide_that_it_hides_others() -> None:
    for row in ROWS:
        assert len(re.sub(r"\W", "", row)) >= 6, row
