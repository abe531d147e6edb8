# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc doctor``: faults made for real, found, and cured by their cures."""

import json
import shutil

import pytest

from nova_hpc_tools.doctor import examination, facts_quiet, facts_service
from nova_hpc_tools.doctor.command import Doctor
from nova_hpc_tools.main import main
from nova_hpc_tools.site import findings, settings
from nova_hpc_tools.site.layout_cures import render_cure
from tests.unit.doctor import doctor_changes, doctor_page
from tests.unit.doctor.cure_words import faults_of_cure
from tests.unit.doctor.doctor_faults import CLOUD, FAULTS
from tests.unit.doctor.doctor_place import Place
from tests.unit.node_files import GPU, VF

PARTS = ("node", "controller", "placement")
IS_HERE = facts_service.is_this_machine


@pytest.fixture
def place(at_home, machine, monkeypatch, tmp_path, libvirt):
    """A healthy node that is a controller, too."""
    folder = at_home.home.parent / ".placement" / "placement.conf.d"
    folder.mkdir(parents=True)
    (folder.parent / "placement.conf").touch()
    found = Place(
        machine, at_home.folder, folder, at_home.home / "nova.conf", at_home, libvirt=libvirt
    )
    found.healthy()
    # Its files lie below a directory, and its Nova and libvirt answer as this machine's.
    found.installed(monkeypatch, tmp_path / "elsewhere")
    monkeypatch.setattr(facts_service, "is_this_machine", lambda root: True)
    monkeypatch.setattr(facts_quiet, "sleep", found.pass_time)
    return found


@pytest.fixture
def doctor(place, capsys):
    def run(*words, parts=PARTS):
        command = Doctor(None, None)
        parser = command.get_parser("nova-hpc doctor")
        mine = ["--root", place.root, "--declaration", place.folder / "node.yaml"]
        mine += [word for part in parts for word in ("--part", part)]
        status = command.run(parser.parse_args(list(map(str, [*mine, *words]))))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    def checks():
        status, out, err = run("-f", "json")
        assert err == ""
        found = json.loads(out)["findings"]
        worst = {"error": 3, "warning": 1, "note": 0}
        assert status == max((worst[each["severity"]] for each in found), default=0)
        return {each["check"]: each for each in found}

    def look():
        """What the command finds, before it writes it."""
        args = Doctor(None, None).get_parser("").parse_args(["--root", str(place.root)])
        args.declaration = place.folder / "node.yaml"
        args.part = list(PARTS)
        return examination.examine_this_machine(args).found

    run.look = look
    run.checks = checks
    return run


def test_a_healthy_node_has_nothing(doctor):
    assert doctor() == (0, "Nothing is wrong.\n", "")


def test_a_note_is_no_fault(doctor, place):
    place.say("[DEFAULT]\npointer_model = usbtablet")
    status, out, err = doctor()
    assert (status, err) == (0, "")
    first, second, *_ = out.splitlines()
    assert first == "Nothing is wrong."
    assert second.startswith("NOTE Every server gets devices that none with GPUs needs: ")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.text)
def test_a_fault_is_found_and_cured(doctor, place, fault):
    fault.make(place)
    found = doctor.checks()
    assert fault.check in found
    said = found[fault.check]
    assert said["severity"] == findings.CHECKS[fault.check].severity.word
    assert said["seen"].endswith(".")
    assert said["docs"] == f"admin/doctor.html#doctor-{fault.check}"
    # What its cure names is data, which each layout says in its own words.
    (cure,) = {finding.cure for finding in doctor.look() if finding.check == fault.check}
    assert render_cure(cure) == said["cure"]
    assert faults_of_cure(cure) == []
    fault.cure(place)
    assert fault.check not in doctor.checks()


def test_every_check_has_a_fault():
    without = set(findings.CHECKS) - {fault.check for fault in (*FAULTS, *CLOUD)}
    # Of the fleet, below.
    assert without == {
        *("aliases-differ", "aliases-missing"),
        # Of other tools, in a file of their own.
        *("host-validate", "option-unknown", "not-looked"),
    }
    assert len(FAULTS) >= 30


def test_the_tables_of_the_documentation():
    page = doctor_page.PAGE
    assert page.read_text(encoding="utf-8") == doctor_page.table()
    checks = page.with_name("doctor-checks.inc")
    assert checks.read_text(encoding="utf-8") == doctor_page.checks()
    layouts = page.with_name("layouts.inc")
    assert layouts.read_text(encoding="utf-8") == doctor_page.layouts()
    # A page with a file of the plain layout has the tabs of the others.
    without = [
        str(each.relative_to(page.parents[1]))
        for each in page.parents[1].rglob("*.rst")
        if each.parent.name not in ("contributor", "upstream", "cli")
        and "/etc/nova/" in (text := each.read_text(encoding="utf-8"))
        and "layouts.inc" not in text
    ]
    # Pages about one layout, or about the lab.
    assert set(without) <= {"user/lab.rst", "user/lab-reference.rst", "install/devstack.rst"}


