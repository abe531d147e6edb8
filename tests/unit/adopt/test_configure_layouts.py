# SPDX-License-Identifier: Apache-2.0
"""``configure --layout``: what Kolla-Ansible and OpenStack-Ansible make of it by their own code."""

import json
from types import SimpleNamespace

import pytest
import yaml

from nova_hpc_tools.adopt import layout_files
from nova_hpc_tools.adopt.configure import Configure
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.site import settings
from tests.unit import hostile
from tests.unit.adopt.merged import SEVERAL, kolla, osa, told
from tests.unit.node_files import declare, put

#: What a service of the cloud is told before, by another team's words too.
NOVA = """\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
log_dir = /var/log/kolla/nova
[compute]
cpu_dedicated_set = 1
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = acme.filters.Tenants
enabled_filters = ComputeFilter,Tenants
weight_classes = acme.Weigher
[pci]
alias = {"name": "crypto", "vendor_id": "8086", "product_id": "37c8"}
device_spec = {"vendor_id": "8086", "product_id": "37c8"}
[scheduler]
max_placement_results = 5000
"""
PLACEMENT = "[placement]\nmax_allocation_candidates = 7000\n[api]\nauth_strategy = keystone\n"
HOST = "node17"


class Cloud:
    """A deployment: what its tool has merged, and where it takes overrides from."""

    def __init__(self, layout, tmp_path):
        self.layout = layout
        self.folder = tmp_path / layout
        self.folder.mkdir()
        self.place = tmp_path / "merged"
        self.place.mkdir()
        self.merged = {"nova-compute": NOVA, "nova-scheduler": NOVA, "placement": PLACEMENT}

    @property
    def declaration(self):
        return self.folder / f"nova-hpc/{HOST}.yaml"

    def deploy(self):
        paths = (
            {
                "nova-compute": f"nova/{HOST}/nova-compute.conf",
                "nova-scheduler": "nova/nova-scheduler.conf",
                "placement": "placement.conf",
            }
            if self.layout == "kolla"
            else {
                "nova-compute": f"host_vars/{HOST}/nova-hpc.yml",
                "nova-scheduler": "group_vars/nova_all/nova-hpc.yml",
                "placement": "group_vars/placement_all/nova-hpc.yml",
            }
        )
        for service, path in paths.items():
            override = (self.folder / path).read_text(encoding="utf-8")
            source = PLACEMENT if service == "placement" else NOVA
            if self.layout == "kolla":
                self.merged[service] = kolla([source, override])
            else:
                ((name, body),) = yaml.safe_load(override).items()
                project = "placement" if service == "placement" else "nova"
                assert name == f"{project}_{project}_conf_overrides"
                self.merged[service] = osa(source, body)


@pytest.fixture(params=["kolla", "osa"])
def cloud(request, tmp_path, machine, monkeypatch):
    put(machine, "/proc/sys/kernel/hostname", HOST)
    found = Cloud(request.param, tmp_path)
    # Placement is read where its own variable says.
    monkeypatch.setenv("OS_PLACEMENT_CONFIG_DIR", str(found.place))
    return found


@pytest.fixture
def configure(cloud, machine, capsys):
    def run(*words, service="nova-compute"):
        for name, text in cloud.merged.items():
            (cloud.place / f"{name}.conf").write_text(text, encoding="utf-8")
        command = Configure(None, None)
        parser = command.get_parser("nova-hpc configure")
        mine = [
            *("--root", machine, "--layout", cloud.layout, "--write", cloud.folder),
            *("--config-file", cloud.place / f"{service}.conf"),
        ]
        status = command.run(parser.parse_args(list(map(str, [*mine, *words]))))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }


def all_parts(configure, cloud, *words):
    answers = []
    for service, parts in (
        ("nova-compute", ("compute",)),
        ("nova-scheduler", ("controller", "placement")),
    ):
        named = [word for part in parts for word in ("--part", part)]
        if service == "nova-compute":
            # Nobody wrote down why the entries of stock Nova name one device only.
            named += ["--replace", "device_spec"]
        answers.append(configure(*named, *words, service=service))
    assert [status for status, _, _ in answers] == [0, 0], answers
    return [out for _, out, _ in answers]


