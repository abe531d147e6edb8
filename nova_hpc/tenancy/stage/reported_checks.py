# SPDX-License-Identifier: Apache-2.0
"""The test of devices that the owner of their last server has reported. Pure.

It follows a stage that has passed, with the checks of ``[hpc]reported_checks``, at most once for
each tenancy. If it comes to no answer, the stage alone counts: an owner's word withholds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.tenancy.stage import device_stage
from nova_hpc.tenancy.stage.runner import StageOutcome
from nova_hpc.tenancy.watch import owner_report
from nova_hpc.wire.ledger import Ledger, LedgerDevice

_FAILED: Final = "the test after its owner's report"


def find_devices_to_test(
    ledger: Ledger, roles: Mapping[str, str | None], tests: Mapping[str, Sequence[str]]
) -> frozenset[str]:
    """Return the devices whose last owner has reported them, and that no stage has judged since.

    :param roles: address -> role, of devices that are in their stage.
    :param tests: role -> the checks of its test.
    """
    return frozenset(
        address
        for address, role in roles.items()
        if tests.get(role or "") and _is_reported(ledger.device(address))
    )


def _is_reported(device: LedgerDevice) -> bool:
    entry = device_stage.load_stage(device.stage)
    return entry is not None and owner_report.is_unjudged(device, entry.server)


def add_verdicts(
    outcome: StageOutcome, tested: StageOutcome, asked: Collection[str]
) -> StageOutcome:
    """Return the outcome of a stage with the verdicts of the test that followed it.

    :param asked: the reported devices; others were there only because they are given together.
    """
    verdicts = {
        address: f"{_FAILED}: {verdict}"
        for address, verdict in tested.verdicts.items()
        if verdict and address in asked
    }
    return attrs.evolve(outcome, verdicts={**outcome.verdicts, **verdicts})