def test_for_people(doctor, place):
    place.driver(GPU, "nvidia")
    status, out, _ = doctor(parts=("node",))
    assert status == 3
    assert f"ERROR {GPU}: bound to nvidia, withheld until bound to vfio-pci. [driver]" in out
    assert f"  Cure: driverctl set-override {GPU} vfio-pci\n" in out
    assert "  See: nova-hpc help check driver\n" in out


def test_a_node_of_which_nothing_is_known(doctor, tmp_path):
    (tmp_path / "empty").mkdir()
    status, _, err = doctor("--root", tmp_path / "empty")
    assert status == 2
    assert "no CPU and no PCI device" in err


# --- what is no fault --------------------------------------------------------------------


def test_power_that_nova_saves(doctor, place):
    """Nova gives CPUs that nobody has the governor cpu_power_governor_low."""
    place.frequencies("acpi-cpufreq", "powersave")
    assert "cpus-slow" in doctor.checks()
    place.say("[libvirt]\ncpu_power_management = true")
    assert "cpus-slow" in doctor.checks()
    place.say("cpu_power_management_strategy = governor")
    assert "cpus-slow" not in doctor.checks()


def test_drivers_that_choose_the_frequency(doctor, place):
    for driver in ("intel_pstate", "amd-pstate-epp"):
        place.frequencies(driver, "powersave")
        assert "cpus-slow" not in doctor.checks()
    # The same drivers where the kernel chooses.
    for driver in ("intel_cpufreq", "amd-pstate"):
        place.frequencies(driver, "powersave")
        assert driver in doctor.checks()["cpus-slow"]["seen"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("intel_iommu=on", True),
        ("intel_iommu=on mem_encrypt=off", True),
        # The operator has decided, or a feature would be off.
        ("intel_iommu=on iommu=nopt", False),
        ("iommu=pt iommu.passthrough=0", False),
        ("kvm-amd.sev_snp=1", False),
        ("mem_encrypt=on", False),
        ("iommu=memaper,pt", False),
        ("iommu.passthrough=1", False),
        ("", False),  # nobody knows
    ],
)
def test_the_mode_of_the_iommu(doctor, place, line, found):
    """One device may need translation where all others pass."""
    place.put("/sys/kernel/iommu_groups/1/type", "DMA")
    place.put("/proc/cmdline", line)
    assert ("iommu-translated" in doctor.checks()) is found


def test_a_restart_that_is_due_is_said_once(doctor, place):
    doctor_changes.translated(place)
    place.prepare()
    found = doctor.checks()
    assert "prepare-restart" in found
    assert "iommu-translated" not in found


def test_a_kernel_that_passes_without_a_word(doctor, place):
    """Some are built so (CONFIG_IOMMU_DEFAULT_PASSTHROUGH)."""
    place.put("/proc/cmdline", "root=/dev/sda1")
    assert "iommu-translated" not in doctor.checks()


def test_a_quiet_host_from_its_declaration_to_its_set(doctor, place):
    """Prepared and started: nothing. A set that was changed: the host is to be prepared again."""
    tree = doctor_changes.quiet(place)
    for name in ("isolated", "nohz_full"):
        tree.put(f"/sys/devices/system/cpu/{name}", "")
    assert doctor.checks().keys() == {"cpus-not-isolated"}
    doctor_changes.not_started(place)
    assert doctor.checks().keys() == {"prepare-restart"}
    doctor_changes.started(place)
    tree.write()
    assert doctor() == (0, "Nothing is wrong.\n", "")
    place.option(settings.COMPUTE, "cpu_dedicated_set", "1")
    place.option(settings.COMPUTE, "cpu_shared_set", "0,2-5")
    found = doctor.checks()
    assert found.keys() >= {"prepare-drift"}
    assert "nova-hpc.cfg" in found["prepare-drift"]["seen"]
    place.prepare()
    doctor_changes.started(place)
    text = (place.root / "proc/cmdline").read_text(encoding="ascii")
    assert "nohz_full=1 rcu_nocbs=1 irqaffinity=0,2-5" in text


def test_registers_that_nobody_can_read(doctor, place):
    place.leaf("leaf", ats=False)
    place.again()
    place.say("[hpc]\npeer_to_peer = translated")
    assert "peer-lacking" in doctor.checks()
    for path in (place.root / "sys/devices/pci0000:40").rglob("config"):
        path.write_bytes(path.read_bytes()[:64])
    assert not {"peer-lacking", "peer-ports"} & doctor.checks().keys()