def test_what_others_said_is_still_said(configure, cloud, tmp_path):
    before = {name: told(text, tmp_path) for name, text in cloud.merged.items()}
    declare(cloud.declaration, limits={"hosts": 2000})
    all_parts(configure, cloud)
    cloud.deploy()
    after = {name: told(text, tmp_path) for name, text in cloud.merged.items()}
    for service, options in before.items():
        for (group, name), values in options.items():
            now = after[service][group, name]
            if name in SEVERAL:
                assert set(values) <= set(now), (service, name)
                if cloud.layout == "kolla":  # the other tool sorts them
                    assert [each for each in now if each in values] == values, (service, name)
            elif name in ("enabled_filters", "weight_classes") and service == "nova-scheduler":
                assert set(values[0].split(",")) < set(now[0].split(","))
            elif name == "compute_driver" and service == "nova-compute":
                assert now == [settings.DRIVER]
            else:
                assert now == values, (service, name)  # no limit falls, no CPU set changes
    compute = after["nova-compute"]
    assert len(compute["pci", "device_spec"]) == 3  # theirs, the GPU, the VFs
    names = {json.loads(each)["name"] for each in compute["pci", "alias"]}
    assert names == {"crypto", "gpu", "vf"}
    assert compute["pci", "report_in_placement"] == ["true"]
    scheduler = after["nova-scheduler"]
    assert len(scheduler["filter_scheduler", "available_filters"]) == 4
    # Names that other controllers need are the same.
    assert set(scheduler["pci", "alias"]) == set(compute["pci", "alias"])


def test_a_second_run_changes_nothing_before_and_after_the_tool_ran(configure, cloud):
    role = {"role": "gpu", "vendor_id": "10de", "class": "0302"}
    declare(cloud.declaration, limits={"hosts": 2000}, roles=[role])
    all_parts(configure, cloud)
    written = contents(cloud.folder)
    assert all_parts(configure, cloud) == ["Nothing to do.\n"] * 2
    cloud.deploy()
    assert all_parts(configure, cloud) == ["Nothing to do.\n"] * 2
    assert contents(cloud.folder) == written
    merged = dict(cloud.merged)
    cloud.deploy()
    assert cloud.merged == merged


def test_what_was_ours_and_is_not_wanted_any_more_goes(configure, cloud, tmp_path):
    all_parts(configure, cloud)
    cloud.deploy()
    declare(cloud.declaration, left_out=["0000:18:00.0"])
    status, _, err = configure("--part", "compute")
    assert status == 0, err
    cloud.deploy()
    entries = told(cloud.merged["nova-compute"], tmp_path)["pci", "device_spec"]
    assert len(entries) == 2
    assert not any("10de" in each for each in entries)
    assert any("37c8" in each for each in entries)


def test_undo_removes_the_files_of_this_node(configure, cloud):
    all_parts(configure, cloud)
    written = contents(cloud.folder)
    other = next(name for name in written if f"/{HOST}/" in name).replace(HOST, "node18")
    (cloud.folder / other).parent.mkdir()
    (cloud.folder / other).write_text(written[other.replace("node18", HOST)], encoding="utf-8")
    status, _, err = configure("--part", "compute", "--undo")
    assert status == 0, err
    gone = {name for name in written if f"/{HOST}/" in name}
    assert contents(cloud.folder).keys() == written.keys() - gone | {other}
    status, _, err = configure("--undo")
    assert status == 0, err
    assert contents(cloud.folder).keys() == {other, f"nova-hpc/{HOST}.yaml"}


ENTRY = '{"vendor_id": "10de", "product_id": "2330", "address": "0000:18:00.0"}'
#: Layout -> a file that its tool reads, with the entry on its third line; and where a site mostly
#: has such a line.
SOURCES = {
    "kolla": ("nova/nova-compute.conf", f"# ours\n[pci]\ndevice_spec = {ENTRY}\n"),
    "osa": ("group_vars/nova_all/pci.yml", f"pci_of_ours:\n  device_spec:\n    ? '{ENTRY}'\n"),
}
USUAL = {
    "kolla": f"it from /etc/kolla/config/nova/{HOST}/nova.conf, or the file that has it",
    "osa": "it from nova_nova_conf_overrides below /etc/openstack_deploy/host_vars/"
    f"{HOST}, or the file that has it",
}
TOOLS = {"kolla": "kolla-ansible", "osa": "openstack-ansible"}


