# SPDX-License-Identifier: Apache-2.0
"""Run trials or timings into a folder, and write the table of a folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.room import trials


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if pieces are left, or an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.room")
    parser.add_argument("action", choices=["trials", "speed", "write"])
    parser.add_argument("folder", type=Path, help="of the measurements")
    parser.add_argument("--clouds", type=int, default=10_000, help="small random ones")
    parser.add_argument("--kinds", nargs="+", choices=list(trials.KINDS), default=trials.KINDS)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no piece after these")
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.action == "trials":
        done = trials.run_pieces(options.folder, options.kinds, options.clouds, options.minutes)
        return 0 if done else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
