# SPDX-License-Identifier: Apache-2.0
"""Audits the settings of UFM and of its subnet manager.

UFM returns all options of its subnet manager at once (guide, *SM Configuration REST API*, the
example without a value). Options that UFM leaves out are requested one by one, once. Its files
contain the rest if the agent runs on UFM's host; on other hosts the rest is unknown.
"""

from __future__ import annotations

import configparser
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState, SubnetManagerError
from nova_hpc.fabric.partitions.file_audit import DEFAULT_PARTITION
from nova_hpc.fabric.partitions.hardening import (
    audit_nvidia_manager,
    audit_virtualisation,
)
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.manager_options import read_manager_options
from nova_hpc_ufm.client import UfmRefusedError, UfmTroubleError
from nova_hpc_ufm.partitions import UfmPartition

#: Row -> the option that decides it, if the option has another name.
_OPTION_OF_ROW: Final[Mapping[str, str]] = MappingProxyType(
    {
        "part_enforce": "no_partition_enforcement",
        "vs_key": "vs_key_enable",
        "cc_key": "cc_key_enable",
        "n2n_key": "n2n_key_enable",
        "m2n_key": "n2n_key_enable",
        "topoconfig": "topo_config_enabled",
    }
)
#: Options to read in addition to those that have the name of a row.
_MORE_OPTIONS: Final = ("part_enforce", "topo_config_file")
#: Rows that no option of the subnet manager decides.
_NO_OPTION: Final = frozenset({DEFAULT_PARTITION, "am_key"})
_RANDOM_SA_KEY: Final = "randomize_sa_key"
_LOCAL_CURE: Final = "run the agent on UFM's host, with opensm_config as UFM has it, or look there"


@attrs.frozen
class UfmFiles:
    """The text of UFM's files on this host; None if a file is absent or cannot be read."""

    opensm_conf: str | None
    gv_cfg: str | None


def read_ufm_files(opensm_config: Path) -> UfmFiles:
    """Read ``opensm.conf``, and ``gv.cfg`` a folder above, as UFM lays them out."""
    return UfmFiles(_read_text(opensm_config), _read_text(opensm_config.parent.parent / "gv.cfg"))


@attrs.define
class UfmOptions:
    """Reads the options of UFM's subnet manager.

    All are read at the first look, and one option at each later look.

    :ivar ask: requests ``/app/smconf`` for this ``param_name``, or all options if it is None, and
        returns the JSON.
    """

    ask: Callable[[str | None], Any]
    _whole: dict[str, str] = attrs.field(factory=dict)
    #: Options that UFM returns only one by one; None if it no longer returns one.
    _single: dict[str, str | None] = attrs.field(factory=dict)
    _tells_all: bool = True
    _has_begun: bool = False
    _turn: int = 0

    def read(self, names: Iterable[str]) -> Mapping[str, str]:
        """Read options; an option is absent if UFM does not return it, or does not answer."""
        try:
            if self._has_begun:
                self._read_next()
            else:
                self._begin(names)
        except SubnetManagerError:
            return {}
        single = {name: value for name, value in self._single.items() if value is not None}
        return single | self._whole

    def _begin(self, names: Iterable[str]) -> None:
        try:
            self._read_whole()
        except (UfmRefusedError, UfmTroubleError):
            self._tells_all = False
        for name in sorted(frozenset(names) - self._whole.keys()):
            self._read_single(name)
        self._has_begun = True

    def _read_next(self) -> None:
        # A round of the agent waits for this, so each look reads all options or one, in turn.
        turns = [*([None] if self._tells_all else []), *sorted(self._single)]
        if turns:
            self._turn = (self._turn + 1) % len(turns)
            name = turns[self._turn]
            if name is None:
                self._read_whole()
            else:
                self._read_single(name)

    def _read_whole(self) -> None:
        answer = self.ask(None)
        told = answer if isinstance(answer, dict) else {}
        values = {str(name): _write_option(value) for name, value in told.items()}
        self._whole = {name: value for name, value in values.items() if value is not None}

    def _read_single(self, name: str) -> None:
        try:
            answer = self.ask(name)
        except UfmRefusedError:
            answer = None
        value = _write_option(answer.get(name) if isinstance(answer, dict) else answer)
        if value is not None or name in self._single:
            self._single[name] = value