def test_an_entry_that_hides_ours_is_named_where_it_comes_from(configure, cloud):
    cloud.merged["nova-compute"] = NOVA.replace("[pci]\n", f"[pci]\ndevice_spec = {ENTRY}\n")
    words = ("--part", "compute", "--replace", "device_spec")
    status, _, err = configure(*words)
    assert status == 2
    merged = f"{cloud.place}/nova-compute.conf:12"
    assert f"{merged}: device_spec = {ENTRY}: Nova takes this entry for 0000:18:00.0, and" in err
    tool = f"{merged}, which {TOOLS[cloud.layout]} has made of it"
    assert f"remove {USUAL[cloud.layout]}, and {tool}, and run this command again; or keep" in err
    assert f"'0000:18:00.0'] in {cloud.declaration}\n" in err
    name, text = SOURCES[cloud.layout]
    source = cloud.folder / name
    source.parent.mkdir(parents=True)
    source.write_text(text, encoding="utf-8")
    status, _, err = configure(*words)
    assert status == 2
    line = text.splitlines()[2].strip()
    assert f"nova-hpc configure: {source}:3: {line}: Nova takes this entry for" in err
    assert f"remove {source}:3, and {tool}" in err
    assert contents(cloud.folder) == {name: text}
    # The line is gone in both.
    source.unlink()
    cloud.merged["nova-compute"] = NOVA
    assert configure(*words)[0] == 0


def test_a_variable_that_wins_over_ours(configure, cloud):
    path = cloud.folder / "user_variables.yml"
    path.write_text("---\nnova_nova_conf_overrides:\n  DEFAULT: {}\n", encoding="utf-8")
    words = ("--part", "compute", "--replace", "device_spec")
    status, _, err = configure(*words)
    assert status == (2 if cloud.layout == "osa" else 0)
    if cloud.layout == "kolla":
        return  # Its tool reads no such file.
    ours = cloud.folder / f"host_vars/{HOST}/nova-hpc.yml"
    assert f"{path}:2: nova_nova_conf_overrides wins over {ours} and hides" in err
    assert not ours.exists()
    # As Ansible reads it: a key in quotes, beside a value that the vault has.
    text = "secret: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3361\n'nova_nova_conf_overrides': {}\n"
    path.write_text(text, encoding="utf-8")
    assert f"{path}:4: nova_nova_conf_overrides wins over {ours}" in configure(*words)[2]
    path.write_text("a: [\n", encoding="utf-8")
    assert f"{path} is not YAML: " in configure(*words)[2]
    assert not ours.exists()
    path.with_name("user_secrets.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n3361\n")
    path.write_text("nova_nova_conf_overrides_of_ours: {}\n", encoding="utf-8")
    assert configure(*words)[0] == 0


def test_a_file_of_the_operators_is_not_touched(configure, cloud):
    path = cloud.folder / (
        f"nova/{HOST}/nova-compute.conf"
        if cloud.layout == "kolla"
        else f"host_vars/{HOST}/nova-hpc.yml"
    )
    path.parent.mkdir(parents=True)
    path.write_text("mine", encoding="utf-8")
    status, _, err = configure("--part", "compute", "--replace", "device_spec")
    assert status == 2
    assert "was not written by this command" in err
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_node_without_a_name_is_refused(configure, cloud, machine):
    (machine / "proc/sys/kernel/hostname").unlink()
    status, _, err = configure("--part", "compute")
    assert status == 2
    assert "host name" in err
    assert contents(cloud.folder) == {}


@pytest.mark.parametrize("name", ["..", "-x", "10.0.0.1"])
def test_a_node_of_a_capture_names_no_other_file(cloud, machine, configure, name):
    put(machine, "/proc/sys/kernel/hostname", name)
    status, out, err = configure()
    assert (status, out) == (2, "")
    assert "cannot name files" in err
    assert contents(cloud.folder) == {}


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_nor_does_what_lstopo_calls_the_node(what):
    """The text of lstopo's XML is taken as it is where it can be printed."""
    node = SimpleNamespace(hostname=hostile.TEXTS[what], source="node.xml")
    if what == "underscore":
        assert layout_files._checked_hostname_of(node) == "n_1"
        return
    with pytest.raises(CommandError) as caught:
        layout_files._checked_hostname_of(node)
    assert hostile.obeyed(str(caught.value)) == []
