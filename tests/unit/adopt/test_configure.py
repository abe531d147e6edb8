# SPDX-License-Identifier: Apache-2.0
import json
import stat
import subprocess
import sys

import pytest

from nova_hpc_tools.adopt.configure import Configure
from nova_hpc_tools.site import include_files, settings
from tests.unit.node_files import contents, declare, put

GPU_ROLE = '{"role": "gpu", "vendor_id": "10de", "class": "03*"}'
NAMES = [settings.file_name(part) for part in settings.PARTS]


@pytest.fixture
def configure(machine, tmp_path, capsys):
    """Run the command; the configuration of this machine plays no part."""
    nova_conf = tmp_path / "nova.conf"
    nova_conf.write_text("[DEFAULT]\nhost = somewhere\n", encoding="ascii")

    def run(*args, root=machine):
        command = Configure(None, None)
        parser = command.get_parser("nova-hpc configure")
        source = [] if root is None else ["--root", str(root)]
        options = ["--config-file", str(nova_conf), *source, *map(str, args)]
        status = command.run(parser.parse_args(options))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    def declared(**wishes):
        """The options that name a declaration which says this."""
        path = tmp_path / "node.yaml"
        path.unlink(missing_ok=True)
        declare(path, **wishes)
        return "--declaration", path

    run.nova_conf, run.declared = nova_conf, declared
    return run


def test_prints_every_file(configure, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status, out, err = configure()
    assert status == 0
    for name in NAMES:
        assert f"### {name}\n{include_files.MARKER}\n" in out
    assert '"address": "0000:18:00.0"' in out
    assert '"address": "0000:19:00.0", "managed": "no"' in out
    assert "cpu_shared_set = 0\ncpu_dedicated_set = 1\n" in out
    assert "Not offered: 0000:19:00.0 (pf): its virtual functions are offered instead" in err
    assert sorted(tmp_path.rglob("*")) == before


def test_prints_one_part(configure):
    _, out, err = configure("--part", "placement")
    assert "breadth-first" in out
    assert "device_spec" not in out
    assert err == ""


def test_writes_what_it_printed_after_a_diff(configure, tmp_path):
    folder = tmp_path / "conf.d"
    _, printed, _ = configure()
    status, out, _ = configure("--write", folder)
    assert status == 0
    assert sorted(contents(folder)) == sorted(NAMES)
    for name, text in contents(folder).items():
        assert f"### {name}\n{text}" in printed
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o644
        assert f"+++ {folder / name}\n" in out
        assert f"Wrote {folder / name}" in out
    assert out.index("+[placement]") < out.index("Wrote ")


def test_a_second_run_changes_nothing(configure, tmp_path):
    folder = tmp_path / "conf.d"
    configure("--write", folder)
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.iterdir()}
    status, out, _ = configure("--write", folder)
    assert (status, out) == (0, "Nothing to do.\n")
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.iterdir()} == before


def test_only_what_differs_is_written(configure, tmp_path):
    folder = tmp_path / "conf.d"
    configure("--write", folder)
    inodes = {p.name: p.stat().st_ino for p in folder.glob("*.conf")}
    declare(folder / "node.yaml", cpus={"housekeeping_cores": 0})
    status, out, _ = configure("--write", folder)
    assert status == 0
    assert "-cpu_shared_set = 0\n" in out
    assert "+cpu_dedicated_set = 0-1\n" in out
    changed = {name for name, inode in inodes.items() if (folder / name).stat().st_ino != inode}
    assert changed == {"nova-hpc-compute.conf"}


def test_dry_run_writes_nothing(configure, tmp_path):
    folder = tmp_path / "conf.d"
    status, out, _ = configure("--write", folder, "--dry-run")
    assert status == 0
    assert "+[placement]" in out
    assert "Nothing written" in out
    assert not folder.exists()


