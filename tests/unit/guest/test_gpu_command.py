# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest gpu`` with real processes, sockets and files; systemd's command is a script."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nova_hpc_guest import command, own_metadata
from nova_hpc_guest.files import Root
from nova_hpc_guest.gpu import (
    attached,
    lifeline,
    mps,
    packet_filter,
    records,
    serving,
    tunnel,
    units,
)
from nova_hpc_guest.gpu import command as gpu_command
from nova_hpc_guest.gpu import job as gpu_job
from nova_hpc_guest.gpu.port_rule import port_of_address
from nova_hpc_guest.gpu.system import Programs

SHARE = "0f4b3c2a-1111-4222-8333-444455556666"
CLIENT = "7a1d9e00-1111-4222-8333-444455556666"
OWN = "127.0.0.1"
ENGINE = """[engine]
name = mine
server = /bin/sleep 600
release = 1.2
user = nobody
[server environment]
HOW = "100%" $HOME \\n {port}
[client environment]
WHERE = {address}:{port}
QUOTED = a "b" $c `d` \\ 'e'
[memory environment]
LIMIT = 0={mib}M
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root/etc/nova-hpc/gpu-engines"
    folder.mkdir(parents=True)
    (folder / "mine.ini").write_text(ENGINE)
    return Root(str(tmp_path / "root"))


@pytest.fixture
def programs(tmp_path):
    """Programs that write down how they were called."""
    script = tmp_path / "note"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    script.chmod(0o755)
    paths = {name: str(script) for name in ("systemctl", "ip", "wg")}
    return Programs(("/usr/local/bin/nova-hpc-guest",), paths)


class Closed(packet_filter.PacketFilter):
    """A machine whose units have a filter; :func:`test_units_without_a_filter` has others."""

    def explain_open_ports(self, root, programs):
        return None


def calls(tmp_path):
    path = tmp_path / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def items_of(*clients, encrypted=False, address="127.0.0.9", memory=0):
    slot = records.GpuSlot(address, port_of_address(address), 5)
    share = records.GpuShare("sim", "mine", 2, memory, encrypted)
    return {
        records.SHARE_KEY: records.write_share(share),
        **{records.slot_key_of(client): records.write_slot(slot) for client in clients},
    }


POINTER = records.GpuClient(SHARE, "10.0.0.5", "10.0.0.7", 16412, "mine")


# -- serve -----------------------------------------------------------------------------


@pytest.fixture
def loopback(monkeypatch):
    # A slot's address is never a loopback one; the records' own tests say so.
    monkeypatch.setattr(serving, "find_own_address", lambda peer: "10.0.0.5")


def serve(root, programs, items):
    return serving.serve_once(root, programs, items, 0, "", Closed())


def test_a_slot_comes_stays_and_goes(root, programs, tmp_path, loopback):
    items = items_of(CLIENT, address="10.0.0.9", memory=8192)
    name = units.unit_name_of(CLIENT)
    assert serve(root, programs, items) == []
    assert calls(tmp_path) == ["daemon-reload", f"restart {name}"]
    text = root.text(f"{units.FOLDER}/{name}")
    for line in (
        "User=nobody",
        "IPAddressDeny=any",
        "IPAddressAllow=10.0.0.9",
        "PrivateTmp=yes",
        "KillMode=control-group",
        'Environment="LIMIT=0=8192M"',
        # Else systemd gives the engine the home of its user, who has none.
        'Environment="HOME=/tmp"',
    ):
        assert line in text.splitlines()
    assert r'Environment="HOW=\"100%%\" $HOME \\n 16420"' in text
    assert '"--bind" "10.0.0.5" "--port" "16420"' in text
    # The same again: it is started in case its engine has ended, and not disturbed.
    assert serve(root, programs, items) == []
    assert calls(tmp_path) == [f"start {name}"]
    # A later release's share: what runs stays, and goes when its slot is taken away.
    items[records.SHARE_KEY] = '{"v":2}'
    assert "has version 2" in serve(root, programs, items)[0]
    assert calls(tmp_path) == []
    del items[records.slot_key_of(CLIENT)]
    serve(root, programs, items)
    assert f"stop {name}" in calls(tmp_path)
    assert root.names(units.FOLDER) == []


def test_a_share_that_is_none_any_more_ends_all(root, programs, tmp_path, loopback):
    serve(root, programs, items_of(CLIENT, address="10.0.0.9"))
    assert serve(root, programs, {}) == []
    assert root.names(units.FOLDER) == []


def test_a_slot_that_cannot_be_ended_is_tried_again(root, programs, tmp_path, loopback):
    serve(root, programs, items_of(CLIENT, address="10.0.0.9"))
    failing = Programs(programs.own, {"systemctl": "/bin/false"})
    serve(root, failing, items_of())
    assert root.names(units.FOLDER) == [units.unit_name_of(CLIENT)]
    serve(root, programs, items_of())
    assert root.names(units.FOLDER) == []


def test_a_network_that_is_away_ends_no_slot(root, programs, tmp_path, monkeypatch):
    items = items_of(CLIENT, address="10.0.0.9")
    monkeypatch.setattr(serving, "find_own_address", lambda peer: "10.0.0.5")
    serve(root, programs, items)

    def away(peer):
        raise OSError("away")

    monkeypatch.setattr(serving, "find_own_address", away)
    assert "no way to 10.0.0.9" in serve(root, programs, items)[0]
    assert root.names(units.FOLDER) == [units.unit_name_of(CLIENT)]


def test_slices_are_given_once(root, programs, tmp_path, loopback):
    path = tmp_path / "root/etc/nova-hpc/gpu-slices"
    path.write_text("MIG-aa\n$(reboot)\n")
    items = items_of(CLIENT, address="10.0.0.9")
    items |= {
        key: records.write_slot(records.GpuSlot("10.0.0.8", port_of_address("10.0.0.8"), 6))
        for key in (records.slot_key_of(SHARE),)
    }
    problems = serve(root, programs, items)
    assert len(problems) == 1
    assert "has no slice left" in problems[0]
    text = root.text(f"{units.FOLDER}/{units.unit_name_of(CLIENT)}")
    assert units.slice_in_unit(text) == "MIG-aa"


def slots_of(*clients):
    """Slots that began one after the other, at addresses from 10.0.0.9 on."""
    slots = {}
    for number, client in enumerate(clients):
        address = f"10.0.0.{9 + number}"
        slot = records.GpuSlot(address, port_of_address(address), 5 + number)
        slots[records.slot_key_of(client)] = records.write_slot(slot)
    return slots


def share_of(slots, memory=0):
    return {records.SHARE_KEY: records.write_share(records.GpuShare("sim", "mine", slots, memory))}


def slices_of(root):
    units_of_slots = root.names(units.FOLDER)
    return [units.slice_in_unit(root.text(f"{units.FOLDER}/{name}")) for name in units_of_slots]


def of_a_later_release(text):
    return json.dumps(json.loads(text) | {"v": 2})


def test_a_slot_whose_record_cannot_be_read_keeps_its_slice(root, programs, loopback):
    root.write(serving.SLICES, b"MIG-aa\n")
    items = share_of(8) | slots_of(CLIENT, SHARE)
    assert "has no slice left" in serve(root, programs, items)[0]
    key = records.slot_key_of(CLIENT)
    items[key] = of_a_later_release(items[key])
    problems = serve(root, programs, items)
    assert [f"{SHARE}: {serving.SLICES} has no slice left" in text for text in problems] == [0, 1]
    assert slices_of(root) == ["MIG-aa"]
    # Two have it since an earlier release gave it twice: the one that is known takes another.
    unit = root.text(f"{units.FOLDER}/{units.unit_name_of(CLIENT)}").replace(CLIENT, SHARE)
    root.write(f"{units.FOLDER}/{units.unit_name_of(SHARE)}", unit.encode())
    root.write(serving.SLICES, b"MIG-aa\nMIG-bb\n")
    assert len(serve(root, programs, items)) == 1
    assert sorted(slices_of(root)) == ["MIG-aa", "MIG-bb"]


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (share_of(1), "the share has 1 slots, and all are taken"),
        (share_of(8, 6000), "6000 MiB are more than what is left of the GPU's 10000"),
    ],
)
@pytest.mark.parametrize("change", ["unreadable", "cannot be ended"])
def test_a_slot_that_stays_is_counted(root, programs, loopback, share, words, change):
    def serve_with(found, items):
        return serving.serve_once(root, found, items, 10000, "", Closed())

    items = share | slots_of(CLIENT)
    assert serve_with(programs, items) == []
    failing = programs
    if change == "unreadable":
        items = {key: of_a_later_release(text) for key, text in items.items()} | share
    else:
        items = dict(share)
        failing = Programs(programs.own, {"systemctl": "/bin/false"})
    items |= {records.slot_key_of(SHARE): slots_of(CLIENT, SHARE)[records.slot_key_of(SHARE)]}
    assert words in serve_with(failing, items)[-1]
    assert root.names(units.FOLDER) == [units.unit_name_of(CLIENT)]
    # A slot that is gone leaves its part to the next one at once.
    items = share | {records.slot_key_of(SHARE): items[records.slot_key_of(SHARE)]}
    assert serve_with(programs, items) == []
    assert root.names(units.FOLDER) == [units.unit_name_of(SHARE)]


def test_a_slice_that_is_listed_twice_is_given_once(root, programs, loopback):
    root.write(serving.SLICES, b"MIG-aa\nMIG-aa\nMIG-aa\n")
    problems = serve(root, programs, share_of(2) | slots_of(CLIENT, SHARE))
    assert problems[0].startswith(f"{serving.SLICES} lists MIG-aa more than once")
    assert "has no slice left" in problems[1]
    assert slices_of(root) == ["MIG-aa"]


def test_encrypted_slots_need_a_key(root, programs, tmp_path, loopback):
    assert "no key of WireGuard's" in " ".join(
        serve(root, programs, items_of(CLIENT, encrypted=True, address="10.0.0.9"))
    )
    key = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
    items = items_of(encrypted=True)
    slot = records.GpuSlot("10.0.0.9", 16420, 5, 0, key)
    items[records.slot_key_of(CLIENT)] = records.write_slot(slot)
    calls(tmp_path)
    assert serving.serve_once(root, programs, items, 0, "/run/key", Closed()) == []
    said = calls(tmp_path)
    assert (
        f"set hpc-gpu0 peer {key} allowed-ips 100.127.240.9/32 endpoint 10.0.0.9:51820 "
        "persistent-keepalive 20"
    ) in said
    assert "IPAddressAllow=100.127.240.9" in root.text(
        f"{units.FOLDER}/{units.unit_name_of(CLIENT)}"
    )


# -- client ----------------------------------------------------------------------------


def follow(root, programs, items):
    return attached.follow_once(root, programs, CLIENT, items, "")


def test_the_environment_comes_and_goes(root, programs, tmp_path):
    items = {records.CLIENT_KEY: records.write_client(POINTER)}
    assert follow(root, programs, items) == []
    found = attached.read_environment(root)
    assert found["WHERE"] == "10.0.0.5:16412"
    assert found["NOVA_HPC_GPU_SHARE"] == SHARE
    # A shell reads both as they are meant.
    path = root.place(attached.ENVIRONMENT)
    for text in (f". {path}; ", "; ".join(attached.format_exports(found)) + "; "):
        shown = subprocess.run(
            ["sh", "-c", text + 'printf %s "$QUOTED"'], capture_output=True, text=True, check=True
        )
        assert shown.stdout == found["QUOTED"] == "a \"b\" $c `d` \\ 'e'"
    # What cannot be read is unknown, and changes nothing.
    assert "version 2" in follow(root, programs, {records.CLIENT_KEY: '{"v":2}'})[0]
    assert attached.read_environment(root) == found
    assert follow(root, programs, {}) == []
    with pytest.raises(attached.NoShareError, match="openstack hpc gpu attach"):
        attached.read_environment(root)


@pytest.mark.parametrize(
    ("pointer", "words"),
    [
        (POINTER._replace(engine="other"), "there is no engine other"),
        (POINTER._replace(engine="lupine"), "is not part of this image"),
        (POINTER._replace(port=16416), "attach it again"),
    ],
)
def test_a_share_that_cannot_be_used_is_named(root, programs, pointer, words):
    follow(root, programs, {records.CLIENT_KEY: records.write_client(POINTER)})
    items = {records.CLIENT_KEY: records.write_client(pointer)}
    assert words in follow(root, programs, items)[0]
    with pytest.raises(attached.NoShareError):
        attached.read_environment(root)


# -- the metadata service --------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"uuid": 7}', b'{"uuid": "x", "meta": 1}'])
def test_a_broken_service_is_unknown(data):
    with pytest.raises(own_metadata.ServiceError):
        own_metadata.parse_own_metadata(data)


@contextlib.contextmanager
def metadata_server(folder):
    handler = lambda *words: http.server.SimpleHTTPRequestHandler(  # noqa: E731
        *words, directory=str(folder)
    )
    with http.server.ThreadingHTTPServer((OWN, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://{OWN}:{server.server_port}/meta_data.json"
        server.shutdown()


def test_a_follower_looks_announces_and_speaks_once(root, tmp_path, capsys):
    items = {"uuid": CLIENT, "meta": {records.CLIENT_KEY: '{"v":2}'}}
    (tmp_path / "meta_data.json").write_text(json.dumps(items))
    console = tmp_path / "console"
    console.touch()
    boot = tmp_path / "root/proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("1234abcd-1111-4222-8333-444455556666\n")
    with metadata_server(tmp_path) as url:
        words = ["gpu", "client", "--once", "--metadata-url", url, "--console", str(console)]
        assert command.main([*words, "--root", root.folder]) == 1
        options = gpu_command.GpuOptions("client", root, True, url, str(console))
        follower = gpu_command._Follower(options, Programs(("x",), {"wg": "/bin/false"}))
        for _ in range(9):
            assert not follower.look()
    assert capsys.readouterr().err.count("version 2") == 2
    text = console.read_text()
    assert text.count("gpu boot 1234abcd engine mine 1.2") == 4
    # Gone: what was known stays, and the sentence is said.
    assert not follower.look()
    assert "does not answer" in capsys.readouterr().err


def test_a_key_is_made_once_and_is_private(root, tmp_path):
    script = tmp_path / "wg"
    key = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
    script.write_text(f"#!/bin/sh\ncat >/dev/null; echo $1 >> {tmp_path}/calls; echo {key}\n")
    script.chmod(0o755)
    programs = Programs(("x",), {"wg": str(script)})
    for _ in range(2):
        path, public = tunnel.make_own_key(root, programs)
        assert public == key
    assert calls(tmp_path) == ["genkey", "pubkey", "pubkey"]
    assert Path(path).stat().st_mode & 0o777 == 0o600
    with pytest.raises(tunnel.TunnelError, match="no tunnel is possible"):
        tunnel.make_own_key(root, Programs(("x",), {"wg": "/no/such"}))


# -- the lifeline and the job ----------------------------------------------------------


def free_port():
    with socket.socket() as one:
        one.bind((OWN, 0))
        return int(one.getsockname()[1]) & ~3


@pytest.fixture
def slot(tmp_path):
    """A slot whose engine listens on its port and does nothing."""
    port = free_port()
    engine = (
        "import socket,time\n"
        f"s=socket.socket(); s.setsockopt(1,2,1); s.bind(('{OWN}',{port})); s.listen()\n"
        "time.sleep(600)"
    )
    words = ("--client", CLIENT, "--peer", OWN, "--bind", OWN, "--port", str(port), "--idle", "1")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nova_hpc_guest.command", "gpu", "slot", *words),
            *("--engine", "mine", "--release", "1.2", "--", sys.executable, "-c", engine),
        ]
    )
    end = time.monotonic() + 60
    while not lifeline.is_listening(port + 3):
        assert time.monotonic() < end
        time.sleep(0.05)
    yield process, port
    process.kill()
    process.wait()


def engine_of(process):
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    return int(Path(children).read_text().split()[0])


def attach_to(root, port):
    found = attached.build_environment(root, CLIENT, POINTER)
    found |= {"NOVA_HPC_GPU_ADDRESS": OWN, "NOVA_HPC_GPU_PORT": str(port)}
    root.write(attached.ENVIRONMENT, attached.format_environment(found).encode())


def start_job(root, *words):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "nova_hpc_guest.command", "gpu", "run"),
            *("--root", root.folder, "--", *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_job_has_the_environment_and_its_own_status(root, slot):
    attach_to(root, slot[1])
    job = start_job(root, "sh", "-c", 'echo "$WHERE"; exit 7')
    assert job.communicate() == ("10.0.0.5:16412\n", "")
    assert job.returncode == 7
    job = start_job(root, "/no/such")
    assert "No such file" in job.communicate()[1]
    assert job.returncode == 127
    assert command.main(["gpu", "show", "--root", root.folder]) == 0


@pytest.mark.parametrize("end", ["engine", "told", "killed"])
def test_a_job_ends_with_its_share(root, slot, end):
    process, port = slot
    attach_to(root, port)
    # It does not mind being told to end, and has a child.
    job = start_job(root, "sh", "-c", "trap '' TERM; echo on; sleep 600 & wait; sleep 600")
    assert job.stdout.readline() == "on\n"
    if end == "engine":
        os.kill(engine_of(process), signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGTERM if end == "told" else signal.SIGKILL)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 75
    assert f"share {SHARE} is gone or was detached" in said


def test_a_signal_reaches_the_job(root, slot):
    attach_to(root, slot[1])
    job = start_job(root, "sh", "-c", "trap 'exit 9' TERM; echo on; while :; do sleep 0.1; done")
    assert job.stdout.readline() == "on\n"
    job.terminate()
    job.communicate(timeout=60)
    assert job.returncode == 9


def test_a_signal_while_the_job_begins_reaches_it(monkeypatch):
    """Else the command would be ended, and the job go on alone."""
    before = {number: signal.getsignal(number) for number in gpu_job._PASSED_ON}
    monkeypatch.setattr(gpu_job, "_give_terminal", lambda *_: signal.raise_signal(signal.SIGTERM))
    own, other = socket.socketpair()
    with own, other:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            assert gpu_job.run_job(["sleep", "5"], {}, own, SHARE) == 128 + signal.SIGTERM
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"NOVA_HPC_GPU_RELEASE": "1.3"}, "start both from images with one release"),
        ({"NOVA_HPC_GPU_ENGINE": "other"}, "serves the engine mine, and not other"),
        ({"NOVA_HPC_GPU_CLIENT": SHARE}, f"is that of server {CLIENT}"),
        ({"NOVA_HPC_GPU_PORT": "1"}, "does not answer"),
    ],
)
def test_a_slot_that_is_not_this_clients_is_refused(root, slot, change, words):
    attach_to(root, slot[1])
    found = attached.read_environment(root) | change
    root.write(attached.ENVIRONMENT, attached.format_environment(found).encode())
    job = start_job(root, "echo", "ran")
    out, said = job.communicate(timeout=60)
    assert (job.returncode, out) == (2, "")
    assert words in said


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400\r\n", b"nova-hpc-gpu 1\n", b"\xff" * 300])
def test_something_else_at_the_port_is_refused(data):
    with socket.socket() as door:
        door.bind((OWN, 0))
        door.listen()

        def answer():
            one, _ = door.accept()
            with one:
                one.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        port = door.getsockname()[1] - 3
        with pytest.raises(lifeline.LifelineError, match="no slot of a share"):
            lifeline.open_lifeline(OWN, port)
        thread.join()


def test_an_engine_that_ends_at_once_is_no_slot():
    hello = lifeline.Hello(CLIENT, "mine", "1.2")
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert (
            lifeline.run_slot(hello, lifeline.SlotPlace(OWN, OWN, free_port()), ["/bin/false"]) == 1
        )
    finally:
        for number, one in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, one)


def await_true(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_job_ends_whose_command_is_killed(root, slot):
    """Without its lifeline it would hang once the share is gone; its children as well."""
    attach_to(root, slot[1])
    job = start_job(root, "sh", "-c", "trap '' TERM; sleep 600 & echo $$ $!; wait; sleep 600")
    pids = [int(word) for word in job.stdout.readline().split()]
    assert all(map(is_running, pids))
    job.kill()
    job.communicate(timeout=60)
    await_true(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "LD_PRELOAD"])
@pytest.mark.parametrize("own", ["", "/mine"])
def test_lists_of_the_user_stay(root, slot, monkeypatch, variable, own):
    attach_to(root, slot[1])
    found = attached.read_environment(root) | {variable: "/engine"}
    root.write(attached.ENVIRONMENT, attached.format_environment(found).encode())
    joined = attached.join_environments({variable: own}, found)
    assert joined[variable] == f"/engine{':' if own else ''}{own}"
    # A shell has the same.
    exports = "; ".join(attached.format_exports(attached.read_environment(root)))
    shown = subprocess.run(
        ["sh", "-uc", f'{exports}; printf %s "${variable}"'],
        env={"PATH": "/usr/bin:/bin"} | ({variable: own} if own else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == joined[variable]


def test_an_idle_engine_gives_way_to_a_fresh_one(root, slot):
    """What it has kept of its jobs goes with it. A client without a lifeline counts as a job."""
    process, port = slot
    attach_to(root, port)
    first = engine_of(process)
    assert start_job(root, "true").wait(60) == 0
    await_true(lambda: not is_running(first))
    await_true(lambda: lifeline.is_listening(port))
    second = engine_of(process)
    line, _ = lifeline.open_lifeline(OWN, port)
    line.close()
    with socket.create_connection((OWN, port)):
        line, _ = lifeline.open_lifeline(OWN, port)
        line.close()
        time.sleep(3)
        assert engine_of(process) == second
    await_true(lambda: not is_running(second))
    await_true(lambda: lifeline.is_listening(port))
    assert process.poll() is None


def test_show_says_that_a_share_does_not_answer(root, capsys):
    attach_to(root, free_port())
    assert command.main(["gpu", "show", "--root", root.folder]) == 1
    said = capsys.readouterr().out
    assert "the share does not answer" in said
    assert "attach it again" not in said


def test_show_says_that_an_encrypted_share_has_another_key(root, capsys, monkeypatch):
    attach_to(root, free_port())
    monkeypatch.setattr(gpu_command.port_rule, "SHARE_INSIDE", OWN)
    assert command.main(["gpu", "show", "--root", root.folder]) == 1
    assert "attach it again: openstack hpc gpu attach SHARE SERVER --encrypt" in (
        capsys.readouterr().out
    )


# -- limits and filters ----------------------------------------------------------------

MPS_ENGINE = ENGINE.replace("LIMIT =", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT =")


def write_engine(tmp_path, text):
    (tmp_path / "root/etc/nova-hpc/gpu-engines/mine.ini").write_text(text)


def test_a_limit_needs_mps(root, programs, tmp_path, loopback):
    write_engine(tmp_path, MPS_ENGINE)
    items = items_of(CLIENT, address="10.0.0.9", memory=8192)
    assert "needs NVIDIA's MPS, and /usr/bin/nvidia-cuda-mps-control is missing" in " ".join(
        serve(root, programs, items)
    )
    assert root.names(units.FOLDER) == []
    # Without a limit it is served, and MPS is not started.
    assert serve(root, programs, items_of(CLIENT, address="10.0.0.9")) == []
    assert root.names(units.FOLDER) == [units.unit_name_of(CLIENT)]


def test_a_limit_finds_mps(root, programs, tmp_path, loopback):
    write_engine(tmp_path, MPS_ENGINE)
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/nvidia-cuda-mps-control").touch()
    calls(tmp_path)
    assert serve(root, programs, items_of(CLIENT, address="10.0.0.9", memory=8192)) == []
    name = units.unit_name_of(CLIENT)
    assert [call for call in calls(tmp_path) if "start" in call] == [
        f"start {mps.UNIT}",
        f"restart {name}",
    ]
    slot, unit = (root.text(f"{units.FOLDER}/{one}").splitlines() for one in (name, mps.UNIT))
    assert "User=nobody" in unit
    assert f"Environment=CUDA_MPS_PIPE_DIRECTORY={mps.PIPES}" in unit
    assert f'Environment="CUDA_MPS_PIPE_DIRECTORY={mps.PIPES}"' in slot
    assert 'Environment="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M"' in slot
    assert {f"BindsTo={mps.UNIT}", f"After={mps.UNIT}", f"ReadWritePaths={mps.PIPES}"} <= set(slot)
    # Each slot's /tmp is its own.
    assert not mps.PIPES.startswith(("/tmp", "/var/tmp"))


def test_an_engine_that_limits_nothing_is_named(root, programs, tmp_path, loopback):
    write_engine(tmp_path, ENGINE.partition("[memory")[0])
    (problem,) = serve(root, programs, items_of(CLIENT, address="10.0.0.9", memory=8192))
    assert "the engine mine has no [memory environment]" in problem


def test_a_slice_is_the_limit_of_its_slot(root, programs, tmp_path, loopback):
    write_engine(tmp_path, MPS_ENGINE)
    (tmp_path / "root/etc/nova-hpc/gpu-slices").write_text("MIG-aa\n")
    (problem,) = serve(root, programs, items_of(CLIENT, address="10.0.0.9", memory=8192))
    assert "its MIG slice limits its memory, and not the 8192 MiB" in problem
    text = root.text(f"{units.FOLDER}/{units.unit_name_of(CLIENT)}")
    assert "CUDA_MPS" not in text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (packet_filter.CLOSED, None),
        (packet_filter.OPEN, "IPAddressDeny= has no effect here, so engines' ports are open"),
        (0, "the effect of IPAddressDeny= is unknown: nova-hpc-gpu-filter.service ended with"),
        (None, "the effect of IPAddressDeny= is unknown: systemctl daemon-reload"),
    ],
)
def test_units_without_a_filter(root, tmp_path, loopback, status, words):
    """A systemd without a BPF firewall starts the unit all the same."""
    script = tmp_path / "systemctl"
    answer = "exit 1" if status is None else f'[ "$1" != show ] || echo {status}'
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{answer}\n')
    script.chmod(0o755)
    programs = Programs(("/usr/local/bin/nova-hpc-guest",), {"systemctl": str(script)})
    closed = packet_filter.PacketFilter()
    items = items_of(CLIENT, address="10.0.0.9")
    told = [serving.serve_once(root, programs, items, 0, "", closed) for _ in range(2)]
    if words is None:
        assert told == [[], []]
        # It is asked once.
        assert [call for call in calls(tmp_path) if call.startswith("show")] == [
            "show --property=ExecMainStatus --value nova-hpc-gpu-filter.service"
        ]
        assert root.names(units.FOLDER) == [units.unit_name_of(CLIENT)]
    else:
        assert all(len(lines) == 1 and words in lines[0] for lines in told)
        assert root.names(units.FOLDER) == []


def test_what_a_filtered_unit_would_not_do():
    assert packet_filter.try_to_send() == packet_filter.OPEN
