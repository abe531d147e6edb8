# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc explain`` beside Nova: configurations that it cannot use."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "Nova's configuration cannot be read"),
        ("", "[api_database]connection is not set in"),
        (
            "[api_database]\nconnection = nonsense\n[filter_scheduler]\npci_in_placement = true\n",
            "database cannot be read",
        ),
        (
            "[api_database]\nconnection = sqlite://\n",
            "[filter_scheduler]pci_in_placement is not True",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "nova.conf"
    if text is not None:
        path.write_text(text)
    for words in (["explain", "--flavor", "x"], ["simulate", "snapshot", str(tmp_path / "out")]):
        done = subprocess.run(
            [sys.executable, "-m", "nova_hpc_tools.main", *words, "--config-file", str(path)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert message in done.stderr
        assert str(path) in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()