def test_wrong_permissions_are_put_right(configure, tmp_path):
    folder = tmp_path / "conf.d"
    configure("--write", folder)
    (folder / NAMES[0]).chmod(0o600)
    _, out, _ = configure("--write", folder)
    assert f"{folder / NAMES[0]}: permissions become 0644" in out
    assert stat.S_IMODE((folder / NAMES[0]).stat().st_mode) == 0o644


@pytest.mark.parametrize("kind", ["file", "link", "folder", "empty"])
def test_what_belongs_to_others_is_left_alone(configure, tmp_path, kind):
    folder = tmp_path / "conf.d"
    folder.mkdir()
    theirs = folder / NAMES[-1]
    if kind == "file":
        theirs.write_text("[pci]\n", encoding="ascii")
    elif kind == "empty":
        theirs.touch()
    elif kind == "link":
        theirs.symlink_to(tmp_path / "elsewhere")
    else:
        theirs.mkdir()
    status, out, err = configure("--write", folder)
    assert status == 2
    assert str(theirs) in err
    assert "move it away" in err
    assert "Wrote" not in out
    assert list(folder.iterdir()) == [theirs]


def test_a_file_in_place_of_the_directory(configure, tmp_path):
    (tmp_path / "conf.d").touch()
    status, _, err = configure("--write", tmp_path / "conf.d")
    assert status == 2
    assert "is not a directory" in err


def test_a_failure_leaves_every_file_as_it_was(tmp_path):
    folder = tmp_path / "conf.d"
    old = {
        "a.conf": include_files.mark_as_owned("1\n"),
        "b.conf": include_files.mark_as_owned("1\n"),
    }
    include_files.write_file_changes(include_files.compare_include_files(folder, old))
    # The second file's directory cannot be made: its parent is a file.
    (tmp_path / "stop").touch()
    changes = include_files.compare_include_files(
        folder, {"a.conf": include_files.mark_as_owned("2\n")}
    )
    changes += [include_files.FileChange(tmp_path / "stop" / "b.conf", None, "2\n")]
    with pytest.raises(include_files.IncludeError, match="stop"):
        include_files.write_file_changes(changes)
    assert contents(folder) == old


