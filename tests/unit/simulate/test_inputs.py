# SPDX-License-Identifier: Apache-2.0
"""Reading nodes and requests; every error names the file and the line."""

from __future__ import annotations

import pytest

from nova_hpc_common.level import Level
from nova_hpc_simulate import inputs
from nova_hpc_simulate.model import SimulatedTask, TaskShape


def lines(text):
    return [line + "\n" for line in text.split("|")]


def test_openb():
    found = inputs.read_machines(
        lines("sn,cpu_milli,memory_mib,gpu,model|n0,64000,262144,2,P100"), "f"
    )
    assert [(m.name, m.kind, m.cpu_milli, m.memory_mib, m.gpus) for m in found] == [
        ("n0", "P100", 64000, 262144, 2)
    ]
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time"
    found = inputs.read_tasks(lines(text + "|p0,6000,12288,1,460,,5,9|p1,100,1,0,0,,,"), "f")
    assert found == [
        SimulatedTask("p0", TaskShape(6000, 12288, 1, 460), 5.0, 9.0),
        SimulatedTask("p1", TaskShape(100, 1, 0)),
    ]


def test_simple():
    found = inputs.read_machines(
        lines("name,type,cpus,memory_mib,gpus,count|a,big,96,1000,8,2|| b ,,0.5,10,0,"), "f"
    )
    assert [(m.name, m.kind, m.cpu_milli, m.gpus) for m in found] == [
        ("a-1", "big", 96000, 8),
        ("a-2", "big", 96000, 8),
        ("b", "node", 500, 0),
    ]
    found = inputs.read_tasks(
        lines(
            "name,cpus,memory_mib,gpus,share,level,group,count|"
            "x,1.5,10,4,,switch,2,2|y,2,10,1,0.25,,,"
        ),
        "f",
    )
    assert found == [
        *[SimulatedTask("x", TaskShape(1500, 10, 4, 1000, Level.SWITCH, 2))] * 2,
        SimulatedTask("y", TaskShape(2000, 10, 1, 250)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: there is no request in it"),
        ("name,cpus,memory_mib,gpus", "f: there is no request in it"),
        ("name,cpus,gpus|a,1,1", "f, line 1: the header lacks memory_mib"),
        ("name,cpus,memory_mib,gpus,colour|a,1,1,1,x", "f, line 1: unknown column 'colour'"),
        ("name,cpus,memory_mib,gpus,gpus|a,1,1,1,1", "f, line 1: a column occurs twice"),
        ("name,cpus,memory_mib,gpus|a,1,1,1|b,1,1", "f, line 3: 3 values, but the header has 4"),
        ("name,cpus,memory_mib,gpus|a,1,1,1|b,1,1,x", "f, line 3: gpus is 'x', but must be a who"),
        ("name,cpus,memory_mib,gpus|a,-1,1,1", "f, line 2: cpus is '-1', but must be a number"),
        ("name,cpus,memory_mib,gpus|a,nan,1,1", "f, line 2: cpus is 'nan'"),
        ("name,cpus,memory_mib,gpus|a,1e99,1,1", "f, line 2: cpus is '1e99'"),
        ("name,cpus,memory_mib,gpus|a,1,1,65", "f, line 2: gpus is '65'"),
        ("name,cpus,memory_mib,gpus|,1,1,1", "f, line 2: the request has no name"),
        ("name,cpus,memory_mib,gpus,level|a,1,1,2,rack", "f, line 2: level 'rack' is not one of"),
        ("name,cpus,memory_mib,gpus,group|a,1,1,4,3", "f, line 2: groups of 3 do not divide 4"),
        ("name,cpus,memory_mib,gpus,share|a,1,1,2,0.5", "f, line 2: 2 GPUs are requested, but o"),
        ("name,cpus,memory_mib,gpus,share|a,1,1,1,0", "f, line 2: 1 GPUs are requested, but not"),
        ("name,cpus,memory_mib,gpus,share|a,1,1,1,1.5", "f, line 2: share is '1.5'"),
        ("name,cpus,memory_mib,gpus,arrives,leaves|a,1,1,1,9,8", "f, line 2: leaves is 8, before"),
        ("name,cpus,memory_mib,gpus,count|a,1,1,1,2|b,1,1,1,99999", "f, line 3: more than 100000"),
        ('name,cpus,memory_mib,gpus|"a,1,1,1', "f, line 2: unexpected end of data"),
    ],
)
def test_broken_requests(text, message):
    with pytest.raises(inputs.TraceError) as caught:
        inputs.read_tasks(lines(text), "f")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sn,cpu_milli,memory_mib,gpu,model", "f: there is no node in it"),
        ("sn,cpu_milli,memory_mib,gpu,model|a,1,1,1,x|a,1,1,1,x", "f, line 3: there is a node 'a'"),
        ("sn,cpu_milli,memory_mib,gpu,model|a,1.5,1,1,x", "f, line 2: cpu_milli is '1.5'"),
        ("name,cpus,memory_mib,gpus,count|a,1,1,1,0", "f, line 2: count is '0'"),
        ("name,cpus,memory_mib,gpus,count|a,1,1,1,2|b,1,1,1,99999", "f, line 3: more than"),
    ],
)
def test_broken_nodes(text, message):
    with pytest.raises(inputs.TraceError) as caught:
        inputs.read_machines(lines(text), "f")
    assert str(caught.value).startswith(message)


def test_requests_for_a_model_are_not_ignored():
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec|p0,1,1,1,1000,T4"
    with pytest.raises(inputs.TraceError, match="f, line 2: gpu_spec is 'T4'"):
        inputs.read_tasks(lines(text), "f")
