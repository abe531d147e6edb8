# SPDX-License-Identifier: Apache-2.0
"""The audit of files against opensm itself: it gets each file, and its tables decide."""

import random
import subprocess
import time

import pytest

from nova_hpc.fabric.partitions.backends import opensm_trial
from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc.fabric.partitions.file_audit import audit_default_partition, read_partitions
from nova_hpc.fabric.partitions.file_meaning import PortEntries, RulePort
from nova_hpc.fabric.partitions.manager_options import is_switched_on, read_manager_options
from nova_hpc.fabric.partitions.opensm_grammar import parse_partitions
from nova_hpc.fabric.partitions.partition_text import (
    FatalFileError,
    PartitionGrammarError,
    PortGroup,
    UncertainGrammarError,
)
from tests.fabric.bare_fabric import wait_until
from tests.fabric.opensm import partition_texts
from tests.fabric.opensm.opensm_site import OtherNet, running_site

LIMITED = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n"
ONE, TWO = (f"0x{guid:016x}" for guid in partition_texts.HOSTS[:2])
FULL, OPEN = 0x8000, 0xFFFF


class SixPorts(OtherNet):
    """The manager, four hosts and a switch."""

    shape = """\
switchguid=0x2c90000020000
Switch 8 "leaf0"
[1] "manager"[1]
[2] "host0"[1]
[3] "host1"[1]
[4] "host2"[1]
[5] "host3"[1]

caguid=0x2c90000100000
Hca 1 "manager"
[1] "leaf0"[1]

caguid=0x2c90000200000
Hca 1 "host0"
[1] "leaf0"[2]

caguid=0x2c90000300000
Hca 1 "host1"
[1] "leaf0"[3]

caguid=0x2c90000400000
Hca 1 "host2"
[1] "leaf0"[4]

caguid=0x2c90000500000
Hca 1 "host3"
[1] "leaf0"[5]
"""


class Judge:
    """opensm with one file after the other."""

    def __init__(self, site):
        self.site = site
        self.backend = site.backend()
        self.ports = self.backend.reader.read_ports()

    def _sweep(self, data):
        log = self.site.files.log
        before = log.read_bytes().count(b"SUBNET UP")
        self.site.files.partitions.write_bytes(data)
        self.site.hang_up()
        wait_until(lambda: log.read_bytes().count(b"SUBNET UP") > before, "a sweep", pause=0.01)

    def tables(self, text):
        """GUID -> entries of the port, and of the switch port facing it, for a file."""
        # Names of a file before it would stay in opensm's memory.
        self._sweep(LIMITED.encode())
        self._sweep(text.encode("utf-8", "surrogateescape"))
        return wait_until(self._read_tables, "all tables are read")

    def _read_tables(self):
        ports = list(self.ports.ports.values())
        read = self.backend.reader.read_tables(ports)
        found = {guid: (tables.own, tables.facing) for guid, tables in read.items()}
        # A port that is asked while the machine is busy may not answer in time.
        whole = all(
            found[port.guid][0] and (port.facing is None or found[port.guid][1]) for port in ports
        )
        return found if whole else None


@pytest.fixture(scope="module")
def judge():
    with running_site(SixPorts(())) as site:
        yield Judge(site)


def expect_tables(judge, entries):
    return {
        guid: entries.table_of(RulePort(guid, port.kind, guid == judge.ports.manager))
        for guid, port in judge.ports.ports.items()
    }


def ends_opensm(text):
    try:
        parse_partitions(text)
    except FatalFileError:
        return True
    except ValueError:
        pass
    return False


def check(judge, text, trial=opensm_trial.try_file):
    """Hold the audit against opensm; what it said."""
    if ends_opensm(text):
        assert audit_default_partition(text, trial).state is AuditState.NOT_MET, text
        return "fatal"
    found = judge.tables(text)
    own = {guid: tables[0] for guid, tables in found.items()}
    for guid, (_, facing) in found.items():
        assert facing is None or facing == own[guid], text
    row = audit_default_partition(text, trial)
    try:
        entries = PortEntries(read_partitions(text, trial).definitions)
    except PartitionGrammarError:
        assert set(own.values()) == {frozenset({OPEN})}, text
        assert row.state is AuditState.NOT_MET, text
        return "dropped"
    except UncertainGrammarError:
        opened = any(OPEN in table for guid, table in own.items() if guid != judge.ports.manager)
        assert not (opened and row.state is AuditState.MET), text
        return "unknown"
    assert own == expect_tables(judge, entries), text
    opened = [
        guid
        for guid, table in own.items()
        if guid != judge.ports.manager
        and OPEN in table
        and not names_port(entries, judge.ports.ports[guid])
    ]
    # A rule for all routers or switches may open what this fabric does not have.
    if opened or not any(isinstance(who, PortGroup) for who in full_groups(entries)):
        assert (row.state is AuditState.MET) == (not opened), (text, row)
    return "open" if opened else "closed"


def names_port(entries, port):
    """Whether the file makes this port full on purpose: by its GUID, after all words."""
    rules = entries.list_rules(RulePort(port.guid, port.kind))
    of_default = [rule.who for pkey, rule in rules if pkey == 0x7FFF]
    return of_default[-1:] == [port.guid]


def full_groups(entries):
    return [
        rule.who
        for each in entries.definitions
        if each.pkey == 0x7FFF
        for rule in each.rules
        if rule.membership != "limited"
    ]