def test_a_reader_never_sees_a_part(tmp_path):
    """The file under its name is always one of the two whole texts."""
    folder = tmp_path / "conf.d"
    one = include_files.mark_as_owned("1\n" * 200_000)
    two = include_files.mark_as_owned("2\n" * 200_000)
    include_files.write_file_changes(include_files.compare_include_files(folder, {"a.conf": one}))
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import json, sys, pathlib\n"
            "path, seen = pathlib.Path(sys.argv[1]), set()\n"
            "print('ready', flush=True)\n"
            "while not pathlib.Path(sys.argv[2]).exists():\n"
            "    text = path.read_text()\n"
            "    seen.add((len(text), text[-2:]))\n"
            "print(json.dumps(sorted(seen)))",
            str(folder / "a.conf"),
            str(tmp_path / "stop"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with reader:
        assert reader.stdout.readline() == "ready\n"
        for text in (two, one) * 20:
            include_files.write_file_changes(
                include_files.compare_include_files(folder, {"a.conf": text})
            )
        (tmp_path / "stop").touch()
        seen = {tuple(each) for each in json.loads(reader.stdout.read())}
    assert seen <= {(len(one), "1\n"), (len(two), "2\n")}
    assert seen


# --- roles and terms --------------------------------------------------------------


def test_roles_come_from_the_configuration(configure):
    configure.nova_conf.write_text(f"[hpc]\ndevice_role = {GPU_ROLE}\n", encoding="ascii")
    _, out, _ = configure("--part", "compute")
    assert '"hpc_role": "gpu"' in out
    assert '"hpc_role": "vf"' not in out
    assert "device_role" not in out


def test_declared_roles_replace_them_and_are_written(configure, machine):
    entry = {"role": "adapter", "class": "0207", "dev_type": "type-VF"}
    words = configure.declared(roles=[entry])
    _, out, _ = configure(*words, "--part", "compute", "--part", "common")
    assert '"hpc_role": "adapter"' in out
    assert '"hpc_role": "gpu"' not in out
    assert 'device_role = {"role": "adapter", "class": "0207", "dev_type": "type-VF"}\n' in out
    assert 'alias = {"name": "adapter"' in out


def test_terms(configure):
    _, out, _ = configure(
        *configure.declared(
            role_options={
                "gpu": {"resource_class": "CUSTOM_H100", "traits": ["CUSTOM_SXM", "CUSTOM_HBM3"]}
            },
            whole_pf=["0000:19:00.0"],
            alias_names="product",
            limits={"hosts": 4000},
        ),
        *("--enabled-filters", "ComputeFilter"),
    )
    assert '"resource_class": "CUSTOM_H100", "traits": "CUSTOM_HBM3,CUSTOM_SXM"' in out
    assert '"hpc_resource_class": "CUSTOM_H100", "hpc_traits": "CUSTOM_HBM3,CUSTOM_SXM"' in out
    assert '"hpc_role": "pf"' in out
    assert '"hpc_role": "vf"' not in out
    assert '{"name": "gpu", "resource_class": "CUSTOM_H100", "device_type": "type-PCI"}' in out
    assert '"name": "pf-1021"' in out
    assert "max_placement_results = 4001" in out
    assert (
        "enabled_filters = ComputeFilter,HpcTopologyFilter,NUMATopologyFilter,PciPassthroughFilter,"
        "HpcFabricFilter" in out
    )


def test_other_kinds_of_nodes_are_named_too(configure, machine, tmp_path):
    other = tmp_path / "other"
    subprocess.run(["cp", "-a", str(machine), str(other)], check=True)
    put(other, "/sys/devices/pci0000:17/0000:18:00.0/device", "0x20b5")
    _, out, _ = configure("--also", other)
    assert '"name": "gpu-2330"' in out
    assert '"name": "gpu-20b5"' in out
    assert out.count('device_spec = {"vendor_id": "10de"') == 1


def test_switches_are_offered_only_where_that_is_asked_for(configure, machine):
    put(machine, "/sys/devices/pci0000:17/0000:18:00.0/class", "0x068000")
    # It has no GPU besides, so there is nothing to decide.
    _, out, err = configure()
    assert "nvswitch" not in out
    assert "Not offered: 0000:18:00.0 (nvswitch): decide now who runs the NVSwitches" in err
    _, out, err = configure(*configure.declared(offer_switches=False))
    assert "nvswitch" not in out
    assert "Not offered: 0000:18:00.0 (nvswitch): it stays with the host" in err
    _, out, err = configure(*configure.declared(offer_switches=True))
    assert '"hpc_role": "nvswitch"' in out
    assert 'alias = {"name": "nvswitch"' in out
    assert "Not offered: 0000:18:00.0" not in err
    words = configure.declared(offer_switches=True, left_out=["0000:18:00.0"])
    _, out, err = configure(*words)
    assert "nvswitch" not in out
    assert "Not offered: 0000:18:00.0 (nvswitch): it is left out" in err


# --- bad input --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--add-device-role", "gpu"], "[hpc]device_role, entry 1, 'gpu': not JSON"),
        (["--enabled-filters", "a b"], "names of filters"),
        (["--dry-run"], "--dry-run needs --write"),
    ],
)
def test_bad_options_are_refused_with_one_line(configure, args, why):
    status, out, err = configure(*args)
    assert status == 2
    assert out == ""
    assert why in err
    assert err.startswith("nova-hpc configure: ")
    assert err.count("\n") == 1


def test_a_part_that_there_is_not(configure, capsys):
    with pytest.raises(SystemExit) as caught:
        configure("--part", "all")
    assert caught.value.code == 2
    assert "--part" in capsys.readouterr().err


