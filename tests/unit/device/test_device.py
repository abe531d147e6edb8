# SPDX-License-Identifier: Apache-2.0
"""The commands of ``nova-hpc device``, as an operator types them."""

import json
import sys

import attrs
import pytest

from nova_hpc.tenancy import forbidden
from nova_hpc.tenancy.forbidden import ForbiddenDevices
from nova_hpc.tenancy.ledger import LedgerFile, copy_of
from nova_hpc.tenancy.stage import device_stage
from nova_hpc.tenancy.step import NodeView
from nova_hpc.topology import sysfs
from nova_hpc.wire.reservation import ReservedProvider
from nova_hpc_tools.device import bulk_commands, list_command
from nova_hpc_tools.device import command as device
from nova_hpc_tools.main import NovaHpc
from tests.unit.tenancy.hygiene_node import GPU, OTHER, PF, make, settled
from tests.unit.tenancy.test_forbidden import MANAGER

SERVER = "11111111-1111-1111-1111-111111111111"
COMMANDS = {
    "list": list_command.ListDevices,
    "show": device.ShowDevice,
    "check": device.CheckDevice,
    "quarantine": device.QuarantineDevice,
    "accept": bulk_commands.AcceptDevices,
    "maintenance": bulk_commands.MaintenanceWindow,
    "release": bulk_commands.ReleaseDevices,
}


@pytest.fixture
def node(tmp_path):
    node = make(tmp_path)
    (tmp_path / "nova.conf").write_text(
        f"[DEFAULT]\nstate_path = {tmp_path}\n[hpc]\nsysfs_root = {tmp_path}\n"
        f"ledger_file = {node.state}\nreset_timeout = 20\n"
    )
    return settled(node)


@pytest.fixture
def ask(node, capsys):
    def run(*words):
        app = NovaHpc()
        for name, command in COMMANDS.items():
            app.command_manager.add_command(f"device {name}", command)
        status = app.run(["device", *words, "--config-file", str(node.root / "nova.conf")])
        out, err = capsys.readouterr()
        # Each says on standard error which file it has read.
        return status, out, err.replace(f"Ledger: {node.state}\n", "")

    return run


def test_each_command_says_which_ledger_it_reads(node, capsys):
    for words in (["list"], ["show", GPU], ["check", GPU], ["maintenance"]):
        app = NovaHpc()
        app.command_manager.add_command(f"device {words[0]}", COMMANDS[words[0]])
        app.run(["device", *words, "--config-file", str(node.root / "nova.conf")])
        assert f"Ledger: {node.state}\n" in capsys.readouterr().err


def listed(ask):
    status, out, _ = ask("list", "--format", "json")
    assert status == 0
    return {row["Address"]: row for row in json.loads(out)}


def test_how_far_the_stage_of_a_device_is(node, ask):
    def put(entry):
        node.file.change(
            lambda now: now.put({GPU: attrs.evolve(now.device(GPU), stage=entry.dumps())})
        )
        _, out, _ = ask("show", GPU, "--format", "json")
        row = listed(ask)[GPU]
        return row["State"], row["Reason"], row["Cleaned in s"], json.loads(out)["Stage"]

    due = device_stage.make_stage_due(None, SERVER, 1.0)
    assert put(due) == ("cleaning", "it waits to be cleaned between two servers", "", "due")
    begun = device_stage.begin_stage(due, "vm-1", 2.0)
    state, why, _, text = put(begun)
    assert (state, text) == ("cleaning", "begun by vm-1")
    assert "in service VM vm-1, for " in why
    assert why.endswith(" of at most 300 s")
    passed = device_stage.pass_stage(begun, 41.23, 3.0)
    assert put(passed) == ("free", "", "41.2", "passed in 41.2 s")
    proof = "sanitize, crypto erase; 128 blocks read back"
    erased = device_stage.pass_stage(begun, 41.23, 3.0, proof)
    assert put(erased)[3] == f"passed in 41.2 s: {proof}"
    again = device_stage.make_stage_due(passed, SERVER, 4.0)
    assert put(again)[2:] == ("41.2", "due, took 41.2 s the last time")
    # A server that has it has it, whatever is due afterwards.
    node.step().give(SERVER, node.candidates(GPU))
    assert listed(ask)[GPU]["State"] == "in use"


