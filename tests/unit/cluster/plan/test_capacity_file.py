# SPDX-License-Identifier: Apache-2.0
"""The CSV of what fits on each host: read as written, and refused by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_tools.fabric import capacity_file
from nova_hpc_tools.fabric.capacity_file import CapacityError
from tests.unit.cluster.plan.command import capacity_text

names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,18}[a-z0-9])?", fullmatch=True)


def read(text: str) -> dict[str, int]:
    return capacity_file.read_capacity_lines(text.splitlines(keepends=True), "cap.csv")


def test_a_file_as_spreadsheets_write_it() -> None:
    text = "\ufeffhost,fit\r\nnode1,4\r\n\r\n node2 , 0 \r\n"
    assert read(text) == {"node1": 4, "node2": 0}


def test_a_file_as_our_own_commands_write_it() -> None:
    assert read('"Host","Fit"\n"node1",4\n') == {"node1": 4}


def test_a_header_alone_says_that_nothing_fits() -> None:
    assert read("host,fit\n") == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: the header is ''; it must be 'host,fit'"),
        ("node1,4\n", "line 1: the header is 'node1,4'"),
        ("host;fit\n", "line 1: the header is 'host;fit'"),
        ("host,fit\nn,-1\n", "line 2: fit is '-1'; it must be a whole number from 0"),
        ("host,fit\nn,1.5\n", "line 2: fit is '1.5'"),
        ("host,fit\nn,\n", "line 2: fit is ''"),
        ("host,fit\nn,\u0663\n", "line 2: fit is"),
        ("host,fit\nn,1000001\n", "line 2: fit is 1000001; the most is 1000000"),
        ("host,fit\nn,99999999999999999999\n", "line 2: fit is '99999999999999999999'"),
        ("host,fit\nn,1\n\nn,2\n", "line 4: host 'n' stands in line 2 already"),
        ("host,fit\n,1\n", "line 2: host: '' is no name"),
        ("host,fit\nn\n", "line 2: it has 1 columns"),
        ("host,fit\nn,1,2\n", "line 2: it has 3 columns"),
        ('host,fit\n"n,1\n', "line 2: unexpected end of data"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(text: str, error: str) -> None:
    with pytest.raises(CapacityError) as caught:
        read(text)
    assert f"cap.csv: {error}" in str(caught.value)


def test_all_wrong_lines_are_named_and_many_are_counted() -> None:
    with pytest.raises(CapacityError) as caught:
        read("host,fit\n" + "".join(f"n{number},x\n" for number in range(15)))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("cap.csv: line 2: fit is 'x'")
    assert lines[9].startswith("cap.csv: line 11:")
    assert lines[10:] == ["and 5 more errors"]


@given(st.text())
def test_no_text_does_worse_than_an_error(text: str) -> None:
    try:
        found = read(text)
    except CapacityError:
        return
    assert all(fit >= 0 for fit in found.values())


@given(st.dictionaries(names, st.integers(0, 1000000)))
def test_what_is_written_is_read(capacity: dict[str, int]) -> None:
    assert read(capacity_text(capacity)) == capacity
