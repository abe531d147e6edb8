# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's subnet manager: its file by the recorded contract, and ports with functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP, register_agent_options
from nova_hpc.fabric.partitions.backends.base import AuditState, MemberState
from nova_hpc.fabric.partitions.backends.choice import make_subnet_manager, read_capabilities
from nova_hpc.fabric.partitions.backends.nvidia import (
    FunctionTableExpectations,
    NvidiaSubnetManager,
)
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember, PartitionPolicy
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import (
    PartitionLayout,
    lay_out_partitions,
    render_body,
    render_file,
)
from nova_hpc.fabric.partitions.port_tables import (
    EndPort,
    FabricPorts,
    PortTables,
    Strangers,
    TableExpectations,
    judge_member,
)

CONTRACT = json.loads(
    Path(__file__, "../../../data/nvidia_manager/contract.json").resolve().read_text()
)
FULL, LIMITED = Membership.FULL, Membership.LIMITED
PORT, NEIGHBOUR = 0x0002C90000200001, 0x0002C90000200002
FUNCTION, SECOND = 0x0200000000000011, 0x0200000000000022
DEFAULT = 0x7FFF
FABRIC = FabricPorts(
    {
        PORT: EndPort(PORT, "ca", 3, 1, (1, 5)),
        NEIGHBOUR: EndPort(NEIGHBOUR, "ca", 4, 1, (1, 6)),
    }
)


def layout(**partitions: dict[int, Membership]) -> PartitionLayout:
    return PartitionLayout({int(name[1:], 16): members for name, members in partitions.items()})


def expectations(wanted: PartitionLayout) -> FunctionTableExpectations:
    return FunctionTableExpectations(wanted, OwnPartitions(), FABRIC)


def tables(*own: int, facing: tuple[int, ...] | None = None) -> PortTables:
    entries = frozenset((DEFAULT, *own))
    return PortTables(entries, entries if facing is None else frozenset((DEFAULT, *facing)))


# -- the file ----------------------------------------------------------------------------


def test_the_file_is_as_the_documentation_has_it() -> None:
    """Functions are members as ports are; a thousand of them, with quality of service."""
    desired = DesiredPartitions(
        5,
        tuple(
            PartitionMember(row=row, port_id=f"{row}", guid=FUNCTION + row, pkey=0x101 + row % 3)
            for row in range(1000)
        ),
        {0x101: PartitionPolicy(service_level=3, rate=16)},
    )
    text = render_file(
        render_body(lay_out_partitions(desired, OwnPartitions()), OwnPartitions()), 5
    )

    assert max(len(line.encode()) for line in text.split("\n")) < CONTRACT["longest_line"]["bytes"]
    plain = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    definitions = [part for part in plain.split(";") if part.strip()]
    assert len(definitions) == 4
    for definition in definitions:
        head, colon, members = definition.partition(":")
        assert colon
        name, *flags = (part.strip() for part in head.split(","))
        assert name.partition("=")[1] == "="
        for flag in flags:
            assert flag.partition("=")[0] in CONTRACT["partition_definition"]["flags"]
        for member in members.split(","):
            who, _, membership = member.strip().partition("=")
            assert who in CONTRACT["port_specifier"]["words"] or who.startswith("0x")
            assert membership in ("full", "limited")
    stated = CONTRACT["default_partition"]["text"].replace(" ", "").partition(":")[2]
    assert definitions[0].replace(" ", "").partition(":")[2].strip() == stated.rstrip(";")


# -- tables ------------------------------------------------------------------------------


def test_keys_of_functions_are_no_difference_at_a_physical_port() -> None:
    wanted = expectations(layout(p101={PORT: FULL}, p102={FUNCTION: FULL, SECOND: LIMITED}))

    assert wanted.judge_port(PORT, tables(0x8101)) is None
    assert wanted.judge_port(PORT, tables(0x8101, 0x8102)) is None
    assert wanted.judge_port(PORT, tables(0x8101, facing=(0x8101, 0x8102, 0x0102))) is None


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (tables(0x8102), "has to be 0x7fff 0x8101"),
        (tables(0x8101, 0x8103), "0x8103"),
        (tables(0x8101, 0x8103, facing=(0x8101,)), "its P_Key table is 0x7fff 0x8101 0x8103"),
        (tables(0x8101, facing=(0x8102,)), "which faces it"),
        (PortTables(None, None), "could not be read"),
    ],
)
def test_what_no_function_has_is_a_difference(read: PortTables, words: str) -> None:
    wanted = expectations(layout(p101={PORT: FULL}, p102={FUNCTION: FULL}))

    assert words in str(wanted.judge_port(PORT, read))