def test_the_life_of_a_quarantine(node, ask):
    assert {row["State"] for row in listed(ask).values()} == {"free"}
    assert ask("check", GPU) == (0, f"{GPU}: as in its baseline\n", "")
    node.step().give(SERVER, node.candidates(GPU))
    assert (listed(ask)[GPU]["State"], listed(ask)[GPU]["Server"]) == ("in use", SERVER)
    # Its reset fails when its server is gone.
    (node.devices / GPU / "reset").unlink()
    node.step().take_back(SERVER, {})
    row = listed(ask)[GPU]
    assert row.pop("Since")
    assert row == {
        "Address": GPU,
        "Role": "gpu",
        "State": "quarantined",
        "Reason": "the kernel knows no way to reset it",
        "Server": "",
        "Cleaned in s": "",
        "Planned": "",
    }
    status, out, err = ask("release", GPU)
    assert (status, out) == (1, "")
    assert err == f"{GPU}: stays in quarantine: the kernel knows no way to reset it\n"
    assert listed(ask)[GPU]["State"] == "quarantined"
    node.write(GPU, "reset", "")
    status, out, err = ask("release", GPU.upper())
    assert (status, err) == (0, "")
    assert "back in service" in out
    assert node.resets(GPU)
    assert listed(ask)[GPU]["State"] == "free"
    status, _, err = ask("release", GPU)
    assert status == 2
    assert "neither suspect nor in quarantine" in err


def test_a_fault_of_a_device_in_use(node, ask):
    body = {
        "server": SERVER,
        "faults": {
            "link": {"since": 1767225600.0, "reported": True},
            "errors": {"since": 1767225660.0},
        },
    }

    def edit(ledger):
        entry = attrs.evolve(ledger.device(GPU), server=SERVER, watch=body)
        return ledger.put({GPU: entry, OTHER: attrs.evolve(ledger.device(OTHER), watch={"": ""})})

    LedgerFile(node.state).change(edit)
    text = (
        "fault errors since 2026-01-01T00:01:00Z, not reported to its owner yet; "
        "fault link since 2026-01-01T00:00:00Z"
    )
    rows = listed(ask)
    assert (rows[GPU]["State"], rows[GPU]["Reason"]) == ("in use", text)
    assert rows[GPU]["Server"] == SERVER
    assert rows[OTHER]["State"] == "free"
    shown = json.loads(ask("show", GPU, "-f", "json")[1])
    assert (shown["Faults"], shown["Server"]) == (text, SERVER)
    # nova-compute writes no mark if it cleans no devices.
    LedgerFile(node.state).change(
        lambda ledger: ledger.put({GPU: attrs.evolve(ledger.device(GPU), server=None)})
    )
    assert listed(ask)[GPU]["State"] == "in use"


def test_a_report_of_an_owner(node, ask):
    body = {"server": SERVER, "words": {"slow": 1767225600.0}}

    def put(**values):
        LedgerFile(node.state).change(
            lambda ledger: ledger.put({GPU: attrs.evolve(ledger.device(GPU), **values)})
        )

    text = f"reported by the owner of server {SERVER}: slow since 2026-01-01T00:00:00Z"
    put(server=SERVER, report=body)
    assert (listed(ask)[GPU]["State"], listed(ask)[GPU]["Reason"]) == ("in use", text)
    assert json.loads(ask("show", GPU, "-f", "json")[1])["Reported"] == text
    # While it is checked after the server's end, too.
    put(server=None, stage={"phase": "due", "server": SERVER})
    assert listed(ask)[GPU]["Reason"] == f"it waits to be cleaned between two servers; {text}"
    # The next server has its own owner; show keeps what the last one has said.
    judged = {**body, "judged": 1767225660.0}
    put(server="another", report=judged, stage=None)
    assert (listed(ask)[GPU]["State"], listed(ask)[GPU]["Reason"]) == ("in use", "")
    shown = json.loads(ask("show", GPU, "-f", "json")[1])
    assert shown["Reported"] == f"{text}; checked 2026-01-01T00:01:00Z"
    put(server=None, report={"words": 7})
    assert json.loads(ask("show", GPU, "-f", "json")[1])["Reported"] == ""


