# SPDX-License-Identifier: Apache-2.0
"""The settings of a subnet manager that the isolation of partitions depends on, one row each.

P_Keys protect only if the P_Key tables are protected. With M_Key 0, anyone who can send subnet
management packets can write the tables. With the well-known SA_Key, anyone can read them by
a query. With the well-known SM_Key, a second subnet manager can take over the fabric.

Sources: ``opensm --create-config`` and ``man opensm`` of release 3.3.23; NVIDIA's *InfiniBand -
Security Overview and Guidelines*; appendix *Security Features* of UFM's user manual, release
6.23.1. Requirements have their numbers from NVIDIA's *Requirements for AI Clouds*: SDN04-04 is the
isolation of partitions, SDN04-05 the seven keys (P_Key, M_Key, and the keys for the aggregation
manager, vendor-specific MADs, congestion control, node to node and manager to node).

Values of keys never leave this module: a row only describes the weakness of a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState
from nova_hpc.fabric.partitions.file_audit import FileTrial, audit_default_partition
from nova_hpc.fabric.partitions.manager_options import (
    RunningOptions,
    is_switched_on,
    parse_number,
)
from nova_hpc.fabric.partitions.qos_audit import audit_service_levels

#: Upstream opensm's file of partitions if its file of options names none.
_DEFAULT_PARTITIONS_FILE: Final = "/etc/opensm/partitions.conf"
#: NVIDIA's manager makes a random key of its own for this value.
_GENERATED: Final = 0xFFFF_FFFF_FFFF_FFFF
#: Keys that are printed in manuals and examples.
_PUBLISHED: Final = frozenset(
    (0x771D2FE77F553D47, 0x0011223344556677, 0x1122334455667788, 0x1234567890ABCDEF)
)
#: A key below this number can be found by trying.
_LEAST_KEY: Final = 1 << 40

_ISOLATION: Final = "SDN04-04"
_KEYS: Final = "SDN04-05"
_OURS: Final = ""

_NOTHING_RUNS: Final = RunningOptions()
#: Row -> options that a command line can set.
_OF_COMMAND_LINE: Final = {
    "partition_config_file": {"partition_config_file"},
    "part_enforce": {"part_enforce", "no_partition_enforcement"},
    "sm_key": {"sm_key"},
}

#: The state, and the finding in words.
_Verdict = tuple[AuditState, str]
_UNREADABLE: Final[_Verdict] = (AuditState.UNKNOWN, "the file of options cannot be read")


@attrs.frozen
class _AuditedSetting:
    """The rule that checks one setting of a subnet manager.

    :ivar judge: returns the verdict on the options of the manager.
    :ivar cure: as of :class:`AuditRow`.
    """

    name: str
    requirement: str
    judge: Callable[[Mapping[str, str]], _Verdict]
    cure: str
    needed: bool = False

    def judge_options(self, options: Mapping[str, str] | None) -> AuditRow:
        """Check the setting. The state is UNKNOWN if *options* is None (the file is unreadable)."""
        verdict = _UNREADABLE if options is None else self.judge(options)
        cure = "" if verdict[0] is AuditState.MET else self.cure
        return AuditRow(self.name, self.requirement, *verdict, cure, self.needed)


def audit_opensm(
    config_text: str | None,
    partitions_text: str | None,
    partitions_path: str = "",
    running: RunningOptions = _NOTHING_RUNS,
    trial: FileTrial | None = None,
) -> tuple[AuditRow, ...]:
    """Check the settings of upstream opensm (3.3.23).

    :param config_text: its file of options; None if it cannot be read.
    :param partitions_text: its file of partitions; None if it is absent or cannot be read.
    :param partitions_path: path of that file; "" if the path is not judged.
    :param running: options of the running manager.
    :param trial: gives opensm a file that its grammar does not decide; None if none can run.
    """
    return _audit_files(config_text, partitions_text, partitions_path, _UPSTREAM, running, trial)


def audit_nvidia_manager(
    config_text: str | None,
    partitions_text: str | None,
    partitions_path: str = "",
    running: RunningOptions = _NOTHING_RUNS,
    trial: FileTrial | None = None,
) -> tuple[AuditRow, ...]:
    """Check the settings of NVIDIA's subnet manager, by its public documentation.

    The parameters are the same as for :func:`audit_opensm`.
    """
    return _audit_files(config_text, partitions_text, partitions_path, _NVIDIA, running, trial)


def audit_virtualisation(options: Mapping[str, str] | None) -> AuditRow:
    """Check that NVIDIA's manager gives virtual functions own ports (``virt_enabled``).

    Without them a function is not a member of any partition, so the fabric is closed and the
    agent continues to work.

    :param options: of the subnet manager; None if they cannot be read.
    """
    cure = "virt_enabled 2: else functions have no ports of their own, and are in no partition"
    value = None if options is None else options.get("virt_enabled", "not set")
    if value is None:
        return AuditRow("virt_enabled", _ISOLATION, AuditState.UNKNOWN, "cannot be read", cure)
    if value == "2":
        return AuditRow("virt_enabled", _ISOLATION, AuditState.MET, "2")
    return AuditRow("virt_enabled", _ISOLATION, AuditState.NOT_MET, value, cure)


def _audit_files(
    config_text: str | None,
    partitions_text: str | None,
    partitions_path: str,
    settings: tuple[_AuditedSetting, ...],
    running: RunningOptions,
    trial: FileTrial | None = None,
) -> tuple[AuditRow, ...]:
    options = running.overlay_options(config_text)
    asked = (*_settings_of_file(partitions_path), *_COMMON, *settings)
    return (
        audit_default_partition(partitions_text, trial),
        *_name_other_config(running),
        *(_judge_running(setting.judge_options(options), running) for setting in asked),
        *audit_service_levels(options, partitions_text),
    )


def _name_other_config(running: RunningOptions) -> Iterator[AuditRow]:
    if running.other_config is not None:
        yield AuditRow(
            "opensm_config",
            _ISOLATION,
            AuditState.NOT_MET,
            f"its command line has the subnet manager read its options from {running.other_config}",
            f"[hpc_fabric_agent]opensm_config = {running.other_config}",
            needed=True,
        )


def _judge_running(row: AuditRow, running: RunningOptions) -> AuditRow:
    """Return an audit row, changed if options on the manager's command line decide about it."""
    if row.name not in _OF_COMMAND_LINE or row.state is AuditState.UNKNOWN:
        return row
    if running.unknown is not None:
        cure = (
            "write the options into opensm_config, and run the agent where it can read "
            "/proc/PID/cmdline of the subnet manager"
        )
        return attrs.evolve(row, state=AuditState.UNKNOWN, found=running.unknown, cure=cure)
    if row.state is AuditState.NOT_MET and running.values.keys() & _OF_COMMAND_LINE[row.name]:
        found = f"{row.found} (on the command line of the subnet manager)"
        return attrs.evolve(row, found=found, cure=f"{row.cure}; leave it out of the command line")
    return row


