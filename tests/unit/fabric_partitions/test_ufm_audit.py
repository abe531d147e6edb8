# SPDX-License-Identifier: Apache-2.0
"""What UFM tells of its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP
from nova_hpc.fabric.partitions.backends.base import (
    AuditState,
)
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import (
    RecordedUfm,
)
from tests.unit.fabric_partitions.ufm_world import SECURE


class TestAudit:
    """What UFM tells of its settings."""

    def test_by_the_api(self, manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
        ufm.manager = dict(SECURE)

        rows = {row.name: row for row in manager.audit()}

        for name in ("default_partition", "sa_key", "sm_key", "m_key", "vs_key", "virt_enabled"):
            assert rows[name].state is AuditState.MET, rows[name]
        assert rows["topoconfig"].state is AuditState.UNKNOWN
        assert all(row.state is AuditState.MET for row in rows.values() if row.needed)
        shown = repr(rows)
        assert not any(str(SECURE[key]) in shown for key in ("sa_key", "sm_key"))

    def test_what_is_not_told_is_unknown_and_not_unset(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        ufm.manager = {}
        del ufm.partitions["0x7fff"]["membership"]

        rows = {row.name: row for row in manager.audit()}

        assert {row.state for row in rows.values()} == {AuditState.UNKNOWN}
        ufm.manager = {"sm_key": "0x9d0be1f3a7c24861"}
        again = {row.name: row for row in manager.audit()}
        assert again["sm_key"].state is AuditState.MET
        assert again["virt_enabled"].state is AuditState.UNKNOWN
        assert "6.19" in rows["default_partition"].found

    def test_open(self, manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
        ufm.manager = {**SECURE, "sa_key": "0x1", "no_partition_enforcement": True}
        ufm.partitions["0x7fff"]["membership"] = "full"

        rows = {row.name: row for row in manager.audit()}

        for name in ("default_partition", "sa_key", "part_enforce"):
            assert rows[name].state is AuditState.NOT_MET
            assert rows[name].needed
            assert rows[name].cure

    def test_by_files_where_the_agent_is_on_ufms_host(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
    ) -> None:
        del ufm.partitions["0x7fff"]["membership"]
        options = Path(conf[AGENT_GROUP.name].opensm_config)
        options.parent.mkdir(parents=True)
        words = {True: "TRUE", False: "FALSE"}
        lines = [f"{key} {words.get(value, value)}" for key, value in SECURE.items()]
        options.write_text("\n".join(lines))
        gv_cfg = options.parent.parent / "gv.cfg"
        gv_cfg.write_text("[Server]\nx = 1\n[MngNetwork]\ndefault_membership = limited\n")

        rows = {row.name: row for row in manager.audit()}

        assert rows["default_partition"].state is AuditState.MET
        assert rows["topoconfig"].state is AuditState.NOT_MET
        assert not any(path == "/app/smconf" for _, path in ufm.seen)
        gv_cfg.write_text("[MngNetwork]\n")
        rows = {row.name: row for row in manager.audit()}
        assert rows["default_partition"].state is AuditState.NOT_MET

    def test_what_ufm_sets_by_its_own_file(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
    ) -> None:
        options = Path(conf[AGENT_GROUP.name].opensm_config)
        options.parent.mkdir(parents=True)
        options.write_text("sa_key 0x0000000000000001\nm_key 0x0000000000000000\n")
        rows = {row.name: row for row in manager.audit()}
        names = ("sa_key", "m_key", "m_key_per_port", "topoconfig")
        assert {rows[name].state for name in names} == {AuditState.NOT_MET}

        (options.parent.parent / "gv.cfg").write_text(
            "[SubnetManager]\nrandomize_sa_key = true\nm_key_per_port = True\n"
            "global_m_key_seed = 0xFFFFFFFFFFFFFFFF\ntopoconfig_enabled = true\n"
        )

        rows = {row.name: row for row in manager.audit()}
        assert {rows[name].state for name in names} == {AuditState.MET}

    def test_waits_for_one_request_after_the_start(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        """A round waits for it, and at 1.2 seconds for each answer no bind would be served."""
        ufm.manager = dict(SECURE)
        ufm.told_alone = {"virt_enabled", "m_key_per_port"}
        ufm.partitions["0x7fff"]["membership"] = "limited"
        first = {row.name: row.state for row in manager.audit()}
        assert first["virt_enabled"] is AuditState.MET
        manager.foreign_pkeys()

        for _ in range(6):
            ufm.seen.clear()
            assert {row.name: row.state for row in manager.audit()} == first
            assert [path for _, path in ufm.seen] == ["/app/smconf"]
        ufm.manager |= {"virt_enabled": 0, "sa_key": "0x1"}
        for _ in range(3):
            rows = {row.name: row.state for row in manager.audit()}
        assert rows["virt_enabled"] is AuditState.NOT_MET
        assert rows["sa_key"] is AuditState.NOT_MET

    @pytest.mark.parametrize("status", [400, 404, 500])
    def test_where_ufm_tells_no_options_at_once(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, status: int
    ) -> None:
        ufm.manager = dict(SECURE)
        answer = ufm.answer

        def refuse(method: str, path: str, query: dict[str, str], body: object) -> object:
            if path == "/app/smconf" and not query:
                return status, {}, {}
            return answer(method, path, query, body)

        ufm.answer = refuse  # type: ignore[method-assign,assignment]

        rows = {row.name: row for row in manager.audit()}

        assert all(row.state is AuditState.MET for row in rows.values() if row.needed)
        ufm.seen.clear()
        manager.audit()
        assert [path for _, path in ufm.seen].count("/app/smconf") == 1

    def test_a_silent_ufm_is_unknown_and_no_error(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        ufm.manager = dict(SECURE)
        manager.audit()
        manager.foreign_pkeys()
        ufm.failures = [500] * 9

        rows = {row.name: row for row in manager.audit()}

        assert rows["sa_key"].state is AuditState.UNKNOWN
        assert rows["sa_key"].found == "UFM does not report it"
        ufm.failures = []
        assert {row.name: row.state for row in manager.audit()}["sa_key"] is AuditState.MET