def test_show(node, ask):
    node.config(GPU, device=0x2331)
    status, out, _ = ask("show", GPU, "--format", "json")
    shown = json.loads(out)
    assert status == 0
    assert shown["Reset methods"] == "flr bus"
    assert json.loads(shown["Baseline"])["answers"]["product_id"] == "2330"
    assert shown["Differences"] == "its product_id is 2331 by its own answer, and was 2330"


def test_the_table_has_the_baseline_in_lines(node, ask):
    status, out, _ = ask("show", GPU)
    assert status == 0
    assert "| answers: class_code" in out
    assert "| identity: product_id 2330" in out
    assert max(map(len, out.splitlines())) < 150


def test_a_replaced_card(node, ask):
    node.config(GPU, device=0x2331)
    status, out, _ = ask("check", GPU)
    assert status == 1
    assert "product_id is 2331" in out
    assert ask("check", GPU, "--accept")[0] == 0
    assert ask("check", GPU)[0] == 0


def test_an_operator_takes_a_device_away(node, ask):
    assert ask("quarantine", GPU, "--reason", "ticket 4711:\n  loses its NVLink")[0] == 0
    assert listed(ask)[GPU]["Reason"] == "ticket 4711: loses its NVLink"
    assert "in quarantine" in node.step().give(SERVER, node.candidates(GPU))[GPU]


def test_a_device_of_a_server_is_left_alone(node, ask):
    node.step().give(SERVER, node.candidates(GPU))
    assert ask("quarantine", GPU, "--reason", "x")[0] == 0
    for words in (["release", GPU], ["check", GPU, "--accept"]):
        status, _, err = ask(*words)
        assert status == 2
        assert SERVER in err
    assert not node.resets(GPU)


def test_a_device_that_is_gone_from_its_guest(node, ask):
    """nova-compute has compared, and has left in the ledger what it has found."""
    text = f"is gone from the guest of server {SERVER}: hard reboot of server {SERVER}"
    file = LedgerFile(node.state)
    for address in (GPU, OTHER):  # one that was given by the ledger, too, and one that was not
        file.change(
            lambda now, each=address: now.put({each: attrs.evolve(now.device(each), differs=text)})
        )
    node.step().give(SERVER, node.candidates(GPU))
    rows = listed(ask)
    assert {(row["State"], row["Reason"]) for row in rows.values()} == {("in use", text)}
    file.change(lambda now: now.put({OTHER: attrs.evolve(now.device(OTHER), differs="")}))
    assert listed(ask)[OTHER]["State"] == "free"


def test_a_quarantined_device_of_a_server_is_not_only_in_use(node, ask):
    node.step().give(SERVER, node.candidates(GPU))
    assert ask("quarantine", GPU, "--reason", "loses its NVLink")[0] == 0
    row = listed(ask)[GPU]
    assert (row["State"], row["Server"]) == ("quarantined", SERVER)
    assert row["Reason"] == "loses its NVLink"


def test_a_device_that_is_ill_stays_in_quarantine(node, ask):
    """Its baseline says nothing of where the node has it."""
    (node.devices / GPU / "iommu_group").unlink()
    (node.root / "sys/kernel/iommu_groups/1/devices" / GPU).unlink()
    status, out, _ = ask("check", GPU)
    assert (status, out.startswith(f"{GPU}: in no IOMMU group: ")) == (1, True)
    assert ask("quarantine", GPU, "--reason", "x")[0] == 0
    status, _, err = ask("release", GPU)
    assert status == 1
    assert err.startswith(f"{GPU}: stays in quarantine: in no IOMMU group: ")
    assert not node.resets(GPU)
    assert listed(ask)[GPU]["State"] == "quarantined"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["show", "gpu3"], "not a PCI address"),
        (["show", "0000:41:00.0/../x"], "not a PCI address"),
        (["check", "0000:99:00.0"], "no such device"),
        (["quarantine", "0000:99:00.0", "--reason", "x"], "no such device"),
        (["quarantine", GPU, "--reason", " "], "give a reason"),
    ],
)
def test_bad_input(ask, words, text):
    status, _, err = ask(*words)
    assert status == 2
    assert text in err
    assert "Traceback" not in err


