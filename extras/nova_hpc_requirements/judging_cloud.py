# SPDX-License-Identifier: Apache-2.0
"""The verdicts on the requirements of fabric, capacity, health and cleaning. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc_common.level import Level
from nova_hpc_guest.accept.ratio import LEVEL, SLOW
from nova_hpc_requirements.verdicts import (
    EvidenceError,
    RequirementEvidence,
    RequirementState,
    RequirementVerdict,
    judge_met,
    judge_not_met,
    judge_unknown,
)

#: Seconds; an older report proves nothing about now (Nova's own service_down_time is 60).
MOST_AGE: Final = 600
_PKEY_BITS: Final = 0x7FFF
_DEFAULT_PARTITION: Final = 0x7FFF
#: Row of nova-hpc fabric check -> key of the requirement.
KEYS: Final = {
    "m_key": "management_key",
    "am_key": "aggregation_management_key",
    "vs_key": "vendor_specific_key",
    "cc_key": "congestion_control_key",
    "n2n_key": "node2node_key",
    "m2n_key": "manager2node_key",
}
#: The row that shows whether partitions are in force in the ports.
TABLES: Final = "tables"
_ISOLATION: Final = "SDN04-04"
_MAP: Final = "nova-hpc fabric sync MAP, with all hosts in the map"
_ACCEPT: Final = "hand in an acceptance result: --evidence acceptance=FILE"


def judge_switches(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement NET01-01: the API shows the switches of the fabric above each host."""
    places = evidence.read_rows("backend_switch_fabric", "places")
    if not places:
        raise EvidenceError("backend_switch_fabric names no compute host")
    _refuse_problems(evidence, "backend_switch_fabric")
    tiers = [
        tier for tier in ("leaf", "block", "spine", "core") if any(row.get(tier) for row in places)
    ]
    if "leaf" not in tiers:
        return judge_not_met("Nova has no map of the fabric", _MAP)
    unknown = [str(row.get("host")) for row in places if not all(row.get(tier) for tier in tiers)]
    if unknown:
        return judge_not_met(f"not known of {_list_names(unknown)}: {', '.join(tiers)}", _MAP)
    return judge_met(f"{', '.join(tiers)} of all {len(places)} compute hosts")


