# SPDX-License-Identifier: Apache-2.0
"""The alternative without our filters: Placement's own enumeration of 8 of 8 GPUs."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence

from benchmarks import measure

PART = "Placement's own enumeration"
GPU_CLASS = "CUSTOM_HPC_GPU"
#: Seconds after which a query without any limit is ended.
PATIENCE = 20


def query(gpus: int, limit: int) -> tuple[float, int]:
    """Seconds of one query for *gpus* of *gpus*, and the number of returned candidates.

    :param limit: limit of the query and of Placement's generation; -1 for none of
        either, which is Placement's default.
    """
    from oslo_config import cfg
    from placement import conf as placement_conf
    from placement import direct

    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf.set_override("connection", "sqlite://", group="placement_database")
    conf.set_override("sync_on_startup", True, group="placement_database")
    if limit > 0:
        conf.set_override("max_allocation_candidates", limit, group="placement")
        conf.set_override(
            "allocation_candidates_generation_strategy", "breadth-first", group="placement"
        )
        conf.set_override("optimize_for_wide_provider_trees", True, group="workarounds")
    conf([], default_config_files=[])
    with direct.PlacementDirect(conf, latest_microversion=True) as client:
        client.put(f"/resource_classes/{GPU_CLASS}")
        root = str(uuid.uuid4())
        client.post("/resource_providers", json={"name": "host", "uuid": root})
        for number in range(gpus):
            one = str(uuid.uuid4())
            body = {"name": f"gpu{number}", "uuid": one, "parent_provider_uuid": root}
            client.post("/resource_providers", json=body)
            client.put(
                f"/resource_providers/{one}/inventories",
                json={
                    "resource_provider_generation": 0,
                    "inventories": {GPU_CLASS: {"total": 1, "max_unit": 1}},
                },
            )
        groups = "&".join(f"resources_gpu{n}={GPU_CLASS}:1" for n in range(gpus))
        url = f"/allocation_candidates?{groups}&group_policy=none"
        if limit > 0:
            url += f"&limit={limit}"
        begin = time.perf_counter()
        answer = client.get(url)
        seconds = time.perf_counter() - begin
    assert answer.status_code == 200, answer.text
    return seconds, len(answer.json()["allocation_requests"])


def run(gpus: int, limits: Sequence[int], rounds: int, patience: float) -> Iterator[measure.Row]:
    """The rows; a query without limit runs in a process of its own, up to *patience*.

    :param patience: seconds for the query without any limit; 0 to omit it.
    """
    for limit in limits:
        found = [query(gpus, limit) for _ in range(rounds)]
        yield measure.row(
            PART,
            f"{gpus} of {gpus} GPUs on one host, limit {limit}",
            "ms",
            [seconds * 1000 for seconds, _ in found],
            note=f"{found[0][1]} candidates",
        )
    if not patience:
        return
    code = f"from benchmarks.enumeration import query; print(*query({gpus}, -1))"
    title = f"{gpus} of {gpus} GPUs on one host, no limit (as installed)"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True, text=True, timeout=patience, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield measure.row(PART, title, "ms", [patience * 1000], note="given up: takes longer")
        return
    seconds, count = done.stdout.split()[-2:]
    note = f"{count} candidates"
    yield measure.row(PART, title, "ms", [float(seconds) * 1000], note=note)