def test_an_empty_root_never_replaces_good_settings(configure, tmp_path):
    configure("--write", tmp_path / "conf.d")
    before = contents(tmp_path / "conf.d")
    (tmp_path / "empty").mkdir()
    status, out, err = configure("--write", tmp_path / "conf.d", root=tmp_path / "empty")
    assert (status, out) == (2, "")
    assert "no CPU and no PCI device" in err
    assert contents(tmp_path / "conf.d") == before


@pytest.mark.parametrize("text", ["[hpc\n", "device_role = x\n", None])
def test_a_broken_configuration(configure, text):
    if text is None:
        configure.nova_conf.unlink()
    else:
        configure.nova_conf.write_text(text, encoding="ascii")
    status, out, err = configure()
    assert (status, out) == (2, "")
    assert "nova.conf" in err


def test_a_bad_role_in_the_configuration_is_refused(configure):
    configure.nova_conf.write_text("[hpc]\ndevice_role = {}\n", encoding="ascii")
    status, _, err = configure()
    assert status == 2
    assert "needs a 'role'" in err


@pytest.mark.parametrize("text", [None, "", "<topology", "<other/>"])
def test_a_bad_xml(configure, tmp_path, text):
    path = tmp_path / "bad.xml"
    if text is not None:
        path.write_text(text, encoding="ascii")
    status, out, err = configure("--xml", path, root=None)
    assert (status, out) == (2, "")
    assert str(path) in err


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ("1:0000:19:00.0,2:0000:bd:00.0", ""),
        ("1:0000:19:00.0,2:0000:43:00.0", "[hpc]nvlink_gpus: this node has no device 0000:43:00.0"),
        ("1:19:00.0", "[hpc]nvlink_gpus: '19:00.0' is not a PCI address"),
    ],
)
def test_gpus_of_another_node(configure, synthetic, gpus, says):
    text = f"[hpc]\nnvlink_backend = fabric-manager\nnvlink_gpus = {gpus}\n"
    configure.nova_conf.write_text(configure.nova_conf.read_text() + text)
    status, out, err = configure(root=synthetic("hgx-h100"))
    assert (status, bool(out)) == ((2, False) if says else (0, True))
    assert says in err


def test_an_hgx_h100(configure, synthetic):
    status, out, err = configure(root=synthetic("hgx-h100"))
    assert (status, out) == (2, "")
    assert "0000:4b:00.0, 0000:4c:00.0 and 2 more: decide now who runs the NVSwitches: wri" in err
    nothing, backend = configure.nova_conf.read_text(), "[hpc]\nnvlink_backend = fabric-manager\n"
    configure.nova_conf.write_text(nothing + backend)
    _, _, err = configure(root=synthetic("hgx-h100"))
    assert "0000:4e:00.0 (nvswitch): it stays with the host, or with a service machine" in err
    configure.nova_conf.write_text(nothing)
    _, out, _ = configure(*configure.declared(offer_switches=False), root=synthetic("hgx-h100"))
    assert out.count('"hpc_role": "gpu"') == 8
    assert out.count('"hpc_nvlink": "all:8"') == 8
    assert '"hpc_switch": "0000:38:00.0", "hpc_root": "pci0000:37"' in out


def test_domains_that_nova_cannot_address(configure, synthetic):
    """The disks behind VMD have no role; given one, they are left out by name."""
    words = configure.declared(roles=[{"role": "disk", "class": "0108"}])
    _, out, err = configure(*words, root=synthetic("vmd"))
    assert '"hpc_role": "disk"' not in out
    assert "10001:02:00.0" in out + err
    assert "Nova supports PCI domains up to ffff only" in out + err


def test_a_dgx_2(configure, captures):
    words = configure.declared(offer_switches=False)
    _, out, _ = configure(*words, "--xml", captures / "hwloc" / "nvidiaDGX2.xml", root=None)
    assert out.count('"hpc_role": "gpu"') == 16
    assert '"hpc_switch": "0000:2c:00.0/0000:32:00.0", "hpc_root": "pci0000:2b"' in out
