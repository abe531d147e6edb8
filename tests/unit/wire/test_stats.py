# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.wire import stats
from nova_hpc_common.wire.version import WireError

REASON = "IOMMU group 17 is not viable: 0000:22:00.0 (igb) is in it"


def test_a_healthy_node_says_almost_nothing():
    assert stats.StatsDocument().dumps() == '{"v":1}'
    assert stats.read_stats_or_none('{"v":1}') == stats.StatsDocument()


def test_devices_are_grouped_by_reason():
    document = stats.StatsDocument(withheld={"0000:22:10.2": REASON, "0000:22:10.0": REASON})
    assert json.loads(document.dumps()) == {
        "v": 1,
        "withheld": {REASON: ["0000:22:10.0", "0000:22:10.2"]},
    }


texts = st.text(max_size=300)
addresses = st.from_regex(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True)
documents = st.builds(
    stats.StatsDocument,
    withheld=st.dictionaries(addresses, texts),
    in_use=st.dictionaries(addresses, texts),
    notes=st.lists(texts, max_size=4).map(tuple),
    left_out=st.integers(0, 9),
)


@given(documents)
def test_what_is_written_can_be_read(document):
    text = document.dumps()
    assert text.isascii()
    assert len(text) < stats.LIMIT
    read = stats.read_stats_or_none(text)
    whole = len(document.withheld) + len(document.in_use) + document.left_out
    assert len(read.withheld) + len(read.in_use) + read.left_out == whole
    if not read.left_out:
        assert read == document


@given(st.integers(200, 4000), st.booleans())
def test_a_long_document_is_cut_and_says_so(count, same):
    withheld = {
        f"0000:{n >> 8:02x}:{(n >> 3) & 0x1F:02x}.{n & 7}": REASON if same else f"{n} {REASON}"
        for n in range(count)
    }
    text = stats.StatsDocument(withheld=withheld, in_use={"0001:00:00.0": "ill"}).dumps()
    assert len(text.encode()) < stats.LIMIT
    read = stats.read_stats_or_none(text)
    assert len(read.withheld) + len(read.in_use) + read.left_out == count + 1
    assert read.withheld.items() <= withheld.items()
    if read.left_out:
        # Not cut earlier than needed: another device would hardly fit.
        assert len(text) > stats.LIMIT - 512


def test_notes_are_bounded():
    text = stats.StatsDocument(notes=("\u2620" * 10000,) * 100).dumps()
    assert len(text) < stats.LIMIT
    assert stats.read_stats_or_none(text).notes == ("?" * 240,) * 8


def test_other_versions_and_garbage_are_not_read():
    good = stats.StatsDocument(withheld={"0000:22:10.0": REASON}).dumps()
    assert stats.read_stats_or_none(good[: len(good) // 2]) is None
    assert stats.read_stats_or_none(good.replace('"v":1', '"v":2')) is None
    assert stats.read_stats_or_none(good.replace('"v":1', '"v":true')) is None
    for value in (
        None,
        3,
        "",
        "[]",
        "null",
        "[" * 100000,
        '{"v":1,"withheld":[]}',
        '{"v":1,"withheld":{"x":[1]}}',
        '{"v":1,"withheld":{"x":"y"}}',
        '{"v":1,"notes":[1]}',
        '{"v":1,"notes":{}}',
        '{"v":1,"left_out":-1}',
        '{"v":1,"left_out":"2"}',
        " " * 10**6,
    ):
        assert stats.read_stats_or_none(value) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["v", "withheld", "in_use", "notes", "left_out"]) | st.text(), inner
            )
        ),
    )
)
def test_reading_never_raises(body):
    if isinstance(body, dict):
        body["v"] = 1
    stats.read_stats_or_none(json.dumps(body))


def test_what_cannot_be_read_is_not_nothing():
    assert stats.read_stats(None) is None
    for value in ('{"v":2}', "", "{", '{"v":1,"withheld":[]}'):
        with pytest.raises(WireError):
            stats.read_stats(value)


@pytest.mark.parametrize(
    ("text", "tagged", "out"),
    [
        (stats.StatsDocument().dumps(), True, None),
        (stats.StatsDocument().dumps(), False, None),
        # A node that this project has nothing to do with.
        (None, False, None),
        (None, True, "it runs Nova's own libvirt driver, not HpcLibvirtDriver"),
        ('{"v":2}', True, "the node's withheld devices are unknown: the statistics document has"),
        ('{"v":2}', False, "the node's withheld devices are unknown: the statistics document has"),
        ("", False, "the node's withheld devices are unknown: the statistics document is not JSON"),
        (7, True, "the node's withheld devices are unknown: the statistics document is no text"),
    ],
)
def test_whether_a_node_may_have_servers(text, tagged, out):
    word = stats.judge_node_stats(text, tagged)
    assert (word.out or "").startswith(out or "")
    assert (word.out is None) == (out is None)
    assert (word.document is not None) == (out is None and text is not None)
