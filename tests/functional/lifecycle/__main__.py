# SPDX-License-Identifier: Apache-2.0
"""Write the table of the life cycle into the documentation.

``python -m tests.functional.lifecycle --write`` runs the tests, takes what they
see and puts it in the page; without ``--write`` the table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

from tests.functional.lifecycle import book, table


def main() -> int:
    """Run the tests; 1 if they fail or the table has a gap."""
    parser = argparse.ArgumentParser(prog="python -m tests.functional.lifecycle")
    parser.add_argument("--write", action="store_true", help="renew the documentation's table")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:warnings"]
        command.append(str(Path(__file__).parents[1] / "test_lifecycle.py"))
        done = subprocess.run(command, env={**os.environ, book.WRITE: str(seen)}, check=False)
        if done.returncode or not seen.exists():
            print("The tests failed; nothing was written.", file=sys.stderr)
            return 1
        found = json.loads(seen.read_text())
    columns = [field.name for field in attrs.fields(table.Row)][1:]
    rows = [
        table.Row(action, *(found.get(action, {}).get(column, "") for column in columns))
        for action in table.ACTIONS
    ]
    for problem in table.problems(rows):
        print(problem, file=sys.stderr)
    if table.problems(rows):
        return 1
    if write:
        table.PAGE.write_text(table.replace(table.PAGE.read_text(), rows))
    else:
        print(table.render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
