# SPDX-License-Identifier: Apache-2.0
"""The command line of the opensm that runs."""

import pytest

from nova_hpc.fabric.partitions.backends import opensm_options
from nova_hpc.fabric.partitions.backends.opensm_options import (
    CommandLineError,
    parse_command_line,
    read_command_line,
)


def parse(*words):
    return parse_command_line([b"/usr/sbin/opensm", *(word.encode() for word in words)])


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((), {}),
        (("--smkey", "1"), {"sm_key": "0x1"}),
        # Base 16, whatever it looks like.
        (("--smkey=10",), {"sm_key": "0x10"}),
        (("-k", "0x1f"), {"sm_key": "0x1f"}),
        (("-k1",), {"sm_key": "0x1"}),
        (("-k", "nonsense"), {"sm_key": "0x0"}),
        # One dash, and cut.
        (("-smkey", "2"), {"sm_key": "0x2"}),
        (("--smk", "2"), {"sm_key": "0x2"}),
        (("-smk=2",), {"sm_key": "0x2"}),
        (("--smkey", "1", "-k", "3"), {"sm_key": "0x3"}),
        (("-Z", "off"), {"part_enforce": "off"}),
        (("-Zoff",), {"part_enforce": "off"}),
        (("--part_enforce=in",), {"part_enforce": "in"}),
        (("-part", "out", "-Z", "both"), {"part_enforce": "both"}),
        # opensm leaves it out with a word that it does not know.
        (("-Z", "off", "-Z", "no"), {"part_enforce": "off"}),
        (("-N",), {"no_partition_enforcement": "TRUE"}),
        (("--no_part",), {"no_partition_enforcement": "TRUE"}),
        # Letters that are joined.
        (("-BNZ", "off"), {"no_partition_enforcement": "TRUE", "part_enforce": "off"}),
        (("-P", "/a", "--Pconfig", "/b"), {"partition_config_file": "/b"}),
        (("-P/a",), {"partition_config_file": "/a"}),
        (("-Pconf", "/a"), {"partition_config_file": "/a"}),
        (("-g", "2c90000100001"), {"guid": "0x2c90000100001"}),
        (("word", "-Q", "other"), {"qos": "TRUE"}),
        (("-Q", "--", "-N"), {"qos": "TRUE"}),
        (("-f", "-N"), {"log_file": "-N"}),
        (("--log_prefix", "-k", "-W"), {"allow_both_pkeys": "TRUE"}),
    ],
)
def test_words_are_read_as_opensm_reads_them(words, values):
    assert dict(parse(*words).values) == values


def test_the_file_of_options_is_the_last_one():
    assert parse("-B").config == opensm_options.DEFAULT_CONFIG
    assert parse("-F", "/a", "--config=/b").config == "/b"


@pytest.mark.parametrize("words", [("--unknown",), ("-b",), ("-k",), ("--sm", "1")])
def test_what_opensm_does_not_have_is_unknown(words):
    with pytest.raises(CommandLineError, match=r"3\.3\.23"):
        parse(*words)


def test_a_process_is_asked(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    folder.joinpath("cmdline").write_bytes(b"opensm\0-k\0001\0-f\0\0")
    found = read_command_line(7, tmp_path)
    assert dict(found.values) == {"sm_key": "0x1", "log_file": ""}
    folder.joinpath("cmdline").write_bytes(b"")
    with pytest.raises(CommandLineError, match="is hidden"):
        read_command_line(7, tmp_path)
    with pytest.raises(CommandLineError, match="process 8, cannot be read: No such file"):
        read_command_line(8, tmp_path)