def list_open_rows(rows: Iterable[AuditRow]) -> tuple[AuditRow, ...]:
    """Return the rows of an audit that make the agent refuse to work. So does an unknown state."""
    return tuple(row for row in rows if row.needed and row.state is not AuditState.MET)


def format_open_row(row: AuditRow) -> str:
    """Format an audit row as a sentence for people: the setting, its state, the lines to change."""
    requirement = f" ({row.requirement})" if row.requirement else ""
    cure = f"; {row.cure}" if row.cure else ""
    return f"{row.name}{requirement} is {row.state.value}: {row.found}{cure}"


# -- single settings ---------------------------------------------------------------------


def _describe_weak_key(number: int | None) -> str | None:
    """Describe why a management key is easy to guess; None if this check finds no weakness."""
    if number is None:
        return "no number"
    if number == 0:
        return "0, which switches it off"
    if number in (1, 1 << 56):
        return "the well-known default"
    if number in _PUBLISHED:
        return "a key out of a manual"
    digits = f"{number:016x}"
    if number < _LEAST_KEY or len(set(digits)) < 4 or digits in "0123456789abcdef" * 2:
        return "easily guessed"
    return None


def _judge_key(option: str, default: str, generated: bool = False) -> Callable[..., _Verdict]:
    def judge(options: Mapping[str, str]) -> _Verdict:
        number = parse_number(options.get(option, default))
        if generated and number == _GENERATED:
            return AuditState.MET, "made by the subnet manager itself"
        weakness = _describe_weak_key(number)
        if weakness is None and number == _GENERATED:
            weakness = "easily guessed"
        if weakness is not None:
            return AuditState.NOT_MET, weakness
        return AuditState.MET, "set"

    return judge


def _judge_word(option: str, default: str, wanted: tuple[str, ...]) -> Callable[..., _Verdict]:
    def judge(options: Mapping[str, str]) -> _Verdict:
        value = options.get(option, default)
        met = value.lower() in wanted
        return AuditState.MET if met else AuditState.NOT_MET, value or "not set"

    return judge


