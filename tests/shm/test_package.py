# SPDX-License-Identifier: Apache-2.0
"""The package for Debian, built as a distribution builds it."""

import re
import shutil
import subprocess

import pytest

from tests.shm.stand import SHM

pytestmark = pytest.mark.slow

_FILES = {
    r"/usr/lib/[\w-]+/nova-hpc/libnova-hpc-shm\.so",
    r"/usr/bin/nova-hpc-shm-stat",
    r"/usr/share/man/man1/nova-hpc-shm-stat\.1\.gz",
}


def test_the_package_builds_and_has_all(tmp_path):
    if not shutil.which("dh"):
        pytest.skip("no debhelper here; bindep.txt lists what is needed")
    source = tmp_path / "nova-hpc-shm"
    shutil.copytree(SHM, source, ignore=shutil.ignore_patterns("build"))
    words = ["dpkg-buildpackage", "-b", "-us", "-uc"]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = tmp_path.glob("nova-hpc-shm_*.deb")
    words = ["dpkg", "-c", str(package)]
    listed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    for pattern in _FILES:
        assert re.search(rf"\.{pattern}$", listed, re.MULTILINE), listed
