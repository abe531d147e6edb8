# SPDX-License-Identifier: Apache-2.0
"""Trial of a file of partitions on a simulated fabric, with an opensm and an ibsim of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nova_hpc.fabric.partitions.backends.opensm_files import OpensmLog
from nova_hpc.fabric.partitions.port_reader import find_simulator_library, simulated_environment

_NET: Final = """\
Switch 4 "trial_switch"
[1] "trial_manager"[1]
[2] "trial_port"[1]

Hca 1 "trial_manager"
[1] "trial_switch"[1]

Hca 1 "trial_port"
[1] "trial_switch"[2]
"""
_UP: Final = re.compile("SUBNET UP")
#: Seconds.
_START: Final = 3.0
_RUN: Final = 20.0
_PATIENCE: Final = 2.0


def can_try_file() -> bool:
    """Whether the programs for :func:`try_file` (opensm and ibsim) are installed."""
    return bool(
        shutil.which("ibsim") and shutil.which("opensm") and find_simulator_library() is not None
    )


def try_file(text: str) -> str | None:
    """Test a file of partitions with an opensm that manages only a simulated fabric.

    :returns: why opensm does not take it; None if it does, or if the trial itself has failed.
    :raises OSError: the trial itself has failed.
    """
    with tempfile.TemporaryDirectory(prefix="nova-hpc-trial-") as name:
        folder = Path(name)
        (folder / "partitions.conf").write_bytes(text.encode("utf-8", "surrogateescape"))
        (folder / "net").write_text(_NET, encoding="ascii")
        (folder / "opensm.conf").write_text(
            f"partition_config_file {folder}/partitions.conf\nforce_log_flush TRUE\n",
            encoding="ascii",
        )
        with _run_simulator(folder) as environment:
            finished = subprocess.run(
                ["opensm", "-o", "-F", "opensm.conf", "-f", str(folder / "log")],
                cwd=folder,
                env={**environment, "OSM_TMP_DIR": name, "OSM_CACHE_DIR": name},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_RUN,
                check=False,
            )
        complaints = OpensmLog(folder / "log").read_complaints()
        if complaints:
            return complaints[0].strip()
        if not _UP.search((folder / "log").read_text(encoding="utf-8", errors="replace")):
            said = (finished.stdout + finished.stderr).decode(errors="replace").strip()[-200:]
            raise OSError(f"opensm ended with {finished.returncode} and no subnet: {said}")
        return None


@contextlib.contextmanager
def _run_simulator(folder: Path) -> Iterator[dict[str, str]]:
    """Run ibsim; gives the environment of its clients.

    :raises OSError: it does not start.
    """
    environment = simulated_environment("trial_manager")
    environment |= {"IBSIM_SOCKNAME": f"nova-hpc-trial-{os.getpid()}-{folder.name}"}
    with (folder / "ibsim").open("wb") as output:
        plain = {key: value for key, value in environment.items() if key != "LD_PRELOAD"}
        process = subprocess.Popen(
            ["ibsim", "-s", "-n", "net"],
            cwd=folder,
            env=plain,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _wait_for_simulator(process, environment["IBSIM_SOCKNAME"])
        yield environment
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_simulator(process: subprocess.Popen[bytes], name: str) -> None:
    """Wait for its socket in the kernel's list.

    :raises OSError: it does not come.
    """
    end = time.monotonic() + _START
    while name not in Path("/proc/net/unix").read_text(encoding="utf-8"):
        if process.poll() is not None:
            raise OSError(f"ibsim ended with {process.returncode}")
        if time.monotonic() > end:
            raise OSError("ibsim does not start")
        time.sleep(0.02)