def test_a_broken_file(node, ask):
    node.file.quarantine({GPU: "x"})
    node.state.write_text("{")
    status, _, err = ask("list")
    assert status == 0
    assert err.count("its copy is used") == 1
    (node.root / ".ledger.json.copy").unlink()
    assert {row["State"] for row in listed(ask).values()} == {"quarantined"}
    status, _, err = ask("quarantine", OTHER, "--reason", "x")
    assert status == 2
    assert "repair or remove it first" in err
    (node.root / "nova.conf").write_text("[hpc]\nreset_timeout = soon\n")
    status, _, err = ask("list")
    assert status == 2
    assert "configuration cannot be read" in err


LATER = json.dumps({"schema": "nova-hpc/ledger", "version": 99})
ALL = ["--all", "--yes"]


@pytest.mark.parametrize("text", ["{broken", LATER])
@pytest.mark.parametrize(
    "words",
    [
        ["list", "--absent"],
        ["check", GPU],
        ["accept", *ALL, "--reason", "x"],
        ["release", *ALL],
        ["maintenance"],
    ],
)
def test_a_lost_ledger_is_no_all_clear(node, ask, words, text):
    node.state.write_text(text)
    copy_of(node.state).unlink()
    status, out, err = ask(*words)
    assert (status, out) == (2, "")
    assert f"the ledger {node.state} cannot be used" in err
    assert "repair or remove it first" in err


def test_what_can_be_seen_is_shown_without_the_ledger(node, ask):
    node.state.write_text("{broken")
    copy_of(node.state).unlink()
    status, out, err = ask("show", GPU, "-f", "json")
    problem = f"the ledger {node.state} cannot be used"
    assert (status, json.loads(out)["State"]) == (0, "quarantined")
    assert json.loads(out)["Differences"].startswith(problem)
    assert err.startswith(f"Problem: {problem}")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"absent": {"serial:1": 7}}, ["list", "--absent"]),
        ({"absent": [7]}, ["list", "--absent"]),
        ({"maintenance": "soon"}, ["maintenance"]),
        ({"devices": {"gpu3": {"state": "quarantined"}}}, ["release", *ALL]),
    ],
)
def test_a_damaged_part_of_the_ledger_is_no_all_clear(node, ask, part, words):
    body = json.loads(node.state.read_text())
    part = {**part, "devices": body["devices"] | part.get("devices", {})}
    node.state.write_text(json.dumps(body | part))
    status, out, err = ask(*words)
    assert (status, out) == (2, "")
    assert err.count("Problem: ") == 1
    assert "repair or remove the ledger first" in err
    assert ask("list")[0] == 0


def hide_config(node):
    (node.devices / GPU / "config").unlink()


def hide_all_but_the_header(node):
    """As the kernel does from users other than root."""
    path = node.devices / GPU / "config"
    path.write_bytes(path.read_bytes()[:64])


def forget_baseline(node):
    new = {GPU: attrs.evolve(node.ledger.device(GPU), baseline=None)}
    node.file.change(lambda ledger: ledger.put(new))


