# SPDX-License-Identifier: Apache-2.0
"""Lines of an exporter: the counted ones, and all others."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.watch.error_file import read_error_counts

METRIC = re.compile("gpu_errors_total")
ADDRESS = "0000:41:00.0"


def test_lines() -> None:
    text = f"""
# HELP gpu_errors_total Errors
# TYPE gpu_errors_total counter
gpu_errors_total{{pci="{ADDRESS}",kind="xid79"}} 2
gpu_errors_total{{kind="xid31",pci="00000000:41:00.0"}} 1.0 1767225600000
gpu_errors_total{{gpu="1",bus="0000:42:00.0"}} 1e1
gpu_errors_total{{pci="0000:43:00.0"}} NaN
gpu_errors_total{{pci="0000:43:00.0"}} -1
gpu_errors_total{{pci="0000:43:00.0"}}
gpu_errors_total{{pci="GPU-1"}} 5
gpu_errors_total 5
old_gpu_errors_total{{pci="{ADDRESS}"}} 5
"""
    assert read_error_counts(text, METRIC) == {ADDRESS: 3, "0000:42:00.0": 10}


@given(st.text())
def test_whatever_is_in_the_file(text: str) -> None:
    assert read_error_counts(f'{text}\ngpu_errors_total{{pci="{ADDRESS}"}} 1', METRIC)
