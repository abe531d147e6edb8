# SPDX-License-Identifier: Apache-2.0
"""Who is a host, and what is an address."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.outside.host_names import (
    OutsideError,
    explain_wrong_host,
    is_uuid,
    require_host_name,
    require_ip_address,
)
from tests.unit import hostile
from tests.unit.fabric import slurmctld

#: Written down apart from the code, from RFC 1123, 2.1, and RFC 1035, 2.3.4.
_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*"
    r"(?!(?:[0-9]+|0[xX][0-9A-Fa-f]*)\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z",
    re.ASCII,
)
GOOD = ("n1", "train-1", "3com", "a", "N1.example.org", "x--y", "1a", "n" * 63, "xn--p1-6kc")


@given(
    st.text("ab-.0x9_ \n", max_size=12)
    | st.from_regex(_NAME)
    | st.sampled_from(hostile.texts())
    | st.text(max_size=300)
)
def test_the_rule_is_that_of_the_rfc(name: str) -> None:
    if "localhost" not in name.lower():
        assert (explain_wrong_host(name) is None) == bool(_NAME.match(name))


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_hostile_texts_name_no_host(what: str) -> None:
    with pytest.raises(OutsideError) as caught:
        require_host_name(hostile.TEXTS[what], "server 7")
    assert hostile.obeyed(str(caught.value)) == []
    assert str(caught.value).endswith("; server 7")


@pytest.mark.parametrize("name", GOOD)
def test_good_names_stay(name: str) -> None:
    assert require_host_name(name, "") == name


def test_slurm_reads_one_host_in_each_good_name(tmp_path: Path) -> None:
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=localhost(127.0.0.1)\n")
    for name in GOOD:
        found = slurmctld.scontrol(conf, "show", "hostnames", name)
        assert found.split() == [name]
    # It does read more into others.
    assert len(slurmctld.scontrol(conf, "show", "hostnames", "n[0-9]").split()) == 10


@pytest.mark.parametrize("text", [*hostile.TEXTS.values(), "10.0.0.1 x", "10.0.0.1\n", "010.0.0.1"])
def test_hostile_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(OutsideError):
        require_ip_address(text, "server 7")


@pytest.mark.parametrize("text", ["fe80::1%$(touch x)", "fe80::1%eth0", "::1", "0.0.0.0", "::"])
def test_addresses_that_mean_this_machine_or_no_other(text: str) -> None:
    with pytest.raises(OutsideError):
        require_ip_address(text, "server 7")


def test_addresses_are_written_in_one_way() -> None:
    assert require_ip_address("10.0.0.1", "") == "10.0.0.1"
    assert require_ip_address("FD00:0::0001", "") == "fd00::1"


def test_an_id_is_a_uuid() -> None:
    assert is_uuid("1d3e5d2a-7a0f-4f0e-9c59-0b54a3b6f7a1")
    assert not any(map(is_uuid, [*hostile.TEXTS.values(), None, 7]))
    assert not is_uuid("1d3e5d2a-7a0f-4f0e-9c59-0b54a3b6f7a1\n")