def _judge_switch(option: str) -> Callable[..., _Verdict]:
    """Return a function that judges an option with three values; only 2 meets the requirement.

    0 leaves the keys of the class as they are, 1 takes them away, 2 sets them.
    """

    def judge(options: Mapping[str, str]) -> _Verdict:
        value = options.get(option, "")
        if value == "2":
            return AuditState.MET, f"{option} 2"
        return AuditState.NOT_MET, f"{option} {value or 'not set'}"

    return judge


def _judge_list(option: str) -> Callable[..., _Verdict]:
    def judge(options: Mapping[str, str]) -> _Verdict:
        guids = [
            word for word in re.split(r"[,\s]+", options.get(option, "")) if parse_number(word)
        ]
        if not guids:
            return AuditState.NOT_MET, "any GUID may be a subnet manager's"
        return AuditState.MET, f"{len(guids)} GUID(s)"

    return judge


def _judge_topology(options: Mapping[str, str]) -> _Verdict:
    enabled = options.get("topo_config_enabled", "").lower() in ("true", "1", "2")
    file = options.get("topo_config_file", "")
    if enabled and file not in ("", "(null)"):
        return AuditState.MET, "topo_config_enabled, with a file"
    return AuditState.NOT_MET, "any switch and cable is taken"


def _judge_enforcement(options: Mapping[str, str]) -> _Verdict:
    if is_switched_on(options, "no_partition_enforcement"):
        return AuditState.NOT_MET, "no_partition_enforcement TRUE"
    value = options.get("part_enforce", "both")
    return AuditState.MET if value == "both" else AuditState.NOT_MET, value


def is_enforced(options: Mapping[str, str]) -> bool:
    """Whether switch ports stop packets with P_Keys outside their tables, in both directions.

    :param options: of the manager.
    """
    return _judge_enforcement(options)[0] is AuditState.MET


def _judge_manager_to_node(options: Mapping[str, str]) -> _Verdict:
    if options.get("n2n_key_enable", "") != "2":
        return AuditState.NOT_MET, "the keys of this class of MADs are off (n2n_key_enable)"
    return AuditState.UNKNOWN, "no option in public documentation sets it alone"


def _judge_unavailable(_: Mapping[str, str]) -> _Verdict:
    return AuditState.NOT_AVAILABLE, "opensm 3.3.23 has no such setting"


def _judge_unseen(_: Mapping[str, str]) -> _Verdict:
    return AuditState.UNKNOWN, "not in the subnet manager's file of options"


def _judge_congestion_key(options: Mapping[str, str]) -> _Verdict:
    """Report that opensm cannot set a CC_Key, with the state of ``cc_key`` and congestion control.

    cc_key is the key that opensm *uses*; it sets none (its own comment in the file).
    """
    in_use = is_switched_on(options, "congestion_control")
    weakness = _describe_weak_key(parse_number(options.get("cc_key", "0x0")))
    stated = "cc_key set" if weakness is None else f"cc_key {weakness}"
    return (
        AuditState.NOT_AVAILABLE,
        f"opensm 3.3.23 uses a CC_Key and sets none ({stated}; congestion control "
        f"{'on' if in_use else 'off'})",
    )


def _settings_of_file(partitions_path: str) -> tuple[_AuditedSetting, ...]:
    if not partitions_path:
        return ()

    def judge(options: Mapping[str, str]) -> _Verdict:
        path = options.get("partition_config_file", _DEFAULT_PARTITIONS_FILE)
        return AuditState.MET if path == partitions_path else AuditState.NOT_MET, path

    cure = f"partition_config_file {partitions_path}"
    return (_AuditedSetting("partition_config_file", _ISOLATION, judge, cure, needed=True),)