def test_upstream_takes_a_functions_key_for_a_difference() -> None:
    wanted = layout(p101={PORT: FULL}, p102={FUNCTION: FULL})

    assert TableExpectations(wanted, OwnPartitions(), FABRIC).judge_port(
        PORT, tables(0x8101, 0x8102)
    )


def test_a_key_of_a_function_that_leaves_is_no_stranger() -> None:
    wanted = expectations(layout(p101={PORT: FULL}))
    read = {PORT: tables(0x8101, 0x8102), NEIGHBOUR: tables()}

    assert wanted.find_strangers(read, frozenset({(FUNCTION, 0x102)})) == Strangers()
    assert wanted.find_strangers(read).by_pkey == {0x102: frozenset({PORT})}


def test_a_stranger_is_one() -> None:
    wanted = expectations(layout(p102={FUNCTION: FULL}))

    strangers = wanted.find_strangers({PORT: tables(0x8102), NEIGHBOUR: tables(0x8109)})

    assert strangers.by_pkey == {0x109: frozenset({NEIGHBOUR})}


def test_an_open_fabric_is_open() -> None:
    wanted = expectations(layout(p102={FUNCTION: FULL}))

    strangers = wanted.find_strangers({PORT: PortTables(frozenset({0xFFFF}), frozenset({0xFFFF}))})

    assert "the fabric is open" in strangers.sentences[0]


@pytest.mark.parametrize(
    ("in_force", "state"),
    [(None, MemberState.NOT_ON_FABRIC), ("it is not in force", MemberState.DIFFERENT)],
)
def test_for_a_function_the_file_in_force_is_the_proof(
    in_force: str | None, state: MemberState
) -> None:
    member = PartitionMember(row=1, port_id="1", guid=FUNCTION, pkey=0x102)
    wanted = expectations(layout(p102={FUNCTION: FULL}))

    assert judge_member(member, wanted, None, Strangers(), in_force).state is state


# -- the manager -------------------------------------------------------------------------


@pytest.fixture
def conf(tmp_path: Path) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    register_agent_options(conf)
    for option, name in {
        "opensm_config": "opensm.conf",
        "opensm_pid_file": "opensm.pid",
        "opensm_log": "opensm.log",
        "partitions_file": "partitions.conf",
        "own_partitions_file": "partitions.own.conf",
        "state_path": "state",
    }.items():
        conf.set_override(option, str(tmp_path / name), group=AGENT_GROUP.name)
    return conf


def test_it_is_found_by_its_name_and_separates_functions(conf: cfg.ConfigOpts) -> None:
    assert read_capabilities("nvidia").separates_functions
    assert not read_capabilities("opensm").separates_functions
    manager = make_subnet_manager("nvidia", conf[AGENT_GROUP.name])
    assert isinstance(manager, NvidiaSubnetManager)
    manager.close()


def test_audits_what_the_guidelines_ask_for(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    options = CONTRACT["security_options"]["text"]
    options += f"partition_config_file {tmp_path}/partitions.conf\n"
    virtual = CONTRACT["virtualisation"]
    (tmp_path / "opensm.conf").write_text(f"{options}{virtual['option']} {virtual['on']}\n")
    (tmp_path / "partitions.conf").write_text(f"{CONTRACT['default_partition']['text']}\n")
    manager = NvidiaSubnetManager(conf[AGENT_GROUP.name])

    rows = {row.name: row for row in manager.audit()}

    for name in ("m_key", "m_key_per_port", "vs_key", "n2n_key", "cc_key", "virt_enabled"):
        assert rows[name].state is AuditState.MET, rows[name]
    assert rows["sm_key"].state is AuditState.NOT_MET
    (tmp_path / "opensm.conf").write_text(options)
    rows = {row.name: row for row in manager.audit()}
    assert rows["virt_enabled"].state is AuditState.NOT_MET
    assert "are in no partition" in rows["virt_enabled"].cure
    manager.close()
