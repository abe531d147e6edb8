# SPDX-License-Identifier: Apache-2.0
"""What the ledger keeps of an owner's report, and how long."""

from __future__ import annotations

import json
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.watch import owner_report
from nova_hpc.tenancy.watch.owner_report import OwnerReport
from nova_hpc.wire.ledger import LedgerDevice
from nova_hpc_common.wire.server_faults import FaultWord

ONE, TWO = "server-1", "server-2"
FULL = OwnerReport(ONE, {FaultWord.SLOW: 1767225600.0, FaultWord.GONE: 5.0}, judged=9.0)


def read(device: LedgerDevice) -> OwnerReport | None:
    return owner_report.load_owner_report(device.report)


def test_there_and_back() -> None:
    for entry in (FULL, attrs.evolve(FULL, judged=None)):
        assert owner_report.load_owner_report(json.loads(json.dumps(entry.dumps()))) == entry
    assert owner_report.load_owner_report(None) is None


def test_the_report_for_operators() -> None:
    assert FULL.text(lambda moment: f"<{moment:.0f}>") == (
        "reported by the owner of server server-1: gone since <5>, slow since <1767225600>; "
        "checked <9>"
    )
    assert attrs.evolve(FULL, judged=None).text(str).endswith("slow since 1767225600.0")


def test_words_that_no_owner_has_are_left_out() -> None:
    body = FULL.dumps()
    body["words"] |= {"host": 1.0, "melted": 1.0}
    assert owner_report.load_owner_report(body) == FULL


def test_a_report_stays_until_its_owner_takes_it_back_or_another_one_reports() -> None:
    device = owner_report.put_reported_words(LedgerDevice(), ONE, {FaultWord.SLOW: 1.0})
    assert owner_report.is_unjudged(device, ONE)
    assert not owner_report.is_unjudged(device, TWO)
    # Another server's owner without a report takes back nothing, and judges nothing.
    assert owner_report.put_reported_words(device, TWO, {}) == device
    assert owner_report.put_judged(device, TWO, 3.0) == device
    judged = owner_report.put_judged(device, ONE, 3.0)
    assert read(judged) == OwnerReport(ONE, {FaultWord.SLOW: 1.0}, 3.0)
    assert not owner_report.is_unjudged(judged, ONE)
    assert owner_report.put_judged(judged, ONE, 4.0) == judged
    other = owner_report.put_reported_words(judged, TWO, {FaultWord.LINK: 7.0})
    assert read(other) == OwnerReport(TWO, {FaultWord.LINK: 7.0})
    assert owner_report.put_reported_words(other, TWO, {}) == LedgerDevice()


_OTHERS = st.one_of(st.text(), st.booleans(), st.none(), st.lists(st.none()), st.just({"": ""}))


@given(st.sampled_from(["server", "words", "judged"]), _OTHERS)
def test_a_damaged_report_never_raises(key: str, value: Any) -> None:
    device = LedgerDevice(report={**FULL.dumps(), key: value})
    entry = read(device)
    assert entry is None or isinstance(entry.text(str), str)
    assert owner_report.put_judged(device, TWO, 3.0) == device
    changed = owner_report.put_reported_words(device, TWO, {FaultWord.LINK: 7.0})
    assert read(changed) == OwnerReport(TWO, {FaultWord.LINK: 7.0})
