# SPDX-License-Identifier: Apache-2.0
"""nova-scheduler with deaths and faults on request.

``NOVA_HPC_RACE_DEATHS`` names a folder. The first scheduler that reaches the step of a file
``before-STEP`` or ``after-STEP`` removes the file and ends with SIGKILL. A file ``fault-STEP``
contains ``slow SECONDS``: the request of the step is late. With ``status CODE``, an answer with
that status replaces the request; with ``lost``, the request takes effect without an answer.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The steps of the protocol, each a request to Placement.
STEPS = (
    "read-record", "read-domain", "post-domain", "post-room", "post-record", "post-ticket", "claim",
)  # fmt: skip


def step_of(method: str, path: str, body: Any) -> str | None:
    """The step of a request to Placement; None if it is not a step of the protocol."""
    if method == "GET":
        if "name=hpc-group" in path:
            return "read-record"
        return "read-domain" if "in_tree=" in path else None
    if method == "POST":
        name = str(body["name"])
        for prefix, step in (
            ("hpc-fabric:", "post-domain"),
            ("hpc-room:", "post-room"),
            ("hpc-group:", "post-record"),
            ("hpc-member:", "post-ticket"),
        ):
            if name.startswith(prefix):
                return step
    return None


def _taken(folder: Path, name: str) -> str | None:
    """The text of a file, for the one process that removes it; None for all others."""
    try:
        text = (folder / name).read_text()
        (folder / name).unlink()
    except OSError:
        return None
    return text


def _reach(folder: Path, name: str) -> None:
    if _taken(folder, name) is not None:
        os.kill(os.getpid(), signal.SIGKILL)


def install(folder: Path) -> None:
    """Wrap Placement's client, so that each step reads the folder before and after it."""
    from nova.scheduler import utils

    from nova_hpc.cluster.group_domain.records import ProviderAnswer
    from nova_hpc.from_nova import fabric_records

    plain_claim = utils.claim_resources
    placement = fabric_records.NovaPlacementClient

    def around(
        method: str, path: str, body: Any, send: Callable[[], ProviderAnswer]
    ) -> ProviderAnswer:
        step = step_of(method, path, body)
        if step is None:
            return send()
        _reach(folder, f"before-{step}")
        fault = (_taken(folder, f"fault-{step}") or "").split()
        if fault[:1] == ["slow"]:
            time.sleep(float(fault[1]))
        elif fault[:1] == ["status"]:
            return ProviderAnswer(int(fault[1]))
        answer = send()
        _reach(folder, f"after-{step}")
        return ProviderAnswer(0) if fault[:1] == ["lost"] else answer

    plain = {name: getattr(placement, name) for name in ("get", "post", "delete")}

    def get(self: Any, path: str) -> ProviderAnswer:
        return around("GET", path, None, lambda: plain["get"](self, path))

    def post(self: Any, path: str, body: Any) -> ProviderAnswer:
        return around("POST", path, body, lambda: plain["post"](self, path, body))

    # The filters read the signature of the function that they wrap.
    @functools.wraps(plain_claim)
    def claim(*arguments: Any, **keywords: Any) -> bool:
        _reach(folder, "before-claim")
        found: bool = plain_claim(*arguments, **keywords)
        _reach(folder, "after-claim")
        return found

    placement.get, placement.post = get, post  # type: ignore[method-assign]
    utils.claim_resources = claim


def main() -> None:
    from nova.cmd import scheduler

    folder = os.environ.get("NOVA_HPC_RACE_DEATHS")
    if folder:
        install(Path(folder))
    sys.argv[0] = "nova-scheduler"
    scheduler.main()


if __name__ == "__main__":
    main()