def test_a_service_of_nobody_knows_whom(doctor, place):
    folder = place.root / "var/lib/nova"
    folder.chmod(0o555)
    unit = place.root / "usr/lib/systemd/system/nova-compute.service"
    for text in ("[Service]\nUser=stack\n", "[Service]\n"):  # no account of it; root
        unit.write_text(text)
        assert "ledger-closed" not in doctor.checks()
    (unit.parent / "nova-compute.service.d").mkdir()
    (unit.parent / "nova-compute.service.d/who.conf").write_text("[Service]\nUser=nova\n")
    assert "ledger-closed" in doctor.checks()
    unit.unlink()
    shutil.rmtree(unit.parent / "nova-compute.service.d")
    assert "ledger-closed" not in doctor.checks()
    shutil.rmtree(folder)
    folder.touch()
    assert doctor.checks() == {}


def test_a_capture_has_no_libvirt_and_no_shim(doctor, place, monkeypatch):
    place.say("[hpc]\ngpudirect_clique = true")
    (place.virt / "hpc.py").unlink()
    place.libvirt.version = 1_000_000
    assert doctor.checks().keys() == {"shim", "libvirt-old"}
    monkeypatch.setattr(facts_service, "is_this_machine", IS_HERE)
    assert doctor.checks() == {}


def test_a_libvirt_that_is_silent(place, doctor):
    """It is a finding for those who ask what others know."""
    place.say("[hpc]\ngpudirect_clique = true")
    place.libvirt.guests = None
    assert doctor.checks() == {}
    assert place.libvirt.asked == ["qemu:///system"]


# --- the fleet ------------------------------------------------------------------------


def test_a_fleet(doctor, place, tmp_path, capsys):
    folder = tmp_path / "fleet"
    folder.mkdir()
    place.put("/proc/sys/kernel/hostname", "gpu1")
    (folder / "a.json").write_text(doctor("-f", "json")[1], encoding="ascii")
    assert doctor("--merge", folder)[0] == 0
    place.put("/proc/sys/kernel/hostname", "gpu2")
    place.driver(GPU, "nvidia")
    place.edit("common", '"product_id": "2330"', '"product_id": "2331"')
    (folder / "b.json").write_text(doctor("-f", "json")[1], encoding="ascii")
    (folder / "c.json").write_text("{", encoding="ascii")
    status, out, _ = doctor("--merge", folder)
    assert status == 3
    assert f"ERROR gpu2: {GPU}: bound to nvidia" in out
    assert "ERROR [pci]alias gpu differs: gpu1: " in out
    assert "WARNING c: c.json: the findings is not JSON" in out
    assert "aliases-missing" not in out
    short = json.loads((folder / "b.json").read_text())
    short.update(node="api", findings=[], aliases=short["aliases"][1:])
    (folder / "d.json").write_text(json.dumps(short), encoding="ascii")
    status, out, _ = doctor("--merge", folder)
    assert "WARNING [pci]alias gpu is not known on api. [aliases-missing]" in out
    assert "  Cure: Copy the line of gpu1, gpu2 there, and restart the services.\n" in out
    (folder / "d.json").unlink()
    # As rows.
    assert main(["doctor", "--merge", str(folder), "-f", "json"]) == 3
    rows = json.loads(capsys.readouterr().out)
    assert {row["Node"] for row in rows} >= {"gpu2", "c", ""}
    # What a later release finds is shown, too.
    later = json.loads((folder / "a.json").read_text())
    later["findings"] = [
        {"check": "new", "severity": "notice", "seen": "s", "why": "w", "cure": "c", "docs": "d"}
    ]
    for path in folder.iterdir():
        path.unlink()
    (folder / "a.json").write_text(json.dumps(later), encoding="ascii")
    status, out, _ = doctor("--merge", folder)
    assert status == 1
    assert "NOTICE gpu1: s [new]" in out


def test_no_fleet(doctor, tmp_path):
    assert doctor("--merge", tmp_path / "none")[0] == 2
    (tmp_path / "none").mkdir()
    status, _, err = doctor("--merge", tmp_path / "none")
    assert status == 2
    assert "no .json file" in err


# --- entries of others ----------------------------------------------------------------------


def test_without_nova_what_others_wrote_is_unknown(doctor, place):
    """Nova is not installed beside these tests; what is ours needs no look of its."""
    theirs = f'{{"vendor_id": "15b3", "address": "{VF}", "physical_network": "tenants"}}'
    (place.folder / "aa.conf").write_text(f"[pci]\npassthrough_whitelist = {theirs}\n")
    found = doctor.checks()
    assert "Nova cannot be loaded here" in found["not-looked"]["seen"] or (
        "no reader of Nova is registered" in found["not-looked"]["seen"]
    )
    # The command names the line, and what to declare before it goes.
    assert "--part common --dry-run: it names the line" in found["entry-hidden"]["cure"]


def test_reporting_is_not_advised_where_nova_would_not_start(doctor, place):
    (place.folder / "aa.conf").write_text('[pci]\ndevice_spec = {"devname": "eth0"}\n')
    place.option("compute", "report_in_placement", "false")
    assert "Set [pci]report" not in doctor.checks()["pci-report"]["cure"]
