# SPDX-License-Identifier: Apache-2.0
"""Audit of a file of partitions that anyone may have written, as opensm reads it.

:mod:`nova_hpc.fabric.partitions.own_partitions` reads the file that the administrator gives the
agent, and refuses text that leaves a doubt. This module judges any file that opensm may have in
force before an agent is there. The verdict is opensm's: its grammar decides, and if that leaves
a doubt, a run of opensm on a simulated fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState
from nova_hpc.fabric.partitions.default_rule import take_default_rule
from nova_hpc.fabric.partitions.file_meaning import (
    PortEntries,
    find_open_rule,
    list_lost_entries,
    list_lost_properties,
)
from nova_hpc.fabric.partitions.keys import format_guid
from nova_hpc.fabric.partitions.opensm_grammar import parse_partitions
from nova_hpc.fabric.partitions.own_partitions import (
    RESERVED_COMMENT,
    OwnPartitions,
    OwnPartitionsError,
    parse_own_partitions,
)
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, render_body
from nova_hpc.fabric.partitions.partition_text import (
    EmptyFileError,
    FatalFileError,
    PartitionGrammarError,
    PartitionText,
    PortGroup,
    UncertainGrammarError,
)

#: Names of the rows.
DEFAULT_PARTITION: Final = "default_partition"
OWN_PARTITIONS: Final = "own_partitions"
_ISOLATION: Final = "SDN04-04"
_DEFAULT_CURE: Final = (
    "write into the file of partitions: Default=0x7fff, ipoib : ALL=limited, SELF=full ;"
)
_OPEN: Final = "every port is a full member of 0x7fff"

#: The state, and the finding in words.
_Verdict = tuple[AuditState, str]
#: Gives a file to opensm; returns why opensm does not take it, or None.
FileTrial = Callable[[str], str | None]


def read_partitions(text: str, trial: FileTrial | None = None) -> PartitionText:
    """Read a file of partitions as opensm does. If releases differ, the installed one decides.

    :param trial: None if opensm cannot be run.
    :raises PartitionGrammarError: opensm drops the file.
    :raises UncertainGrammarError: the trial does not decide it either.
    """
    try:
        return parse_partitions(text)
    except UncertainGrammarError as doubt:
        # Without candidates the result differs from one run of opensm to the next.
        if trial is None or not doubt.candidates:
            raise
        try:
            complaint = trial(text)
        except OSError as error:
            raise UncertainGrammarError(f"{doubt}; the trial failed: {error}") from error
        if complaint is not None:
            raise PartitionGrammarError(complaint) from doubt
        if len(doubt.candidates) != 1:
            problem = f"{doubt}; a trial took the file"
            raise UncertainGrammarError(problem, doubt.candidates, may_drop=False) from doubt
        return doubt.candidates[0]


def audit_default_partition(text: str | None, trial: FileTrial | None = None) -> AuditRow:
    """Check that only the subnet manager and named ports are full members of the default partition.

    The default partition has the P_Key 0x7fff.

    opensm makes every port a full member if the file is missing, empty or cannot be parsed.

    :param text: the file of partitions; None if it does not exist.
    """
    verdict = _judge_default_partition(text, trial)
    cure = "" if verdict[0] is AuditState.MET else _DEFAULT_CURE
    return AuditRow(DEFAULT_PARTITION, _ISOLATION, *verdict, cure, needed=True)


def _judge_default_partition(text: str | None, trial: FileTrial | None) -> _Verdict:
    if text is None:
        return AuditState.NOT_MET, f"no file of partitions: {_OPEN}"
    try:
        return _judge_full_members(read_partitions(text, trial))
    except FatalFileError as error:
        return AuditState.NOT_MET, f"opensm does not survive the file: {error}"
    except PartitionGrammarError as error:
        return AuditState.NOT_MET, f"opensm drops the file: {error}; {_OPEN}"
    except UncertainGrammarError as doubt:
        verdicts = set(map(_judge_full_members, doubt.candidates))
        if len(verdicts) == 1 and not doubt.may_drop:
            return verdicts.pop()
        return AuditState.UNKNOWN, str(doubt)


def _judge_full_members(read: PartitionText) -> _Verdict:
    entries = PortEntries(read.definitions)
    groups, more = [], []
    ports: dict[str, None] = {}
    for port in entries.named_ports():
        rule = find_open_rule(entries, port)
        if rule is None or port.manages:
            continue
        if isinstance(rule.who, PortGroup):
            groups.append(f"{rule.word} makes {port} a full member of 0x7fff")
        else:
            ports[format_guid(port.guid)] = None
    if groups:
        return AuditState.NOT_MET, "; ".join(dict.fromkeys(groups))
    if ports:
        more.append(f"but for ports that the file names: {', '.join(ports)}")
    return AuditState.MET, ", ".join(("limited for all but the subnet manager", *more))


def audit_own_partitions(
    text: str | None,
    own_text: str | None,
    own_path: str,
    *,
    trial: FileTrial | None = None,
    accepted: Iterable[str] = (),
) -> AuditRow:
    """Check whether the agent's first write would remove settings of the administrator.

    The agent writes the whole file. So before its first start the file of own partitions has to
    contain the administrator's lines of the file in force.

    :param text: the file of partitions; None if it does not exist.
    :param own_text: the file of own partitions; None if it does not exist.
    :param own_path: path of that file.
    :param accepted: losses that the operator has accepted.
    """
    state, verdict, cure = AuditState.MET, "none would be lost", ""
    try:
        losses = list_file_losses(text, own_text, trial)
    except PartitionGrammarError as error:
        state, verdict = AuditState.NOT_MET, f"opensm does not take the file: {error}"
        cure = "correct the file: the agent cannot see which lines it has to keep"
    except UncertainGrammarError as error:
        state, verdict = AuditState.UNKNOWN, str(error)
        cure = "write at most 4000 bytes on a line, and each semicolon behind a member"
    except OwnPartitionsError as error:
        state, verdict, cure = AuditState.NOT_MET, f"{own_path}: {error}", f"put {own_path} right"
    else:
        left = [loss for loss in losses if loss not in set(accepted)]
        if left:
            state, verdict = AuditState.NOT_MET, f"would be lost: {'; '.join(left)}"
            cure = (
                f"move these partitions into {own_path}, because the agent writes the file whole; "
                "or accept the losses: nova-hpc fabric check --accept-losses"
            )
        elif losses:
            verdict = f"{len(losses)} losses, which the operator has accepted"
    return AuditRow(OWN_PARTITIONS, _ISOLATION, state, verdict, cure, needed=True)


def is_file_of_agent(text: str | None) -> bool:
    """Whether the agent has written this file; another program may have changed it since."""
    return (text or "").startswith(RESERVED_COMMENT)


def list_file_losses(
    text: str | None, own_text: str | None, trial: FileTrial | None = None
) -> tuple[str, ...]:
    """List the settings that ports and partitions lose when the agent first writes its file.

    :param text: the present file of partitions; None if there is none.
    :param own_text: the file of the administrator's own partitions; None if there is none.
    :returns: one text for each loss; () if the file is an agent's.
    :raises PartitionGrammarError: opensm drops the present file.
    :raises UncertainGrammarError: opensm's reading of the file is unknown.
    :raises OwnPartitionsError: the own partitions cannot be used.
    """
    own = parse_own_partitions(own_text or "")
    if text is None or is_file_of_agent(text):
        return ()
    try:
        before = read_partitions(text, trial)
    except EmptyFileError:
        return ()
    after = parse_partitions(plan_first_body(own, before))
    old, new = PortEntries(before.definitions), PortEntries(after.definitions)
    ports = dict.fromkeys((*old.named_ports(), *new.named_ports()))
    losses = [
        loss
        for port in ports
        for loss in list_lost_entries(port, old.table_of(port), new.table_of(port))
    ]
    return tuple(dict.fromkeys((*losses, *list_lost_properties(before, after))))


def plan_first_body(own: OwnPartitions, before: PartitionText) -> str:
    """Render the content of the agent's first file of partitions, without any network."""
    return render_body(PartitionLayout(), own.with_default(take_default_rule(before.definitions)))