def judge_nvlink(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement NET02-02: the API shows the NVLink domain of each host."""
    places = evidence.read_rows("nvlink_domain", "places")
    if not places:
        raise EvidenceError("nvlink_domain names no compute host")
    _refuse_problems(evidence, "nvlink_domain")
    named = [row for row in places if row.get("nvlink_domain")]
    if not named:
        return judge_unknown(
            "no compute host is in an NVLink domain by the map of the fabric; whether the "
            "hardware has any is not known",
            f"where it has: {_MAP}",
        )
    domains = {row["nvlink_domain"] for row in named}
    return judge_met(
        f"{len(named)} of {len(places)} compute hosts are in {len(domains)} NVLink domains"
    )


def _refuse_problems(evidence: RequirementEvidence, step: str) -> None:
    problems = evidence.read_step(step).get("problems") or []
    if problems:
        raise EvidenceError(f"the aggregates of the map are damaged: {problems[0]}; {_MAP}")


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def judge_isolation(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement SDN04-04: InfiniBand keeps tenants apart."""
    rows = [row for row in _read_fabric_rows(evidence) if row.get("Requirement") == _ISOLATION]
    wrong = [row for row in rows if row.get("State") == AuditState.NOT_MET]
    if wrong:
        found = "; ".join(f"{row.get('Name')}: {row.get('Found')}" for row in wrong[:3])
        return judge_not_met(found, str(wrong[0].get("Cure") or "see nova-hpc fabric check"))
    tables = [row for row in rows if row.get("Name") == TABLES]
    if not tables or any(row.get("State") != AuditState.MET for row in tables):
        raise EvidenceError(
            "the tables of the ports were not read: run nova-hpc fabric check on the subnet "
            "manager's host, as root"
        )
    unread = [str(row.get("Name")) for row in rows if row.get("State") == AuditState.UNKNOWN]
    if unread:
        raise EvidenceError(f"nova-hpc fabric check could not read {', '.join(unread)}")
    clashes = find_shared_keys(evidence.read_rows("query_ib_tenant_isolation", "partitions"))
    if clashes:
        return judge_not_met("; ".join(clashes), "one P_Key for each project's networks")
    count = len(evidence.read_rows("query_ib_tenant_isolation", "partitions"))
    if not count:
        return judge_unknown("no network is a partition yet", "openstack network create")
    return judge_met(f"{count} partitions, none shared by two projects; {tables[0].get('Found')}")


def find_shared_keys(partitions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find faults of the P_Keys of a cloud's networks, such as a P_Key of two projects.

    :raises EvidenceError: a P_Key cannot be read.
    """
    wrong = []
    owners: dict[int, set[str]] = defaultdict(set)
    for row in partitions:
        name, text = str(row.get("name")), str(row.get("partition_key"))
        try:
            key = int(text, 16) & _PKEY_BITS
        except ValueError:
            raise EvidenceError(f"network {name} has P_Key {text!r}") from None
        if key in (0, _DEFAULT_PARTITION):
            wrong.append(f"network {name} is in the partition of all ports")
        if row.get("shared") is not False:
            wrong.append(f"network {name} is shared with other projects, or does not show it")
        project = row.get("tenant_id")
        if not isinstance(project, str) or not project:
            wrong.append(f"network {name} belongs to no project")
        else:
            owners[key].add(project)
    wrong += [
        f"P_Key {key:#06x} has networks of {len(projects)} projects"
        for key, projects in sorted(owners.items())
        if len(projects) > 1
    ]
    return wrong


def judge_keys(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement SDN04-05: the seven keys of an InfiniBand fabric are set."""
    rows = {row.get("Name"): row for row in _read_fabric_rows(evidence)}
    missing = [name for name in KEYS if name not in rows]
    if missing:
        raise EvidenceError(f"fabric_check has no row {', '.join(missing)}")
    unread = [name for name in KEYS if rows[name].get("State") == AuditState.UNKNOWN]
    if unread:
        raise EvidenceError(f"nova-hpc fabric check could not read {', '.join(unread)}")
    open_keys = [name for name in KEYS if rows[name].get("State") != AuditState.MET]
    if open_keys:
        cures = [str(rows[name].get("Cure") or "") for name in open_keys]
        return judge_not_met(
            f"{', '.join(open_keys)}: {rows[open_keys[0]].get('Found') or 'not set'}",
            "; ".join(filter(None, cures)) or "see nova-hpc fabric check",
        )
    tables = rows.get(TABLES, {}).get("State")
    if tables != AuditState.MET:
        raise EvidenceError("the six other keys are set; P_Keys: the tables were not read")
    return judge_met("all six are set, and P_Keys are in force in all ports")


def _read_fabric_rows(evidence: RequirementEvidence) -> Sequence[Mapping[str, Any]]:
    rows = evidence.read_rows("fabric_check", "rows")
    if not rows or not all(isinstance(row.get("State"), str) for row in rows):
        raise EvidenceError("fabric_check is not the output of nova-hpc fabric check -f json")
    return rows


def judge_placement(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-04: servers are placed by topology."""
    step = evidence.read_step("topology_placement")
    asked, reached = step.get("level_asked"), step.get("level_reached")
    if asked is None:
        return judge_unknown(
            "the server's flavor requests no level, or its node has not recorded one",
            "a flavor with hpc:affinity",
        )
    try:
        tight = reached is not None and Level.from_word(str(reached)) <= Level.from_word(str(asked))
    except ValueError as error:
        raise EvidenceError(f"topology_placement: {error}") from error
    if reached is None:
        raise EvidenceError("the node has not recorded which level the devices sit at")
    if tight:
        return judge_met(f"requested {asked}, reached {reached}")
    return judge_not_met(
        f"requested {asked}, reached {reached}",
        "hpc:affinity_policy=required, and nova-hpc explain shows the obstacle",
    )


def judge_moved(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP08-04: a server keeps its id when it moves."""
    step = evidence.read_step("migrate_instance")
    before, after = step.get("instance_id_before"), step.get("instance_id")
    if not before or not after:
        raise EvidenceError("migrate_instance does not contain the server's id")
    if step.get("moved") is not True:
        raise EvidenceError(str(step.get("why_not") or "the server is on the host it was on"))
    how = str(step.get("how"))
    if before == after:
        return judge_met(f"moved ({how}), and is {after} as before")
    return judge_not_met(f"was {before} and is {after} after it was moved", "see Nova's API log")


def judge_reservation(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CAP04-01: capacity can be reserved for a project."""
    groups = evidence.read_rows("capacity_reservation_grouping", "groups")
    if not groups:
        return judge_not_met(
            "no host aggregate is set aside for a project",
            "openstack aggregate set --property filter_tenant_id=PROJECT AGGREGATE",
        )
    shared = [str(row.get("name")) for row in groups if len(_read_projects(row)) != 1]
    if shared:
        return judge_not_met(f"several projects: {_list_names(shared)}", "one project each")
    crossed = _find_crossed_hosts(groups)
    if crossed:
        return judge_not_met(
            f"set aside for two projects: {_list_names(crossed)}", "one aggregate for each host"
        )
    empty = [str(row.get("name")) for row in groups if not row.get("hosts")]
    if len(empty) == len(groups):
        return judge_not_met("their aggregates have no host", "openstack aggregate add host")
    enforced = evidence.read_step("capacity_reservation_grouping").get("isolation_enforced")
    if enforced is None:
        return judge_unknown(
            f"{len(groups)} aggregates name a project; whether the scheduler heeds them is open",
            "run it where the scheduler's configuration is: --config-file nova.conf",
        )
    if enforced is not True:
        return judge_not_met(
            "the scheduler does not keep others out of them",
            "AggregateMultiTenancyIsolation in [filter_scheduler]enabled_filters",
        )
    hosts = sum(len(row.get("hosts") or ()) for row in groups)
    return judge_met(f"{hosts} hosts in {len(groups)} aggregates of one project each")


def _read_projects(row: Mapping[str, Any]) -> list[str]:
    projects = row.get("projects")
    if not isinstance(projects, list) or not all(isinstance(item, str) for item in projects):
        raise EvidenceError("capacity_reservation_grouping: projects is no list of texts")
    return projects


def _find_crossed_hosts(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    owners: dict[str, set[str]] = defaultdict(set)
    for row in groups:
        for host in row.get("hosts") or ():
            owners[str(host)].update(_read_projects(row))
    return sorted(host for host, projects in owners.items() if len(projects) > 1)


def judge_block(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CAP04-02: a block of servers is allocated as a unit."""
    block = evidence.read_field("topology_block_atomic_allocation", "topology_block", dict)
    wanted, running = (_read_count(block, key) for key in ("wanted", "running"))
    if running != wanted or wanted < 1:
        return judge_not_met(
            f"{running} of {wanted} members run", "openstack hpc cluster show CLUSTER shows why"
        )
    if wanted == 1:
        return judge_unknown("one member is no block", "a cluster of several members")
    domain, level = block.get("block_id"), block.get("level")
    if not domain:
        return judge_unknown(
            f"all {wanted} members run; the nodes do not report a common domain",
            f"{_MAP}, and hpc:fabric in the flavor",
        )
    return judge_met(f"all {wanted} members run, in one {level}")


def _read_count(block: Mapping[str, Any], key: str) -> int:
    count = block.get(key)
    if not isinstance(count, int) or isinstance(count, bool):
        raise EvidenceError(f"topology_block_atomic_allocation lacks the number of {key}")
    return count


def judge_health(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CAP05-01: the health of each host can be queried."""
    hosts = evidence.read_rows("query_host_health", "hosts")
    if not hosts:
        raise EvidenceError("query_host_health names no compute host")
    silent = [str(row.get("host_id")) for row in hosts if row.get("health_present") is not True]
    if silent:
        return judge_not_met(
            f"no word of {_list_names(silent)} on its devices",
            "[DEFAULT]compute_driver = hpc.HpcLibvirtDriver on them",
        )
    old = [str(row.get("host_id")) for row in hosts if not _is_fresh(row)]
    if old:
        return judge_not_met(
            f"older than {MOST_AGE} s, or of unknown age: {_list_names(old)}",
            "start their nova-compute",
        )
    ill = sum(1 for row in hosts if row.get("alerts"))
    return judge_not_met(
        f"the state of devices of all {len(hosts)} hosts is there ({ill} with a fault); "
        "temperature and memory errors of GPUs are not read here",
        "NVIDIA's dcgm-exporter, or AMD's device-metrics-exporter, beside it",
    )


def _is_fresh(row: Mapping[str, Any]) -> bool:
    age = row.get("observed_age_seconds")
    return isinstance(age, int) and not isinstance(age, bool) and 0 <= age <= MOST_AGE


def judge_wiped(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement SEC21-03: the data that a deleted VM leaves behind is wiped."""
    verdict = _judge_devices(evidence, gpus=False)
    if verdict.state is not RequirementState.MET:
        return verdict
    disks = evidence.read_field("query_sanitization", "disks", dict)
    wiped, detail = disks.get("wiped"), str(disks.get("detail"))
    if wiped is False:
        return judge_not_met(f"local disks: {detail}", "[libvirt]volume_clear = zero")
    if wiped is not True:
        raise EvidenceError(f"local disks: {detail}")
    return judge_met(f"{verdict.found}; local disks: {detail}")


def judge_gpu_memory(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement SEC21-05: GPU memory is cleaned between servers."""
    return _judge_devices(evidence, gpus=True)


def _judge_devices(evidence: RequirementEvidence, gpus: bool) -> RequirementVerdict:
    """Whether every device that is offered again was cleaned."""
    what = "GPU" if gpus else "device"
    proof = "cleaned_within" if gpus else "sanitized"
    rows = evidence.read_rows("query_sanitization", "machines")
    devices = [row for row in rows if not gpus or row.get("has_gpu") is True]
    if not devices:
        return judge_unknown(f"the node has no {what}", "run it on a node that has one")
    for row in devices:
        if not all(isinstance(row.get(key), bool) for key in ("available", "served_tenant", proof)):
            raise EvidenceError(f"query_sanitization: row {row.get('machine_id')} is incomplete")
    dirty = [
        str(row.get("machine_id"))
        for row in devices
        if row["available"] and row["served_tenant"] and not row[proof]
    ]
    if dirty:
        cure = "[hpc]clean_stage for the role" if gpus else "[hpc]clean_devices = true"
        return judge_not_met(f"offered without having been cleaned: {_list_names(dirty)}", cure)
    served = sum(1 for row in devices if row["served_tenant"])
    if not served:
        return judge_unknown(f"no {what} of this node has served a server yet", "try one first")
    return judge_met(
        f"{len(devices)} {what}s, {served} have served a server; none is offered uncleaned"
    )


def judge_nccl(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement VMAAS13-01: NCCL performs within a VM."""
    rows = _read_acceptance_rows(evidence)
    return _judge_probes(rows, {"nccl_node": "within the VM"}, "GPUs, and nccl-tests on the PATH")


def judge_communication(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement VMAAS14-01: VMs communicate over their adapters."""
    rows = _read_acceptance_rows(evidence)
    wanted = {"net_bw": "Ethernet", "ib_bw": "InfiniBand", "nccl_pair": "GPUs of two VMs"}
    return _judge_probes(rows, wanted, "two VMs with adapters of InfiniBand and GPUs")


def _judge_probes(
    rows: Mapping[str, str], wanted: Mapping[str, str], hardware: str
) -> RequirementVerdict:
    slow = [words for probe, words in wanted.items() if rows.get(probe) == SLOW]
    if slow:
        return judge_not_met(f"slow: {', '.join(slow)}", "the result names the causes it found")
    missing = [words for probe, words in wanted.items() if rows.get(probe) != LEVEL]
    if missing:
        return judge_unknown(f"not measured, or undecided: {', '.join(missing)}", hardware)
    return judge_met(f"level with the baseline: {', '.join(wanted.values())}")


def _read_acceptance_rows(evidence: RequirementEvidence) -> Mapping[str, str]:
    """Probe -> verdict, of an acceptance result."""
    step = evidence.steps.get("acceptance")
    if step is None or step.output is None:
        reason = "" if step is None or not step.reason else f" ({step.reason})"
        raise EvidenceError(f"not measured{reason}: {_ACCEPT}")
    output = step.output
    if output.get("schema") != "nova-hpc/acceptance" or output.get("version") != 1:
        raise EvidenceError("acceptance is no result of nova-hpc-guest accept --format json")
    rows = output.get("rows")
    good = isinstance(rows, list) and all(
        isinstance(row, dict)
        and isinstance(row.get("probe"), str)
        and isinstance(row.get("verdict"), str)
        for row in rows
    )
    if not good:
        raise EvidenceError("acceptance: rows is no list of probes with verdicts")
    assert isinstance(rows, list)
    if output.get("refused") is not None:
        raise EvidenceError("the acceptance run was refused: its result names the reason")
    promise = output.get("promise")
    findings = promise.get("findings") if isinstance(promise, dict) else None
    if not isinstance(findings, list):
        raise EvidenceError("acceptance does not contain whether the guest is as promised")
    if any(finding.get("wrong") is not False for finding in findings):
        raise EvidenceError("the guest is not as promised: the acceptance result names what")
    return {row["probe"]: row["verdict"] for row in rows}


#: Id -> function that judges it.
CLOUD_JUDGES: Final[Mapping[str, Callable[[RequirementEvidence], RequirementVerdict]]] = {
    "NET01-01": judge_switches,
    "NET02-02": judge_nvlink,
    "SDN04-04": judge_isolation,
    "SDN04-05": judge_keys,
    "CNP01-04": judge_placement,
    "CNP08-04": judge_moved,
    "CAP04-01": judge_reservation,
    "CAP04-02": judge_block,
    "CAP05-01": judge_health,
    "SEC21-03": judge_wiped,
    "SEC21-05": judge_gpu_memory,
    "VMAAS13-01": judge_nccl,
    "VMAAS14-01": judge_communication,
}