@pytest.mark.parametrize("hide", [hide_config, hide_all_but_the_header, forget_baseline])
def test_a_device_that_cannot_be_compared(node, ask, hide):
    hide(node)
    forgotten = hide is forget_baseline
    text = "it has no baseline yet" if forgotten else "its configuration space cannot be read"
    status, out, err = ask("check", GPU)
    assert (status, out) == (2, "")
    assert f"{GPU}: not compared: {text}" in err
    shown = json.loads(ask("show", GPU, "-f", "json")[1])
    assert shown["Differences"].startswith(f"not compared: {text}")
    status, out, err = ask("accept", *ALL, "--reason", "x")
    assert (status, out) == (1, "no other device differs from its baseline\n")
    assert err.startswith(f"{GPU}: not compared: {text}")
    status, _, err = ask("accept", GPU, "--reason", "x")
    assert status == 2
    assert f"not compared: {text}" in err
    if not forgotten:
        assert ask("check", GPU, "--accept")[0] == 2
        assert node.ledger.device(GPU).baseline["capabilities"]


def test_a_device_of_a_server_is_not_compared(node, ask):
    node.step().give(SERVER, node.candidates(GPU))
    node.config(GPU, device=0x2331)
    status, out, err = ask("check", GPU)
    assert (status, out) == (2, "")
    assert f"{GPU}: not compared: server {SERVER} has it" in err
    assert SERVER in json.loads(ask("show", GPU, "-f", "json")[1])["Differences"]
    status, out, _ = ask("accept", *ALL, "--reason", "x")
    assert status == 0
    assert out.splitlines() == [
        "not compared before they are cleaned: 1 devices of servers",
        "no other device differs from its baseline",
    ]
    # A damaged baseline is none.
    damaged = {OTHER: attrs.evolve(node.ledger.device(OTHER), baseline={"": ""})}
    node.file.change(lambda ledger: ledger.put(damaged))
    status, out, err = ask("check", OTHER)
    assert (status, out) == (2, "")
    assert f"{OTHER}: not compared: an unknown server has it" in err


def test_others_of_the_node_may_differ(node, ask):
    node.file.quarantine({GPU: "x"})
    node.config(OTHER, device=0x2331)
    for words in (["release"], ["accept", "--reason", "x"]):
        status, out, _ = ask(*words, "--model", "10de:1234", "--yes")
        assert status == 0
        assert out.startswith("no such device ")


