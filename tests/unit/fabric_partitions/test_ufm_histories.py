# SPDX-License-Identifier: Apache-2.0
"""Random histories of UFM; ``NOVA_HPC_UFM_HISTORIES=500`` is for a night."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP
from nova_hpc_ufm import subnet_manager as ufm_backend
from nova_hpc_ufm.client import UfmAccess
from tests.unit.fabric_partitions.ufm_history import History
from tests.unit.fabric_partitions.ufm_server import RecordedUfm, serve_ufm

HISTORIES = int(os.environ.get("NOVA_HPC_UFM_HISTORIES", "12"))
FIRST = int(os.environ.get("NOVA_HPC_UFM_FIRST_SEED", "1"))


def test_no_guid_is_ever_in_two_partitions_of_ours(
    conf: cfg.ConfigOpts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ufm_backend, "UfmAccess", lambda **options: UfmAccess(**options, retry_wait=0.0)
    )
    wrongs: list[str] = []
    moments = reported = removed = 0
    for seed in range(FIRST, FIRST + HISTORIES):
        ufm = RecordedUfm()
        with serve_ufm(ufm) as url:
            for option, value in {"ufm_url": url, "state_path": str(tmp_path / str(seed))}.items():
                conf.set_override(option, value, group=AGENT_GROUP.name)
            history = History(seed, ufm, conf[AGENT_GROUP.name])
            wrongs += history.run(60)
        moments += history.moments
        reported += history.reported
        removed += history.removed_strangers

    assert wrongs == []
    # Something has happened in them.
    assert moments > 60 * HISTORIES
    assert reported
    assert removed
