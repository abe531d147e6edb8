# SPDX-License-Identifier: Apache-2.0
"""Sets of CPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import cpuset

SETS = st.frozensets(st.integers(0, 500), max_size=60)


@given(SETS)
def test_a_list_reads_back(cpus: frozenset[int]) -> None:
    text = cpuset.format_list(cpus)
    assert cpuset.parse_list(text) == cpus
    # Ranges are as long as can be: Nova and libvirt compare such texts.
    assert len(text.split(",")) == max(1, len([cpu for cpu in cpus if cpu - 1 not in cpus]))


@given(SETS)
def test_a_mask_reads_back(cpus: frozenset[int]) -> None:
    value = sum(1 << cpu for cpu in cpus)
    words = [f"{value >> 32 * index & 0xFFFFFFFF:08x}" for index in range(16)][::-1]
    assert cpuset.parse_mask(",".join(words) + "\n") == cpus
    # hwloc drops leading zeros, writes empty words, and a prefix.
    sparse = ["" if int(word, 16) == 0 else f"0x{word}" for word in words]
    assert cpuset.parse_bitmap(",".join(sparse)) == cpus


def test_what_hwloc_and_the_kernel_write() -> None:
    assert cpuset.parse_bitmap("0x000000ff,0xff000000,,0x0") == frozenset(range(88, 104))
    assert cpuset.parse_bitmap("0x0") == frozenset()
    assert cpuset.parse_bitmap("0xf...f") is None
    assert cpuset.parse_bitmap("0xf...f,0x0") is None
    assert cpuset.parse_mask("0000,00000000,00ff00ff") == frozenset({*range(8), *range(16, 24)})
    assert cpuset.parse_list("0-3,8\n") == frozenset({0, 1, 2, 3, 8})
    assert cpuset.parse_list("") == frozenset()


@pytest.mark.parametrize(
    "text", ["a", "0-", "-1", "3-1", "0-99999999999", "16384", "1;2", "0 1", "\u0661", "0x1"]
)
def test_a_bad_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="CPUs"):
        cpuset.parse_list(text)


@pytest.mark.parametrize(
    "text", ["", "g", "0x", "123456789", "f,,f", "f" * 5000, "f," * 3000 + "f"]
)
def test_a_bad_mask_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="CPUs"):
        cpuset.parse_mask(text)


@given(st.text(max_size=40))
def test_any_text_is_a_set_or_a_value_error(text: str) -> None:
    for parse in (cpuset.parse_list, cpuset.parse_mask, cpuset.parse_bitmap):
        try:
            found = parse(text)
        except ValueError:
            continue
        assert found is None or all(0 <= cpu < cpuset.MOST for cpu in found)