_RANDOM: Final = "0x and 16 random hex digits, e.g. of: openssl rand -hex 8"
#: The settings that both managers have under the same names.
_COMMON: Final = (
    _AuditedSetting(
        "part_enforce",
        _ISOLATION,
        _judge_enforcement,
        "part_enforce both, no_partition_enforcement FALSE: else switches let every P_Key through",
        needed=True,
    ),
    _AuditedSetting(
        "sa_key",
        _OURS,
        _judge_key("sa_key", "0x1"),
        f"sa_key {_RANDOM}: otherwise any port can read the tables of all ports from the SA",
        needed=True,
    ),
    _AuditedSetting(
        "sm_key",
        _OURS,
        _judge_key("sm_key", "0x1"),
        f"sm_key {_RANDOM}, the same on the managers that stand by: else any port with a "
        "subnet manager of its own takes the fabric over",
        needed=True,
    ),
)
_PROTECTION: Final = _AuditedSetting(
    "m_key_protection_level",
    _KEYS,
    _judge_word("m_key_protection_level", "0", ("2", "3")),
    "m_key_protection_level 2: below it the M_Key or the tables can be read",
    needed=True,
)
_UPSTREAM: Final = (
    _AuditedSetting(
        "m_key",
        _KEYS,
        _judge_key("m_key", "0x0"),
        f"m_key {_RANDOM}: otherwise any sender of subnet management packets can change any "
        "P_Key table",
        needed=True,
    ),
    _PROTECTION,
    _AuditedSetting(
        "m_key_per_port",
        _KEYS,
        _judge_unavailable,
        "open: one M_Key for all ports; who learns it of one port writes the tables of all",
    ),
    _AuditedSetting(
        "am_key",
        _KEYS,
        _judge_unavailable,
        "open: where switches aggregate (SHARP), any port may send them management packets",
    ),
    _AuditedSetting(
        "vs_key",
        _KEYS,
        _judge_unavailable,
        "open: any port may send vendor-specific MADs, by which firmware is read and configured",
    ),
    _AuditedSetting(
        "cc_key",
        _KEYS,
        _judge_congestion_key,
        "open: any port may change the congestion control of adapters and switches",
    ),
    _AuditedSetting(
        "n2n_key",
        _KEYS,
        _judge_unavailable,
        "open: any port may forge the notices by which switches route around a fault",
    ),
    _AuditedSetting(
        "m2n_key",
        _KEYS,
        _judge_unavailable,
        "open: any port may configure those notices in the manager's place",
    ),
    _AuditedSetting(
        "allowed_sm_guids",
        _OURS,
        _judge_unavailable,
        "open: sm_key alone keeps a second subnet manager out",
    ),
    _AuditedSetting(
        "topoconfig",
        _OURS,
        _judge_unavailable,
        "open: a forged switch or a moved cable is taken; compare the cabling with the map "
        "(nova-hpc fabric diff)",
    ),
    _AuditedSetting(
        "sa_enhanced_trust_model",
        _OURS,
        _judge_unavailable,
        "open: a port may register services, groups and events without a limit, and request "
        "every path of its partitions",
    ),
)
_NVIDIA: Final = (
    _AuditedSetting(
        "m_key",
        _KEYS,
        _judge_key("m_key", "0x0", generated=True),
        f"m_key 0xFFFFFFFFFFFFFFFF (the manager makes a random one) or {_RANDOM}: otherwise any "
        "sender of subnet management packets can change any P_Key table",
        needed=True,
    ),
    _PROTECTION,
    _AuditedSetting(
        "m_key_per_port",
        _KEYS,
        _judge_word("m_key_per_port", "FALSE", ("true",)),
        "m_key_per_port TRUE (UFM: in gv.cfg)",
    ),
    _AuditedSetting(
        "am_key",
        _KEYS,
        _judge_unseen,
        "set a secret AM key in the configuration of sharp_am, where switches aggregate (SHARP)",
    ),
    _AuditedSetting("vs_key", _KEYS, _judge_switch("vs_key_enable"), "vs_key_enable 2"),
    _AuditedSetting("cc_key", _KEYS, _judge_switch("cc_key_enable"), "cc_key_enable 2"),
    _AuditedSetting("n2n_key", _KEYS, _judge_switch("n2n_key_enable"), "n2n_key_enable 2"),
    _AuditedSetting(
        "m2n_key",
        _KEYS,
        _judge_manager_to_node,
        "n2n_key_enable 2; the manager keeps these keys in its file guid2_m2n_key, which "
        "ibdiagnet --security_keys reads",
    ),
    _AuditedSetting(
        "key_mgr_seed",
        _OURS,
        _judge_key("key_mgr_seed", "0x0", generated=True),
        "key_mgr_seed 0xFFFFFFFFFFFFFFFF: else the keys of all classes come from the M_Key",
    ),
    _AuditedSetting(
        "allowed_sm_guids",
        _OURS,
        _judge_list("allowed_sm_guids"),
        "allowed_sm_guids with the port GUIDs of all managers, comma between",
    ),
    _AuditedSetting(
        "topoconfig",
        _OURS,
        _judge_topology,
        "topo_config_enabled TRUE and topo_config_file (UFM from 6.19: topoconfig_enabled = true "
        "in gv.cfg)",
    ),
    _AuditedSetting(
        "sa_enhanced_trust_model",
        _OURS,
        _judge_word("sa_enhanced_trust_model", "FALSE", ("true",)),
        "sa_enhanced_trust_model TRUE, and sa_check_sgid_spoofing TRUE beside it",
    ),
)