def _write_option(value: object) -> str | None:
    """Write an option as in the manager's file; None if its form is unknown."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(value) if isinstance(value, str | int) else None


def audit_ufm(
    manager: UfmOptions, default: UfmPartition | None, files: UfmFiles
) -> tuple[AuditRow, ...]:
    """Check the settings of UFM's subnet manager, from UFM's options and files.

    :param default: the default partition, as UFM lists it; None if unknown.
    """
    if files.opensm_conf is not None:
        options = dict(read_manager_options(files.opensm_conf))
        complete = True
    else:
        names = {_OPTION_OF_ROW.get(row.name, row.name) for row in audit_nvidia_manager("", None)}
        asked = (names | {*_MORE_OPTIONS, "virt_enabled"}) - _NO_OPTION
        options = dict(manager.read(asked))
        complete = False
    gv_cfg = _read_settings(files.gv_cfg)
    options |= _options_of_ufm(gv_cfg, options)
    text = "".join(f"{name} {value}\n" for name, value in options.items())
    rows = [_audit_default_membership(default, gv_cfg)]
    for row in audit_nvidia_manager(text, None):
        if row.name == DEFAULT_PARTITION:
            continue
        known = complete or row.name in _NO_OPTION or _is_known(row.name, options)
        if row.name == "sa_key" and gv_cfg is not None and gv_cfg.get(_RANDOM_SA_KEY) == "true":
            row = attrs.evolve(row, state=AuditState.MET, found=f"{_RANDOM_SA_KEY} = true", cure="")
            known = True
        rows.append(row if known else _forget(row))
    known_options = options if complete or "virt_enabled" in options else None
    return (*rows, audit_virtualisation(known_options))


def _options_of_ufm(gv_cfg: Mapping[str, str] | None, options: Mapping[str, str]) -> dict[str, str]:
    """Return option -> value that UFM sets by its own file when it starts the subnet manager.

    :param gv_cfg: UFM's settings; None if they are unreadable.
    """
    if gv_cfg is None:
        return {}
    told = {}
    if gv_cfg.get("m_key_per_port") == "true":
        told["m_key_per_port"] = "TRUE"
    seed = gv_cfg.get("global_m_key_seed", "")
    if seed and options.get("m_key", "").lower().strip("0x") == "":
        told["m_key"] = seed
    if gv_cfg.get("topoconfig_enabled") == "true":
        told["topo_config_enabled"] = "TRUE"
        told["topo_config_file"] = options.get("topo_config_file", "topoconfig.conf")
    return told


def _audit_default_membership(
    default: UfmPartition | None, gv_cfg: Mapping[str, str] | None
) -> AuditRow:
    cure = "default_membership = limited in the section MngNetwork of UFM's gv.cfg"
    stated = None if default is None else default.default_membership
    if stated is None and gv_cfg is not None:
        word = gv_cfg.get("default_membership")
        # UFM's own default (user manual, appendix Partitioning).
        stated = Membership.LIMITED if word == "limited" else Membership.FULL
    members = {} if default is None else default.members
    full = sum(membership is Membership.FULL for membership in members.values())
    if stated is None:
        state, value = AuditState.UNKNOWN, "UFM reports it from 6.19 on"
        cure = f"{cure}; {_LOCAL_CURE}"
    elif stated is Membership.FULL:
        state, value = AuditState.NOT_MET, "every port is a full member of 0x7fff"
    else:
        # The host of UFM is one of them.
        state, value, cure = AuditState.MET, f"limited, but for {full} port(s) that UFM names", ""
    return AuditRow(DEFAULT_PARTITION, "SDN04-04", state, value, cure, needed=True)


def _is_known(row_name: str, options: Mapping[str, str]) -> bool:
    return _OPTION_OF_ROW.get(row_name, row_name) in options


def _forget(row: AuditRow) -> AuditRow:
    return attrs.evolve(
        row,
        state=AuditState.UNKNOWN,
        found="UFM does not report it",
        cure=f"{row.cure or row.name}; {_LOCAL_CURE}",
    )


def _read_settings(text: str | None) -> Mapping[str, str] | None:
    """Parse a file: option -> value in small letters, of all sections; None if unreadable."""
    if text is None:
        return None
    parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return {
        option: (value or "").strip().lower()
        for section in parser.sections()
        for option, value in parser.items(section)
    }


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
