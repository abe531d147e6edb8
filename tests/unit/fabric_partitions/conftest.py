# SPDX-License-Identifier: Apache-2.0
"""UFM as recorded, and the backend that talks to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP, register_agent_options
from nova_hpc_ufm import subnet_manager as ufm_backend
from nova_hpc_ufm.client import UfmAccess
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import (
    PASSWORD,
    USER,
    RecordedUfm,
    serve_ufm,
)
from tests.unit.fabric_partitions.ufm_site import Site
from tests.unit.fabric_partitions.ufm_world import SECURE, TEXT, TWO, A, B, C


@pytest.fixture
def ufm() -> RecordedUfm:
    ufm = RecordedUfm()
    ufm.ports = [TEXT[A], TEXT[B]]
    ufm.virtual_ports = [TEXT[C]]
    return ufm


@pytest.fixture
def conf(ufm: RecordedUfm, tmp_path: Path) -> Iterator[cfg.ConfigOpts]:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    register_agent_options(conf)
    with serve_ufm(ufm) as url:
        for option, value in {
            "ufm_url": url,
            "ufm_user": USER,
            "ufm_password": PASSWORD,
            "state_path": str(tmp_path / "state"),
            "opensm_config": str(tmp_path / "conf" / "opensm" / "opensm.conf"),
        }.items():
            conf.set_override(option, value, group=AGENT_GROUP.name)
        yield conf


@pytest.fixture
def manager(conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch) -> Iterator[UfmSubnetManager]:
    # Only the seconds between repetitions, and until a silent server is given up: the machine that
    # tests may be slow.
    monkeypatch.setattr(
        ufm_backend,
        "UfmAccess",
        lambda **options: UfmAccess(**options, retry_wait=0.001, timeouts=(10.0, 10.0)),
    )
    manager = UfmSubnetManager(conf[AGENT_GROUP.name])
    yield manager
    manager.close()


@pytest.fixture
def site(manager: UfmSubnetManager, conf: cfg.ConfigOpts, ufm: RecordedUfm) -> Iterator[Site]:
    ufm.manager = dict(SECURE)
    site = Site(conf[AGENT_GROUP.name], TWO)
    yield site
    site.manager.close()
