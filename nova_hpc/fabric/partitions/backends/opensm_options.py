# SPDX-License-Identifier: Apache-2.0
"""The options of the running opensm: its command line wins over its file of options.

``getopt_long_only(3)`` of the C library reads the words, as in opensm, with the table of release
3.3.23 (``opensm/main.c``). So long options may have one dash, and
may be cut; letters may be joined.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import attrs

from nova_hpc.fabric.partitions.opensm_grammar import read_number

DEFAULT_CONFIG: Final = "/etc/opensm/opensm.conf"
_SHORT: Final = "F:c:i:w:O:f:ed:D:g:l:L:s:t:a:u:m:X:R:zM:U:S:P:Y:ANZ:WBIQvVhoryxp:n:q:k:C:G:H:"
#: Long options without a value, and with one; an option's letter follows if it has one.
_WITHOUT: Final = (
    *("no_part_enforce=N", "allow_both_pkeys=W", "qos=Q", "version", "verbose=v"),
    *("erase_log_file=e", "congestion_control", "V=V", "help=h", "once=o", "reassign_lids=r"),
    *("ucast_cache=A", "connect_roots=z", "port-shifting", "stay_on_fatal=y", "honor_guid2lid=x"),
    *("daemon=B", "inactive=I", "perfmgr", "consolidate_ipv6_snm_req", "do_mesh_analysis"),
    "guid_routing_order_no_scatter",
)
_WITH: Final = (
    *("config=F", "create-config=c", "debug=d", "guid=g", "ignore_guids=i", "hop_weights_file=w"),
    *("dimn_ports_file=O", "port_search_ordering_file=O", "lmc=l", "sweep=s", "timeout=t", "D=D"),
    *("log_file=f", "log_limit=L", "Pconfig=P", "part_enforce=Z", "qos_policy_file=Y", "cc_key"),
    *("maxsmps=n", "console=q", "priority=p", "subnet_prefix", "smkey=k", "routing_engine=R"),
    *("lid_matrix_file=M", "lfts_file=U", "sadb_file=S", "root_guid_file=a", "cn_guid_file=u"),
    *("io_guid_file=G", "scatter-ports", "max_reverse_hops=H", "ids_guid_file=m"),
    *("guid_routing_order_file=X", "console-port=C", "pidfile=J", "perfmgr_sweep_time_s"),
    *("prefix_routes_file", "lash_start_vl", "sm_sl", "retries", "log_prefix", "torus_config"),
    *("nue_max_num_vls", "dump_files_dir"),
)
#: Options without a letter get a number that no letter has.
_FIRST_NUMBER: Final = 256
_ENFORCE: Final = ("both", "in", "out", "off")
_UNKNOWN: Final = ord("?")


class CommandLineError(Exception):
    """The command line of the running opensm cannot be parsed."""


def _freeze_values(given: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(given))


@attrs.frozen
class CommandLine:
    """The options on opensm's command line, under their names in opensm's file of options."""

    values: Mapping[str, str] = attrs.field(factory=dict, converter=_freeze_values)
    #: The file of options.
    config: str = DEFAULT_CONFIG


class _Option(ctypes.Structure):
    """The C structure ``struct option`` of getopt.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.c_void_p),
        ("val", ctypes.c_int),
    )


#: The C library has one state for all.
_LOCK: Final = threading.Lock()


def read_command_line(pid: int, proc: Path = Path("/proc")) -> CommandLine:
    """Read the options on the command line of the opensm with process id *pid*.

    :raises CommandLineError: they cannot be read.
    """
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]
    except OSError as error:
        raise CommandLineError(
            f"the command line of opensm, process {pid}, cannot be read: {error.strerror}"
        ) from error
    if not words:
        raise CommandLineError(f"the command line of opensm, process {pid}, is hidden")
    return parse_command_line(words)


def parse_command_line(words: Sequence[bytes]) -> CommandLine:
    """Parse opensm's command line. If an option comes twice, the last one counts.

    :raises CommandLineError: there is an option that opensm 3.3.23 does not have.
    """
    values: dict[str, str] = {}
    config = DEFAULT_CONFIG
    for name, value in _split_options(words):
        if name == "F":
            config = value
        elif name == "Z":
            values |= {"part_enforce": value} if value in _ENFORCE else {}
        elif name in _SETTERS:
            option, convert = _SETTERS[name]
            values[option] = convert(value)
    return CommandLine(values, config)


def _read_hexadecimal(text: str) -> str:
    """Convert a number like strtoull(3) with base 16; return it as text with ``0x``.

    opensm takes base 16 for these options on its command line; its file has base 0.
    """
    digits = text.strip().lower().removeprefix("0x")
    number, _ = read_number(f"0x{digits}".encode())
    return f"{number:#x}"


def _keep(text: str) -> str:
    return text


def _set(_: str) -> str:
    return "TRUE"


_SETTERS: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "P": ("partition_config_file", _keep),
    "k": ("sm_key", _read_hexadecimal),
    "g": ("guid", _read_hexadecimal),
    "N": ("no_partition_enforcement", _set),
    "W": ("allow_both_pkeys", _set),
    "Q": ("qos", _set),
    "f": ("log_file", _keep),
    "cc_key": ("cc_key", _keep),
    "congestion_control": ("congestion_control", _set),
}


def _split_options(words: Sequence[bytes]) -> list[tuple[str, str]]:
    """Split opensm's command line with getopt_long(3).

    :returns: for each option its letter, or its name if it has none, and its value.
    """
    names: dict[int, str] = {}
    table = (_Option * (len(_WITHOUT) + len(_WITH) + 1))()
    for place, (text, has_value) in enumerate(
        [*((each, 0) for each in _WITHOUT), *((each, 1) for each in _WITH)]
    ):
        name, _, letter = text.partition("=")
        number = ord(letter) if letter else _FIRST_NUMBER + place
        names[number] = letter or name
        table[place] = _Option(name.encode("ascii"), has_value, None, number)
    library = ctypes.CDLL(None)
    # The call moves words about; it gets copies.
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    found: list[tuple[str, str]] = []
    with _LOCK:
        argument = ctypes.c_char_p.in_dll(library, "optarg")
        ctypes.c_int.in_dll(library, "optind").value = 0
        ctypes.c_int.in_dll(library, "opterr").value = 0
        while True:
            number = library.getopt_long_only(len(words), argv, _SHORT.encode("ascii"), table, None)
            if number == -1:
                return found
            if number == _UNKNOWN:
                raise CommandLineError(
                    "the command line of opensm has an option that release 3.3.23 does not have"
                )
            value = (argument.value or b"").decode("utf-8", "surrogateescape")
            found.append((names.get(number, chr(number)), value))
