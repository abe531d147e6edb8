# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first lines."""

from pathlib import Path

from tools.wheels import list_production_folders

TOP = Path(__file__).resolve().parents[3]
FOLDERS = (
    *list_production_folders(),
    "benchmarks",
    "devstack",
    "docs",
    "lab",
    "shm",
    "tests",
    "tools",
)


def test_every_source_file_names_its_licence():
    files = [
        path
        for folder in FOLDERS
        for pattern in ("*.py", "*.sh", "*.c", "*.h")
        for path in sorted((TOP / folder).rglob(pattern))
        if not {"build", "data", "generated"} & set(path.relative_to(TOP).parts)
    ]
    assert len(files) > 300
    without = []
    for path in files:
        with path.open() as stream:
            head = stream.readline() + stream.readline()
        if "SPDX-License-Identifier: Apache-2.0" not in head:
            without.append(str(path.relative_to(TOP)))
    assert without == []