#: Forms beside those that were reported -> what opensm does.
FORMS = {
    "a semicolon on a line of its own": (
        "Default=0x7fff :\nALL=limited,\nSELF=full\n;\n",
        "dropped",
    ),
    "two semicolons": (f"{LIMITED};\n", "dropped"),
    "line ends of Windows": (LIMITED.replace("\n", "\r\n"), "dropped"),
    "a word that is cut": ("Default=0x7fff : ALL=limited, A=full ;\n", "open"),
    "a membership that is missing": ("Default=0x7fff : ALL= ;\n", "open"),
    "a default that is missing": ("Default=0x7fff, defmember= : ALL ;\n", "open"),
    "words in capitals": ("Default=0x7fff : ALL=FULL, SELF=full ;\n", "closed"),
    "adapters of the full key": (f"{LIMITED}0xffff : ALL_CAS=full ;\n", "open"),
    "a key without a name": (f"{LIMITED}0x8001 : {ONE}=full, {TWO} ;\n", "closed"),
    "no key": (f"{LIMITED}a : {ONE} ; b : {TWO}=full ; a : {TWO} ;\n", "closed"),
    "no rule for the default partition": (f"a=1 : {ONE}=full ;\n", "closed"),
    "a rule that is taken back": (f"Default : A=full ; x=0x7fff : ALL, {ONE}=full ;\n", "closed"),
    "a group without flags": (f"{LIMITED}a=1, ipoib :\nmgid=ff12::1\n{ONE}=full;\n", "closed"),
    "a group that ends the file": (
        f"{LIMITED}a=1, ipoib : mgid=ff12::1;\nb=2: {ONE};\n",
        "dropped",
    ),
    "host names": (f"{LIMITED}batch=3, sl=1 : cn[01-64] ;\n", "dropped"),
    "a colon on the next line": ("Default=0x7fff, ipoib\n: ALL=limited, SELF=full ;\n", "dropped"),
    "no semicolon": (f"{LIMITED}a=1 : {ONE}=full, {TWO}\n", "closed"),
    "nothing": ("# nothing\n", "dropped"),
    "octal numbers": (f"{LIMITED}a=010 : {int(ONE, 0):#o} ;\n".replace("0o", "0"), "closed"),
    "functions of adapters": (f"{LIMITED}a=1 : ALL_VCAS=full ;\n", "dropped"),
    # 4,096 bytes cut a GUID behind its 0, or in two octal numbers.
    "a line that is cut": (f"{LIMITED}vcA=0x0101 : " + ", ".join([ONE] * 208) + " ;\n", "dropped"),
    "a line with one port more": (f"{LIMITED}x=5 : " + ", ".join([ONE] * 240) + " ;\n", "unknown"),
    "a line that is cut twice": (f"{LIMITED}x=5 : " + ", ".join([ONE] * 420) + " ;\n", "dropped"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_audit_says_what_opensm_does(judge, form):
    text, outcome = FORMS[form]
    assert check(judge, text) == outcome


def test_the_reported_files_are_judged_as_opensm_judges_them(judge, captures):
    said = {
        path.name: check(judge, path.read_text())
        for path in sorted((captures / "reports/partitions").glob("*.conf"))
    }
    assert said == {
        "bare_numbers.conf": "closed",
        "bare_numbers.own.conf": "closed",
        "default_4k.conf": "closed",
        "unparsable_opens.conf": "dropped",
    }


def test_a_group_without_an_address_ends_opensm():
    text = f"{LIMITED}a=1, ipoib :\nmgid\n{ONE} ;\n"
    assert ends_opensm(text)
    with running_site(SixPorts(())) as site:
        site.files.partitions.write_text(text)
        site.hang_up()
        wait_until(lambda: site.fabric.pid("opensm") is None, "opensm has ended")
    row = audit_default_partition(text)
    assert (row.state, "opensm does not survive" in row.found) == (AuditState.NOT_MET, True)


def check_random_files(judge, seed, seconds=None, files=None):
    """Outcomes of files that are made up; each is checked."""
    end = time.monotonic() + (seconds or 1e9)
    said = []
    for number in range(files or 1_000_000):
        if time.monotonic() > end:
            break
        said.append(check(judge, partition_texts.make_text(random.Random(f"{seed}-{number}"))))
    return said


def test_files_that_are_made_up_are_judged_as_opensm_judges_them(judge):
    said = check_random_files(judge, seed=49, files=40)
    assert {"dropped", "open", "closed"} <= set(said)


@pytest.mark.slow
def test_many_files_that_are_made_up_are_judged_as_opensm_judges_them(judge):
    said = check_random_files(judge, seed=490, files=2000)
    counts = {outcome: said.count(outcome) for outcome in set(said)}
    assert min(counts.get(outcome, 0) for outcome in ("dropped", "open", "closed")) >= 100
    assert counts.get("unknown", 0) < 100


@pytest.mark.parametrize("word", ["TRUE", "true", "True", "yes", "1", "TRUE,", "FALSE", ""])
def test_a_switch_is_on_as_opensm_writes_it_back(tmp_path, word):
    given, written = tmp_path / "given.conf", tmp_path / "written.conf"
    switches = ("qos", "no_partition_enforcement")
    given.write_text("".join(f"{option} {word}\n" for option in switches))
    argv = ["/usr/sbin/opensm", "-F", str(given), "-c", str(written)]
    subprocess.run(argv, capture_output=True, timeout=60, check=False)
    options, taken = (read_manager_options(path.read_text()) for path in (given, written))
    for option in switches:
        assert taken[option] == ("TRUE" if is_switched_on(options, option) else "FALSE")