def test_an_adapter_that_manages_switches(node, ask):
    node.add(PF)
    for name, text in {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700"}.items():
        node.write(PF, name, text)
    node.config(PF, vendor=0x15B3, device=0x1021)
    node.step().sweep(node.candidates(GPU, OTHER, PF))
    step = ForbiddenDevices(
        root=node.root,
        read=lambda address: MANAGER,
        cache=forbidden.answers_beside(node.state),
    )
    view = NodeView(sysfs.read_sysfs_node(node.root), {PF: "pf"})
    # nova-compute has not run since the boot.
    row = listed(ask)[PF]
    assert row["State"] == "withheld"
    assert row["Reason"].endswith("nova-compute has not read its VPD since the boot")
    step.begin(view)
    row = listed(ask)[PF]
    assert row["State"] == "withheld"
    assert row["Reason"].startswith("NVSwitches are managed by it")
    assert ask("check", PF)[0] == 1
    attrs.evolve(step, read=lambda address: None, cache=node.root / "other").begin(view)
    (node.root / "other").rename(step.cache)
    assert listed(ask)[PF]["State"] == "free"


def quarantined(node, ask):
    assert ask("quarantine", GPU, "--reason", "burnt")[0] == 0


@pytest.mark.parametrize("words", [("release", GPU), ("check", GPU, "--accept")])
def test_a_device_that_somebody_has_is_not_touched(node, ask, libvirt, monkeypatch, words):
    quarantined(node, ask)
    before = node.state.read_text()
    with node.held(GPU):
        status, _, err = ask(*words)
        assert (status, node.resets(GPU)) == (2, False)
        assert "/dev/vfio/1" in err
    libvirt.guests = [libvirt.Guest(GPU)]
    status, _, err = ask(*words)
    assert (status, node.resets(GPU)) == (2, False)
    assert "guest domain by-hand (running) has it" in err
    libvirt.guests = None
    status, _, err = ask(*words)
    assert (status, node.resets(GPU)) == (2, False)
    assert "libvirt does not say" in err
    assert "no socket" in err
    monkeypatch.setitem(sys.modules, "libvirt", None)
    status, _, err = ask(*words)
    assert (status, node.resets(GPU)) == (2, False)
    assert "libvirt-python is not installed here" in err
    assert node.state.read_text() == before


def test_the_libvirt_of_nova_compute_is_asked(node, ask, libvirt):
    quarantined(node, ask)
    assert ask("release", GPU)[0] == 0
    with (node.root / "nova.conf").open("a") as file:
        file.write("[libvirt]\nconnection_uri = qemu+unix:///system\n")
    quarantined(node, ask)
    assert ask("release", GPU)[0] == 0
    assert libvirt.asked == ["qemu:///system", "qemu+unix:///system"]
    assert node.resets(GPU)


def test_what_an_operator_has_reserved(node, ask):
    def reserve(ledger, operators):
        told = ReservedProvider(
            "5f0d2f5a-8a58-4f0e-8a51-0c1f7f3f1d11", "CUSTOM_GPU", 1, 0, operators
        )
        return attrs.evolve(ledger, providers={GPU: told})

    node.file.change(lambda ledger: reserve(ledger, 1))
    row = listed(ask)[GPU]
    assert (row["State"], row["Reason"]) == ("withheld", "reserved in Placement by an operator")
    assert listed(ask)[OTHER]["State"] == "free"
    node.file.change(lambda ledger: reserve(ledger, 0))
    assert listed(ask)[GPU]["State"] == "free"


@pytest.mark.parametrize("words", [("release", GPU), ("check", GPU, "--accept")])
def test_without_the_ledger_nothing_is_touched_before_nova_compute_was_there(node, ask, words):
    """Whoever had the devices, the file that knew it is gone."""
    node.step().give(SERVER, node.candidates(GPU))
    node.state.unlink()
    copy_of(node.state).unlink()
    quarantined(node, ask)
    status, _, err = ask(*words)
    assert (status, node.resets(GPU)) == (2, False)
    assert f"the ledger {node.state} is new" in err
    assert "start nova-compute of this node" in err
    # It has, and Nova knows of a server.
    node.step().sweep(node.candidates(GPU, OTHER), lambda: frozenset({GPU}))
    status, _, err = ask(*words)
    assert (status, node.resets(GPU)) == (2, False)
    # The server ends; an update finds it free, and leaves what is quarantined to the operator.
    node.step().sweep(node.candidates(GPU, OTHER), frozenset)
    assert ask("release", GPU)[0] == 0
    assert node.resets(GPU)


def test_a_machine_that_is_not_set_up_is_said_if_nothing_is_listed(node, ask):
    assert "not set up" not in "".join(ask("list")[1:])  # its ledger has devices
    empty = node.root / "new"
    empty.mkdir()
    (node.root / "nova.conf").write_text(
        f"[DEFAULT]\nstate_path = {empty}\n[hpc]\nledger_file = {empty / 'ledger'}\n"
        f"sysfs_root = {node.root}\n"
    )
    commands = ["list", "list --absent", "list -f json", f"show {GPU}", f"check {GPU}"]
    commands += ["release --all", "accept --all --reason x", "maintenance"]
    for words in commands:
        status, out, err = ask(*words.split())
        assert (status, out) == (2, ""), words
        assert f"no ledger at {empty}/ledger" in err
    # It can be announced, and a device withheld, before nova-compute has run.
    assert ask("quarantine", GPU, "--reason", "x")[0] == 0
    assert ask("list")[0] == 0


def test_a_device_that_cannot_be_read_is_not_none(node, ask):
    node.file.change(lambda ledger: attrs.evolve(ledger, devices={}))
    with (node.root / "nova.conf").open("a") as file:
        file.write('[pci]\ndevice_spec = {"vendor_id": "10de"}\n')
    for address in (GPU, OTHER):
        (node.devices / address).rename(node.root / address)
    assert ask("list")[1] == "This node offers no device.\n"
    (node.devices / "gpu3").mkdir()
    out = ask("list")[1]
    assert out.endswith("/gpu3: not a PCI address, left out\n")
