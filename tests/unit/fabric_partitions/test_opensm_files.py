# SPDX-License-Identifier: Apache-2.0
"""The files that are shared with opensm, and its process."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nova_hpc.fabric.partitions.backends.base import (
    AuditState,
    StaleReadingError,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.opensm_files import (
    OpensmLog,
    PartitionStore,
    read_text,
    replace_text,
)
from nova_hpc.fabric.partitions.backends.opensm_process import (
    find_opensm,
    read_running_options,
    wake_opensm,
)
from nova_hpc.fabric.partitions.backends.opensm_secrecy import audit_secrecy
from nova_hpc.fabric.partitions.manager_options import RunningOptions
from nova_hpc.fabric.partitions.other_managers import (
    describe_other_manager,
    find_manager_places,
)
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, render_body, render_file
from nova_hpc.fabric.partitions.port_tables import EndPort, FabricPorts

BODY = render_body(PartitionLayout(), OwnPartitions())


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "partitions.conf"
    replace_text(path, "a\udcff")
    assert read_text(path) == "a\udcff"
    before = path.stat().st_ino
    replace_text(path, "b")
    assert (path.read_text(), path.stat().st_ino != before) == ("b", True)
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "partitions.conf"
    path.mkdir()
    with pytest.raises(SubnetManagerError, match="the former partitions stay in force"):
        replace_text(path, "b")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(SubnetManagerError, match="cannot be written"):
        replace_text(tmp_path / "none" / "x", "b")


def test_an_earlier_reading_does_not_pass_the_fence(tmp_path: Path) -> None:
    store, other = (PartitionStore(tmp_path / "partitions.conf") for _ in range(2))
    assert store.read() is None
    with store.hold_lock():
        store.pass_fence(7, None)
    with other.hold_lock():
        other.pass_fence(7, None)
        with pytest.raises(StaleReadingError, match="reading 6 is older than 7"):
            other.pass_fence(6, None)
        other.pass_fence(8, None)
    with store.hold_lock(), pytest.raises(StaleReadingError):
        store.pass_fence(7, None)


def test_a_file_says_its_ticket_where_the_other_is_lost(tmp_path: Path) -> None:
    store = PartitionStore(tmp_path / "partitions.conf")
    for damage in (lambda: None, lambda: store.ticket_path.write_text("nonsense")):
        damage()
        with pytest.raises(StaleReadingError):
            store.pass_fence(6, render_file(BODY, 7))
    # A ticket that somebody has written by hand stops nobody.
    store.pass_fence(6, render_file(BODY, 7).replace("# ticket 7", "# ticket 999"))
    assert store.ticket_path.read_text() == "6\n"


FULL_DISK = """
import resource, sys
from pathlib import Path
from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc.fabric.partitions.backends.opensm_files import PartitionStore, replace_text
path = Path(sys.argv[1])
store = PartitionStore(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for act in (lambda: store.pass_fence(8, None), lambda: replace_text(path, "new")):
    try:
        act()
    except SubnetManagerError as error:
        print(error)
"""


def test_a_full_disk_leaves_ticket_and_file_as_they_were(tmp_path: Path) -> None:
    store = PartitionStore(tmp_path / "partitions.conf")
    store.path.write_text("old")
    store.pass_fence(7, None)
    # A limit on the size of files is met where a full disk is, and by this process alone.
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(store.path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split(" cannot be written: ")[0] for line in lines] == [
        str(store.ticket_path),
        str(store.path),
    ]
    assert store.path.read_text() == "old"
    assert store.latest_ticket(None) == 7
    assert {path.name for path in tmp_path.iterdir()} == {store.path.name, store.ticket_path.name}
    with pytest.raises(StaleReadingError):
        store.pass_fence(6, None)


def test_a_ticket_from_the_future_is_named_with_the_cure(tmp_path: Path) -> None:
    store = PartitionStore(tmp_path / "partitions.conf")
    for text in ("9" * 18, "9" * 40):
        store.ticket_path.write_text(text)
        with pytest.raises(StaleReadingError, match=f"remove {store.ticket_path} and {store.path}"):
            store.pass_fence(8, None)
        assert store.ticket_path.read_text() == text
    store.ticket_path.unlink()
    store.pass_fence(8, None)


def test_a_clock_that_jumps_moves_no_fence(tmp_path: Path) -> None:
    store = PartitionStore(tmp_path / "partitions.conf")
    store.pass_fence(7, None)
    for moment in (0, 1 << 33):
        os.utime(store.ticket_path, (moment, moment))
        with pytest.raises(StaleReadingError):
            store.pass_fence(6, None)
        store.pass_fence(7, None)


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "partitions.conf"
    target.write_text("a")
    link.symlink_to(target)
    replace_text(PartitionStore(link).path, "b")
    assert (link.is_symlink(), target.read_text()) == (True, "b")


def test_a_log_is_read_from_a_mark_and_after_it_was_rotated(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = OpensmLog(path)
    log.set_mark()
    with pytest.raises(SubnetManagerError, match="opensm_log"):
        log.read_complaints()
    path.write_text("x PARSE ERROR: line 3: bad PortGUID\n")
    assert log.read_complaints() == ("x PARSE ERROR: line 3: bad PortGUID",)
    log.set_mark()
    assert log.read_complaints() == ()
    with path.open("a") as stream:
        stream.write("SUBNET UP\nPartition configuration in error; retrying with default config\n")
    assert len(log.read_complaints()) == 1
    log.set_mark()
    path.write_text("PARSE ERROR\n")
    assert log.read_complaints() == ("PARSE ERROR",)
    log.set_mark()
    path.rename(tmp_path / "log.1")
    path.write_text("PARSE ERROR" + "x" * 10_000)
    assert len(log.read_complaints()) == 1


@pytest.fixture
def start(tmp_path):
    """Starts a program by the name of opensm, and others."""
    processes = []

    def begin(name, *arguments, program="/bin/sleep"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        shutil.copy(program, path)
        processes.append(subprocess.Popen([str(path), *arguments], stdout=subprocess.PIPE))
        (tmp_path / "pid").write_text(f"{processes[-1].pid}\n")
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


CATCHES = """
trap 'echo told' HUP
echo ready
while :; do sleep 0.02; done
"""


def test_opensm_is_told_when_it_listens(tmp_path: Path, start) -> None:
    process = start("opensm", "-c", CATCHES, program=shutil.which("dash") or "/bin/sh")
    assert process.stdout.readline() == b"ready\n"
    one = find_opensm(tmp_path / "pid")
    assert one == find_opensm(tmp_path / "pid")
    wake_opensm(one)
    assert process.stdout.readline() == b"told\n"


def test_the_options_of_the_process_are_read(tmp_path: Path, start) -> None:
    config = tmp_path / "opensm.conf"
    # Nothing runs: its file alone says what it will have.
    assert read_running_options(tmp_path / "pid", config) == RunningOptions()
    process = start("opensm", "-c", CATCHES, "-k", "1", program=shutil.which("dash") or "/bin/sh")
    assert process.stdout.readline() == b"ready\n"
    # The shell's option -c is opensm's, too, and takes a value; -F is not there.
    running = read_running_options(tmp_path / "pid", config)
    assert dict(running.values) == {"sm_key": "0x1"}
    assert running.other_config == "/etc/opensm/opensm.conf"
    assert read_running_options(tmp_path / "pid", Path(running.other_config)).other_config is None


def test_a_process_that_is_not_opensm_is_unknown(tmp_path: Path, start) -> None:
    # Of another host, or of another namespace of processes.
    start("other", "100")
    running = read_running_options(tmp_path / "pid", tmp_path / "opensm.conf")
    assert "is 'other' and not opensm" in (running.unknown or "")


def test_files_with_keys_that_all_can_read_are_named(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    conf = SimpleNamespace(
        opensm_config=str(tmp_path / "conf"), opensm_log=str(tmp_path / "none" / "log")
    )
    (row,) = audit_secrecy(conf)
    assert row.state is AuditState.MET
    path = tmp_path / "conf"
    path.write_text("m_key 0x1\n")
    for mode, state in ((0o600, "met"), (0o640, "met"), (0o644, "not met"), (0o604, "not met")):
        path.chmod(mode)
        (row,) = audit_secrecy(conf)
        assert (row.state.value, row.needed) == (state, False), oct(mode)
    assert row.found == f"every user of this host can read {path}, which have keys of the fabric"
    assert row.cure.startswith(f"chmod o= {path};")
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o700)
    (inner / "conf").write_text("m_key 0x1\n")
    conf.opensm_config = str(inner / "conf")
    (row,) = audit_secrecy(conf)
    assert row.state is AuditState.MET


def test_one_that_would_die_of_the_signal_gets_none(tmp_path: Path, start) -> None:
    process = start("opensm", "100")
    with pytest.raises(SubnetManagerError, match="has only begun"):
        wake_opensm(find_opensm(tmp_path / "pid"))
    assert process.poll() is None


def test_another_program_gets_no_signal(tmp_path: Path, start) -> None:
    process = start("other", "100")
    with pytest.raises(SubnetManagerError, match="is 'other' and not opensm"):
        find_opensm(tmp_path / "pid")
    assert process.poll() is None


def test_one_that_is_gone_is_named_with_the_cure(tmp_path: Path, start) -> None:
    with pytest.raises(SubnetManagerError, match="ExecStartPost"):
        find_opensm(tmp_path / "none")
    (tmp_path / "pid").write_text("x")
    with pytest.raises(SubnetManagerError, match="names no process"):
        find_opensm(tmp_path / "pid")
    process = start("opensm", "100")
    one = find_opensm(tmp_path / "pid")
    os.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + 10
    # A process that nobody has waited for does not run either.
    while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
    for act in (lambda: find_opensm(tmp_path / "pid"), lambda: wake_opensm(one)):
        with pytest.raises(SubnetManagerError, match="gone"):
            act()
    process.wait()
    with pytest.raises(SubnetManagerError, match="gone"):
        wake_opensm(one)


MEETS = (
    "Nov 28 20:13:45 258202 [D4A9C6C0] 0x01 -> smi_rcv_process_get_response: ERR 2F18: Got SM "
    "({place}) with sm_key 0x47678465cb7dac6f that doesn't match our local sm_key. Ignoring SM\n"
    "Nov 28 20:13:45 258960 [D4A9C6C0] 0x80 -> Found remote SM ({place}) with non-matching sm_key\n"
)
BEGINS = "Nov 28 20:13:44 905166 [B46EF740] 0x80 -> OpenSM 3.3.23\n"


def test_managers_with_another_key_are_named_for_a_time(tmp_path: Path) -> None:
    moment = [1000.0]
    path = tmp_path / "log"
    log = OpensmLog(path, lambda: moment[0])
    assert log.find_other_managers() == ()
    path.write_text(BEGINS + MEETS.format(place="LID 12") + BEGINS + MEETS.format(place="0,1,3"))
    # A run before has met one that may be gone.
    assert log.find_other_managers() == ("0,1,3",)
    with path.open("a") as stream:
        stream.write(MEETS.format(place="LID 7"))
    moment[0] += 200.0
    assert log.find_other_managers() == ("0,1,3", "LID 7")
    moment[0] += 200.0
    assert log.find_other_managers() == ("LID 7",)
    moment[0] += 200.0
    assert log.find_other_managers() == ()
    # logrotate: another file.
    path.unlink()
    path.write_text(MEETS.format(place="LID 7"))
    assert log.find_other_managers() == ("LID 7",)
    path.unlink()
    with pytest.raises(SubnetManagerError, match="cannot be read"):
        log.find_other_managers()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("0,1,1,3", "at port 0x000000000000000a (0,1,1,3), port 3 of the switch with LID 9: "),
        ("LID 4", "at port 0x000000000000000a (LID 4), port 3 of the switch with LID 9: "),
        ("LID 5", "at LID 5: "),
        ("0,1,2,3", "at 0,1,2,3: "),
        # Two ports of one switch's LID, and a route that ends at the reader.
        ("LID 9", "at LID 9: "),
        ("0", "at 0: "),
    ],
)
def test_a_manager_is_named_by_its_port(place, said) -> None:
    fabric = FabricPorts(
        {
            0x1: EndPort(0x1, "ca", 1, 1),
            0xA: EndPort(0xA, "ca", 4, 1, (9, 3), (1, 1, 3)),
            0x8: EndPort(0x8, "switch", 9, 0, None, (1,)),
            0x9: EndPort(0x9, "switch", 9, 0, None, (1, 1)),
        },
        0x1,
    )
    assert f"another subnet manager is {said}" in describe_other_manager(place, fabric)
    assert find_manager_places(MEETS.format(place=place)) == (place,)


def test_two_agents_do_not_write_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from nova_hpc.fabric.partitions.backends.opensm_files import PartitionStore\n"
        "with PartitionStore(Path(sys.argv[1])).hold_lock():\n"
        "    print('held', flush=True); sys.stdin.read(); print('left', flush=True)\n"
    )
    path = tmp_path / "partitions.conf"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout.readline() == b"held\n"
        other.stdin.close()
        with PartitionStore(path).hold_lock():
            assert other.stdout.readline() == b"left\n"
