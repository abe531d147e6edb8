# SPDX-License-Identifier: Apache-2.0
"""All causes that can be named, as one table: symptom, fact, experiment, explained probes, cure.

A cause fires only if one of its symptoms is slow *and* its fact holds. Then the experiment changes
one thing, without further rights, and runs the probe again. The most specific cause comes first.
The probes that it explains are taken from the causes that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from . import cause_facts
from .evidence import Evidence

#: How an experiment proves its cause.
CLOSES: Final = "closes"  # most of the gap is gone
COSTS_NOTHING: Final = "costs-nothing"  # the result is as fast without it
CHANGES_NOTHING: Final = "changes-nothing"  # more of it is not faster

#: A machine whose CPUs lack time is slow in everything.
_CPU: Final = (
    frozenset(
        (
            "cpu_one",
            "cpu_all",
            "mem_stream",
            "mem_random",
            "mem_near",
            "blas",
            "mpi_lat",
            "timer_p99",
        )
    )
    | frozenset(
        ("clock", "net_bw", "net_rtt", "disk_lat", "oslat", "lammps_lj", "hpl", "stream_triad")
    )
    | frozenset(("random_access", "fft", "pingpong"))
)
_ALL_CPUS: Final = frozenset(
    ("cpu_all", "mpi_lat", "net_bw", "net_rtt", "timer_p99", "hpl", "stream_triad", "pingpong")
)
_CPUS: Final = frozenset(("cpu_one", "cpu_all"))
_MEMORY: Final = frozenset(("mem_stream", "mem_random"))
#: Probes that the host's own work slows.
_HOSTED: Final = _CPUS | {"timer_p99", "oslat"}
_GPU: Final = frozenset(("h2d", "d2h", "h2d_near"))
_NCCL: Final = frozenset(("nccl_pair", "nccl_node"))


class Cause(NamedTuple):
    """One reason why a machine is slow: symptoms, the finder of its fact, and the cure."""

    name: str
    #: Any of these is slow.
    symptoms: frozenset[str]
    #: The fact in words, or None if it does not hold.
    find: Callable[[Evidence], str | None]
    #: The fact, for the documentation.
    fact: str
    #: Probes that it accounts for.
    explains: frozenset[str]
    cure: str
    #: None of these is slow.
    unless: frozenset[str] = frozenset()
    #: The experiment's change; the first of these probes that is slow runs again.
    setting: str | None = None
    of: tuple[str, ...] = ()
    proves: str = CLOSES
    #: Not named unless the experiment was made.
    required: bool = False

    @property
    def anchor(self) -> str:
        """The anchor of the cause in the documentation."""
        return f"cause-{self.name}"


_QUIET_CPU: Final = frozenset(("cpu_one",))

CAUSES: Final = (
    Cause(
        "cpu-quota",
        _CPUS,
        cause_facts.find_quota,
        "the kernel counts time for which a quota stopped this control group",
        _CPU,
        "take the limit from the container or unit, or quota:cpu_quota from the flavor",
    ),
    Cause(
        "vcpus-share-cpu",
        frozenset(("cpu_all",)),
        cause_facts.find_shared_host_cpu,
        "one CPU alone is not slow, and all together lose 30 % or more of their time as stolen",
        _ALL_CPUS,
        "operator: a host CPU for each vCPU: hw:cpu_policy=dedicated, and libvirt's pins as Nova "
        "has them (virsh vcpupin)",
        unless=_QUIET_CPU,
        setting="cpus=half",
        of=("cpu_all",),
        proves=COSTS_NOTHING,
        # A neighbour on the other CPUs would look the same.
        required=True,
    ),
    Cause(
        "host-interrupts",
        _HOSTED,
        cause_facts.find_host_interrupts,
        "nova-hpc accept counted interrupts of the host on the guest's CPUs in its turns: 1,000 a "
        "second for a late timer; at 10 us each, half of the time that the CPUs lost",
        _HOSTED,
        "operator: quiet_cpus in the node's declaration; until the restart, "
        "IRQBALANCE_BANNED_CPULIST of irqbalance and /proc/irq/NUMBER/smp_affinity_list",
    ),
    Cause(
        "host-kernel-threads",
        _HOSTED,
        cause_facts.find_host_threads,
        "nova-hpc accept counted kernel threads on the guest's CPUs in its turns: 1 % of the time "
        "for a late timer, half of the time that the CPUs lost",
        _HOSTED,
        "operator: quiet_cpus in the node's declaration; until the restart, taskset -pc with the "
        "host's CPUs, and their mask in /sys/devices/virtual/workqueue/cpumask",
    ),
    Cause(
        "steal",
        _CPUS,
        cause_facts.find_steal,
        "the hypervisor reports stolen time",
        _CPU,
        "operator: hw:cpu_policy=dedicated, and [compute]cpu_dedicated_set without the host's work",
    ),
    Cause(
        "cpus-restricted",
        frozenset(("cpu_all",)),
        cause_facts.find_restriction,
        "the process may use fewer CPUs than are online",
        _ALL_CPUS,
        "start it without taskset or a cpuset, or ask the batch system for the cores",
        unless=_QUIET_CPU,
        setting="cpus=all",
        of=("cpu_all",),
    ),
    Cause(
        "busy-cpu",
        _CPUS,
        cause_facts.find_busy_cpu,
        "other processes of this system ran on the probe's CPUs, or it was ready and waited",
        _CPU,
        "end them, or move them and the interrupts to other CPUs",
        setting="cpu=other",
        of=("cpu_one",),
    ),
    Cause(
        "stopped",
        _CPUS,
        cause_facts.find_stopped,
        "the probe ran less, was not ready, and nothing else ran",
        _CPU,
        "find what stops it; nothing in this system counts it",
    ),
    Cause(
        "governor",
        frozenset(("cpu_one",)),
        cause_facts.find_governor,
        "the governor is powersave, and another one at the baseline",
        _CPU,
        "cpupower frequency-set -g performance (on the host, where it has the governor)",
    ),
    Cause(
        "vcpus-share-core",
        frozenset(("cpu_all",)),
        cause_facts.find_shared_core,
        "one CPU alone is level, all together are about half, and nothing waits or is stolen",
        _ALL_CPUS,
        "operator: one vCPU a core: hw:cpu_policy=dedicated, hw:cpu_thread_policy=isolate",
        unless=_QUIET_CPU,
        setting="cpus=half",
        of=("cpu_all",),
        proves=COSTS_NOTHING,
    ),
    Cause(
        "smt-shared",
        frozenset(("cpu_all",)),
        cause_facts.find_shared_threads,
        "all CPUs together are between half and the floor, and no thread siblings are shown",
        _ALL_CPUS,
        "operator: hw:cpu_thread_policy=isolate, or show the threads: hw:cpu_threads=2",
        unless=_QUIET_CPU,
        setting="cpus=half",
        of=("cpu_all",),
        proves=COSTS_NOTHING,
    ),
    Cause(
        "time-taken",
        frozenset(("cpu_one",)),
        cause_facts.find_time_taken,
        "the probe ran all the time and did less, and nothing here counts it",
        _CPU,
        "operator: vCPUs pinned one to a core, no overcommit, governor performance; on bare "
        "metal look for firmware interrupts (hwlatdetect)",
    ),
    Cause(
        "no-cells",
        frozenset(("cpu_all", "mem_stream", "mem_near", "h2d", "d2h")),
        cause_facts.find_missing_cells,
        "nova-hpc-guest check: the NUMA nodes are not the promised ones",
        frozenset(("mem_stream", "mem_random", "mem_near", "h2d", "d2h", "h2d_near")),
        "operator: hw:numa_nodes of the flavor, and an image whose kernel has NUMA",
        unless=_QUIET_CPU,
    ),
    Cause(
        "wrong-cell",
        frozenset(("mem_near",)),
        cause_facts.find_wrong_cell,
        "the cloud promised NUMA nodes, and the near one is not the fastest",
        frozenset(("mem_near", "mem_stream", "mem_random")),
        "operator: memory and pins of the guest's cells are on different nodes of the host "
        "(virsh vcpupin, numa_maps); move the server",
        unless=_QUIET_CPU,
        setting="cell=other",
        of=("mem_near",),
    ),
    Cause(
        "pages-off",
        _MEMORY,
        cause_facts.find_pages_off,
        "large pages are switched off, for the machine or for this process",
        _MEMORY,
        "transparent_hugepage=madvise or always; end what calls prctl(PR_SET_THP_DISABLE)",
        unless=_QUIET_CPU,
        setting="pages=large",
        of=("mem_stream", "mem_random"),
    ),
    Cause(
        "pages-small",
        _MEMORY,
        cause_facts.find_small_pages,
        "less of the probe's memory is in large pages than at the baseline",
        _MEMORY,
        "GLIBC_TUNABLES=glibc.malloc.hugetlb=1, or transparent_hugepage=always",
        unless=_QUIET_CPU,
        setting="pages=large",
        of=("mem_stream", "mem_random"),
    ),
    Cause(
        "pages-host",
        _MEMORY | {"mem_near"},
        cause_facts.find_host_pages,
        "the cloud's document says pages of 4 KiB",
        _MEMORY | {"mem_near"},
        "operator: hw:mem_page_size=1GB (or 2MB) in the flavor, and pages reserved on the host",
        unless=_QUIET_CPU,
    ),
    Cause(
        "blas-kernel",
        frozenset(("blas",)),
        cause_facts.find_blas_kernel,
        "OPENBLAS_CORETYPE is set, and not to what the baseline has",
        frozenset(("blas", "hpl")),
        "unset OPENBLAS_CORETYPE",
        unless=_QUIET_CPU,
        setting="blas=default",
        of=("blas",),
    ),
    Cause(
        "simd-hidden",
        frozenset(("blas", "hpl", "lammps_lj", "fft")),
        cause_facts.find_hidden_simd,
        "the CPU lacks vector instructions that the baseline shows",
        frozenset(("blas", "hpl", "lammps_lj", "fft")),
        "operator: [libvirt]cpu_mode=host-passthrough, or a model that has them",
        unless=_QUIET_CPU,
    ),
    Cause(
        "blas-reference",
        frozenset(("blas",)),
        cause_facts.find_reference_blas,
        "another BLAS is loaded than at the baseline",
        frozenset(("blas", "hpl")),
        "install libopenblas0 (or MKL, BLIS), and look at LD_LIBRARY_PATH",
        unless=_QUIET_CPU,
        setting="blas=default",
        of=("blas",),
    ),
    Cause(
        "mpi-over-tcp",
        frozenset(("mpi_lat",)),
        cause_facts.find_mpi_wires,
        "bytes of two ranks on one machine leave by an interface",
        frozenset(("mpi_lat", "pingpong")),
        "let MPI use shared memory and RDMA: unset OMPI_MCA_btl and the like, load the driver",
        setting="btl=shared",
        of=("mpi_lat",),
    ),
    Cause(
        "shaper-here",
        frozenset(("net_bw",)),
        cause_facts.find_shaper,
        "a queue with a rate (tbf, htb, netem, cake, hfsc) is on an interface",
        frozenset(("net_bw", "net_rtt")),
        "tc qdisc del dev INTERFACE root",
        unless=_CPUS,
    ),
    Cause(
        "path-limit",
        frozenset(("net_bw",)),
        cause_facts.find_path_limit,
        "no queue here, and four streams are no faster than one",
        frozenset(("net_bw", "net_rtt")),
        "operator: QoS policies of the port and its network, width and speed of the link",
        unless=_CPUS,
        setting="streams=4",
        of=("net_bw",),
        proves=CHANGES_NOTHING,
        required=True,
    ),
    Cause(
        "disk-limit",
        frozenset(("disk_lat",)),
        cause_facts.find_disk_limit,
        "the control group has a limit of reads",
        frozenset(("disk_lat",)),
        "io.max or blkio.throttle of the group; quota:disk_read_iops_sec of the flavor",
        unless=_QUIET_CPU,
    ),
    Cause(
        "idle-exit",
        frozenset(("timer_p99",)),
        cause_facts.find_idle_exit,
        "one CPU is level, and a CPU that sleeps wakes late",
        frozenset(("timer_p99",)),
        "idle=poll or haltpoll in the guest; operator: no deep C-states on the host",
        setting="idle=busy",
        of=("timer_p99",),
        required=True,
    ),
    Cause(
        "clocksource",
        frozenset(("clock",)),
        cause_facts.find_clocksource,
        "the clock source is another one than at the baseline, or one that is always slow",
        frozenset(("clock", "timer_p99")),
        "tsc (invtsc in the CPU model) or kvm-clock; take clocksource= from the command line",
        setting="clock=coarse",
        of=("clock",),
    ),
    Cause(
        "gpu-busy",
        _GPU | _NCCL,
        cause_facts.find_gpu_users,
        "nvidia-smi names other processes that use a GPU while it is measured",
        _GPU | _NCCL,
        "end them; let the batch system's epilogue end what a job leaves",
        unless=_QUIET_CPU,
    ),
    Cause(
        "gpu-far",
        _GPU,
        cause_facts.find_far_gpu,
        "the cloud promised a NUMA node for the GPU, and another one is nearer",
        _GPU,
        "operator: the GPU is at another socket than the guest's CPUs; hpc:affinity of the flavor",
        unless=_QUIET_CPU,
        setting="cell=other",
        of=("h2d_near",),
        required=True,
    ),
    Cause(
        "link-narrow",
        _GPU | {"ib_bw"},
        cause_facts.find_narrow_link,
        "nova-hpc-guest check: the link has fewer lanes than were promised",
        _GPU | {"ib_bw"},
        "operator: reseat the card; look at the slot and at the link under load (lspci -vv)",
        unless=_QUIET_CPU,
    ),
    Cause(
        "link-slow",
        _GPU | {"ib_bw"},
        cause_facts.find_slow_link,
        "nova-hpc-guest check: the link is slower than was promised",
        _GPU | {"ib_bw"},
        "operator: look at the device's own link under load, and at the firmware of the slot",
        unless=_QUIET_CPU,
    ),
    Cause(
        "iommu-pages",
        _GPU,
        cause_facts.find_host_pages,
        "the cloud's document says pages of 4 KiB: the IOMMU has small pages as well",
        _GPU,
        "operator: hw:mem_page_size=1GB (or 2MB) in the flavor",
        unless=_QUIET_CPU,
    ),
    Cause(
        "nccl-sockets",
        frozenset(("nccl_pair",)),
        cause_facts.find_nccl_sockets,
        "NCCL's log says sockets, or no counter of InfiniBand moves",
        frozenset(("nccl_pair",)),
        "unset NCCL_* and UCX_*; load the RDMA driver; look at NCCL_DEBUG=INFO",
        setting="nccl=default",
        of=("nccl_pair",),
    ),
    Cause(
        "acs-redirect",
        _NCCL,
        cause_facts.find_redirect,
        "the cloud's document: peer-to-peer leaves the switch, ACS redirects all requests",
        _NCCL,
        "operator: [hpc]peer_to_peer = translated or direct",
        unless=frozenset(("ib_bw",)),
        setting="gdr=off",
        of=("nccl_pair",),
        proves=COSTS_NOTHING,
    ),
    Cause(
        "no-ats",
        _NCCL,
        cause_facts.find_no_ats,
        "the cloud's document: peer-to-peer leaves the switch, a device has no ATS",
        _NCCL,
        "operator: ATS of the adapter's firmware (ATS_ENABLED), or [hpc]peer_to_peer = direct",
        unless=frozenset(("ib_bw",)),
        setting="gdr=off",
        of=("nccl_pair",),
        proves=COSTS_NOTHING,
    ),
    Cause(
        "no-gdr",
        frozenset(("nccl_pair",)),
        cause_facts.find_no_gdr,
        "NCCL's log says NET/IB without GDRDMA",
        frozenset(("nccl_pair",)),
        "load nvidia-peermem (or use DMA-BUF), and let NCCL see the tree: nova-hpc-guest install",
        unless=frozenset(("ib_bw",)),
        setting="gdr=off",
        of=("nccl_pair",),
        proves=COSTS_NOTHING,
    ),
    Cause(
        "rails-crossed",
        frozenset(("nccl_pair",)),
        cause_facts.find_crossed_rails,
        "NCCL's log names fewer adapters than the cloud promised rails",
        frozenset(("nccl_pair",)),
        "nova-hpc-guest install, so that NCCL pairs each GPU with the adapter of its rail",
        setting="rails=own",
        of=("nccl_pair",),
    ),
    Cause(
        "flat-tree",
        _NCCL,
        cause_facts.find_flat_tree,
        "nova-hpc-guest check: tree; or a flat topology and no NCCL_TOPO_FILE",
        _NCCL,
        "nova-hpc-guest install; operator: hpc:guest_topology=mirror",
        setting="topology=install",
        of=("nccl_pair", "nccl_node"),
    ),
)
CAUSE_OF: Final = {cause.name: cause for cause in CAUSES}
