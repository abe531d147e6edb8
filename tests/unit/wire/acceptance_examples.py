# SPDX-License-Identifier: Apache-2.0
"""Examples of what the command ``accept`` writes: samples, and results of a run."""

from __future__ import annotations

from typing import Final

from nova_hpc_guest.accept import result
from nova_hpc_guest.accept import sample as acceptance_sample
from nova_hpc_guest.accept.diagnosis import Diagnosis, NamedCause
from nova_hpc_guest.accept.distribution import EDGES, Distribution
from nova_hpc_guest.accept.evidence import AcceptanceRow
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.refusal import Refusal
from nova_hpc_guest.compare import GuestFinding

GUEST_FACTS: Final = GuestFacts(
    model="Intel(R) Xeon(R) Platinum 8480+",
    hypervisor=True,
    online=(0, 1, 2, 3),
    allowed=(0, 1, 2),
    sockets=1,
    nodes=1,
    memory_gib=64,
    simd=("avx2", "avx512f"),
    clocksource="tsc",
    thp="madvise",
    thp_disabled=True,
    governor="performance",
    idle="haltpoll",
    threads=1,
    quota="60000 100000",
    disk_limit="8:0 riops=500",
    blas="reference",
    blas_core="Prescott",
    malloc="glibc.malloc.hugetlb=1",
    settings={"NCCL_IB_DISABLE": "1"},
    shapers=("tbf eth0",),
    devices={"10de:2330": 2},
    rdma={"mlx5_0": 400.0},
    kernel="6.1",
    python="3.11",
)
GUEST_SAMPLE: Final = acceptance_sample.Sample(
    GUEST_FACTS,
    {
        "net_bw": acceptance_sample.Reading(
            9400.5, 2.0, 1.5, 0.25, 0.125, 0.5, 1.75, 0.0625, {"eth0": 262144000}
        ),
        "mem_random": acceptance_sample.Reading(300.25, 1.0, large_pages=0.5),
        "nccl_pair": acceptance_sample.Reading(1.5, 180.0, at_limit=True, words=("socket",)),
        "timer_p99": acceptance_sample.Reading(61.0, 0.5, counts={9: 2, 61: 1190, 20000: 8}),
    },
    {"fft": "no tool hpcc (Debian's package hpcc)"},
    {"blas": "blas: it was killed by SIGILL"},
)
SHORT_SAMPLE: Final = acceptance_sample.Sample(
    GuestFacts(), {"clock": acceptance_sample.Reading(60.5, 0.0625)}, {}
)
#: As the service of time says it; the writer takes the time itself.
ACCEPTED_AT: Final = 1764170000
GUEST_RESULT: Final = result.AcceptanceResult(
    tier="quick",
    boot="11111111-2222-3333-4444-555555555555",
    facts=GUEST_FACTS,
    tools={"sysbench": ("1.0.20", True)},
    rows=(
        AcceptanceRow(
            *("mem_stream", "MiB/s", True, "pages=large", 9000.0, 5000.0, 0.555, 0.54, 0.57),
            *(0.9688, 6, 0.9, "slow", True),
        ),
    ),
    measured=(result.MeasuredValue("mem_stream", "MiB/s", 5000.0, 6),),
    missing={"fft": "no tool hpcc (Debian's package hpcc)"},
    failed={"blas": "blas: it was killed by SIGILL"},
    promised=True,
    findings=(GuestFinding("link", 0, "the link has 8 lanes of 16", True),),
    diagnosis=Diagnosis(
        (
            NamedCause(
                *("pages-small", "proved", 1.0, "0% of the memory is in large pages"),
                *("transparent_hugepage=always", ("mem_stream",), "cause-pages-small"),
            ),
        ),
        ("blas",),
    ),
    baseline={"kind": "itself"},
    partial=True,
    short=True,
    rounds=6,
    notes=("not kept for --gate",),
    distributions=(
        Distribution(
            *("timer_p99", "us", EDGES["timer_p99"]),
            *((0, 2, 0, 0, 1190, 0, 0, 0, 0, 0, 8), (0, 2, 0, 0, 1198, 0, 0, 0, 0, 0, 0)),
        ),
    ),
)
REFUSED_RESULT: Final = GUEST_RESULT._replace(
    refused=Refusal("busy", "other processes keep 2.0 of 2 CPUs busy"), distributions=()
)
