# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest topology``: where the machine is, as the cloud told it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nova_hpc_guest import document
from tests.unit.guest.servers import fw_cfg_of, run

DOMAINS = {"block": "b-5a07", "leaf": "l-93c2", "nvlink_domain": "n-77e1"}


def tell(guest: Any, **more: Any) -> None:
    """Add to the document of the guest."""
    path = fw_cfg_of(guest)
    found = json.loads(document.decode_entry(path.read_bytes()))
    found["devices"][2]["rail"] = "r-0a11"
    path.write_text(json.dumps({**found, "fabric": DOMAINS, **more}))


def test_for_people(guest: Any) -> None:
    tell(guest)
    assert run(guest, "topology") == (
        0,
        "block b-5a07\nleaf l-93c2\nNVLink domain n-77e1\n"
        "rail r-0a11: device 2 (vf 15b3:101e): 0000:31:00.0\n",
        "",
    )


def test_for_slurm(guest: Any) -> None:
    tell(guest)
    assert run(guest, "topology", "--format", "slurm")[1] == "Topology=default:l-93c2\n"
    for words, text in (
        (("--level", "block", "--topology", "ib"), "ib:b-5a07"),
        (("--below", "cloud"), "default:cloud:b-5a07:l-93c2"),
        (("--below", "cloud", "--level", "block"), "default:cloud:b-5a07"),
        (("--below", "cloud", "--level", "nvlink_domain"), "default:cloud:n-77e1"),
    ):
        found = run(guest, "topology", "--format", "slurm", *words)
        assert found == (0, f"Topology={text}\n", "")
    status, out, err = run(guest, "topology", "--format", "slurm", "--level", "spine")
    assert (status, out) == (2, "")
    assert "names no spine of this machine; it names: block, leaf, nvlink_domain" in err


def test_for_programs(guest: Any) -> None:
    tell(guest)
    status, out, _ = run(guest, "topology", "--format", "json")
    assert status == 0
    assert json.loads(out) == {
        "schema": "nova-hpc/guest-topology",
        "version": 1,
        "fabric": DOMAINS,
        "rails": [
            {
                "device": 2,
                "role": "vf",
                "rail": "r-0a11",
                "address": "0000:31:00.0",
                "kernel_devices": [],
            }
        ],
    }


def test_a_cloud_that_says_nothing(guest: Any) -> None:
    for form in ("text", "slurm", "json"):
        status, out, err = run(guest, "topology", "--format", form)
        assert (status, out) == (2, "")
        assert "does not say where this machine is on the fabric" in err


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"fabric": ["l-1"]}, 2),
        ({"fabric": {"leaf": "a b"}}, 2),
        ({"fabric": {"leaf": "a\nPartitionName=x"}}, 2),
        ({"fabric": {"leaf": 7}}, 2),
        ({"fabric": {"leaf": "l-1", "galaxy": "g-1"}}, 0),
        ({"fabric": {"leaf": None, "block": "b-1"}}, 0),
    ],
)
def test_what_stands_there(guest: Any, more: dict[str, Any], status: int) -> None:
    """Names go into files of Slurm's: only words are taken."""
    tell(guest, **more)
    assert run(guest, "topology")[0] == status


def test_words_for_slurm_are_words(guest: Any) -> None:
    tell(guest)
    assert run(guest, "topology", "--format", "slurm", "--below", "a-")[0] == 0
    for wrong in ("a b", "a:b", ""):
        with pytest.raises(SystemExit):
            run(guest, "topology", "--format", "slurm", "--below", wrong)
