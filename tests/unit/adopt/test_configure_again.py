# SPDX-License-Identifier: Apache-2.0
"""``configure`` on a node that is configured already: nothing of it is lost in silence."""

import json

import pytest

from nova_hpc_tools.site import settings
from tests.unit.node_files import contents, refused

GPU_ROLE = '{"role": "gpu", "vendor_id": "10de", "class": "03*"}'
NAMES = [settings.file_name(part) for part in settings.PARTS]


ADAPTER_ROLE = {"role": "adapter", "class": "0207", "dev_type": "type-VF"}


def test_roles_come_and_go_with_the_declaration(at_home):
    at_home.declare(roles=[ADAPTER_ROLE])
    assert at_home()[0] == 0
    assert at_home.told("device_role") == [json.dumps(ADAPTER_ROLE)]
    status, out, err = at_home()
    assert "No device of this node is offered" not in err
    assert (status, out) == (0, "Nothing to do.\n")
    at_home.declare(roles=None)
    assert at_home("--replace", "0000:19:00.0")[0] == 0
    assert at_home.told("device_role") == []
    assert '"hpc_role": "gpu"' in at_home.told("device_spec")[0]
    assert at_home()[1] == "Nothing to do.\n"


def test_roles_that_a_file_of_the_operators_says_as_well(at_home):
    """What is taken out of the declaration stays in that file."""
    at_home.nova(f"[hpc]\ndevice_role = {json.dumps(ADAPTER_ROLE)}\n")
    at_home.declare(roles=[ADAPTER_ROLE])
    assert at_home()[0] == 0
    spec = at_home.told("device_spec")
    at_home.declare(roles=None)
    assert at_home()[0] == 0
    assert at_home.told("device_role") == []
    assert at_home.told("device_spec") == spec
    assert at_home()[1] == "Nothing to do.\n"


def test_the_files_of_the_directory_count_where_no_service_reads_it(at_home, tmp_path):
    at_home.folder = tmp_path / "elsewhere"
    at_home.folder.mkdir()
    at_home.declare(roles=[ADAPTER_ROLE])
    assert at_home()[0] == 0
    assert at_home()[:2] == (0, "Nothing to do.\n")


def test_a_named_file_replaces_the_found_files_and_no_directory(at_home, tmp_path):
    """As oslo.config and so the services do."""
    at_home.nova("[hpc]\ndevice_role = nonsense\n")
    other = tmp_path / "other.conf"
    other.write_text("[scheduler]\nmax_placement_results = 7000\n", encoding="ascii")
    more = at_home.folder / "more.conf"
    more.write_text(f"[hpc]\ndevice_role = {GPU_ROLE}\n", encoding="ascii")
    keep = ("--config-file", other, "--keep", "max_placement_results")
    _, out, _ = at_home(*keep, write=False)
    assert '"hpc_role": "gpu"' in out
    assert '"hpc_role": "vf"' not in out
    assert "max_placement_results = 7000\n" in out
    (tmp_path / "none").mkdir()
    _, out, _ = at_home(*keep, "--config-dir", tmp_path / "none", write=False)
    assert '"hpc_role": "vf"' in out
    status, _, err = at_home("--config-dir", tmp_path / "missing", write=False)
    assert status == 2
    assert str(tmp_path / "missing") in err


OWN_FILTERS = "ComputeFilter,AggregateMultiTenancyIsolation,PciPassthroughFilter,MyFilter"


def test_filters_and_weighers_of_the_deployment_are_added_to(at_home):
    at_home.nova(
        f"[filter_scheduler]\nenabled_filters = {OWN_FILTERS}\n"
        "weight_classes = nova.scheduler.weights.ram.RAMWeigher,mine.Weigher\n"
    )
    assert at_home()[0] == 0
    assert at_home.told("enabled_filters") == [
        "ComputeFilter,AggregateMultiTenancyIsolation,HpcTopologyFilter,PciPassthroughFilter,"
        "MyFilter,NUMATopologyFilter,HpcFabricFilter"
    ]
    assert at_home.told("weight_classes") == [
        ",".join(("nova.scheduler.weights.ram.RAMWeigher,mine.Weigher", *settings.WEIGHER_CLASSES))
    ]
    assert at_home()[1] == "Nothing to do.\n"


def test_filters_that_an_earlier_file_hides_come_back(at_home):
    """The file of an earlier release, beside an operator's own list."""
    at_home("--part", "controller")
    at_home.nova("[filter_scheduler]\nenabled_filters = ComputeFilter,MyFilter\n")
    assert "MyFilter" not in at_home.told("enabled_filters")[0]
    assert at_home()[0] == 0
    assert at_home.told("enabled_filters")[0].split(",")[:2] == ["ComputeFilter", "MyFilter"]
    assert "ServerGroupAffinityFilter" in at_home.told("enabled_filters")[0]


def test_a_filter_is_dropped_only_by_its_name(at_home):
    at_home.nova(f"[filter_scheduler]\nenabled_filters = {OWN_FILTERS}\n")
    words = ("--part", "controller", "--enabled-filters", "ComputeFilter,MyFilter")
    answer = at_home(*words)
    refused(answer, "enabled_filters would lose AggregateMultiTenancyIsolation")
    assert "--replace AggregateMultiTenancyIsolation where it is meant" in answer[2]
    assert contents(at_home.folder) == {}
    refused(at_home(*words, "--replace", "MyFilter"), "AggregateMultiTenancyIsolation")
    for name in ("AggregateMultiTenancyIsolation", "enabled_filters"):
        assert at_home(*words, "--replace", name)[0] == 0
    assert "Aggregate" not in at_home.told("enabled_filters")[0]


@pytest.mark.parametrize("before", ["max_placement_results = 5000", "max_placement_results = 1001"])
def test_a_limit_does_not_fall(at_home, before):
    at_home.nova(f"[scheduler]\n{before}\n")
    number = before.rpartition(" ")[2]
    assert at_home("--part", "controller")[0] == 0
    assert at_home.told("max_placement_results") == [number]
    at_home.declare(limits={"hosts": 6000})
    assert at_home("--part", "controller")[0] == 0
    assert at_home("--part", "controller")[1] == "Nothing to do.\n"
    assert at_home.told("max_placement_results") == ["6001"]
    at_home.declare(limits={"hosts": 2000})
    assert at_home("--part", "controller")[0] == 0
    assert at_home.told("max_placement_results") == ["6001"]
    at_home.declare(limits=None)
    assert at_home("--part", "controller", "--replace", "max_placement_results")[0] == 0
    assert at_home.told("max_placement_results") == ["1000"]


@pytest.mark.parametrize(
    ("before", "hosts", "after"),
    [
        (None, 2048, []),  # the default is enough
        (None, 2049, ["4098"]),
        (None, 9000, ["18000"]),
        ("20000", 9000, []),  # an operator's, which is higher
        ("1000", 400, []),  # one that is lower, and enough
        ("1000", 9000, ["18000"]),
        ("0", 9000, []),  # nothing is kept, and that is meant
    ],
)
def test_the_scheduler_remembers_as_many_hosts_as_match(at_home, before, hosts, after):
    if before is not None:
        at_home.nova(f"[hpc]\ncache_size = {before}\n")
    words = ("--part", "controller")
    at_home.declare(limits={"hosts": hosts})
    _, _, err = at_home(*words)
    assert at_home.told("cache_size") == after
    assert ("cache_size stays 0; 9000 hosts that are not alike need 18000" in err) == (
        before == "0"
    )
    assert at_home(*words)[1].startswith("Nothing to do.\n")
    assert at_home.told("cache_size") == after


def test_what_the_scheduler_remembers_does_not_shrink(at_home):
    def sizes(hosts, *words):
        at_home.declare(limits={"hosts": hosts})
        assert at_home("--part", "controller", *words)[0] == 0
        return at_home.told("cache_size")

    assert sizes(5000) == ["10000"]
    assert sizes(9000) == sizes(5000) == ["18000"]
    # A later word of the operator's, in a file that is read before ours.
    at_home.nova("[hpc]\ncache_size = 30000\n")
    assert sizes(5000) == []
    at_home.nova("")
    assert sizes(9000, "--keep", "cache_size") == []
    assert sizes(9000) == ["18000"]
    assert sizes(3000, "--replace", "cache_size") == ["6000"]


@pytest.mark.parametrize("before", ["4000", "-1"])
def test_a_limit_of_placement_does_not_fall(at_home, before):
    folder = at_home.home.parent / ".placement"
    folder.mkdir()
    text = f"[placement]\nmax_allocation_candidates = {before}\n"
    (folder / "placement.conf").write_text(text, encoding="ascii")
    at_home.folder = folder / "placement.conf.d"
    assert at_home("--part", "placement")[0] == 0
    assert at_home.told("max_allocation_candidates") == [before]


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("cpu_dedicated_set = 1", None),
        ("cpu_dedicated_set = 0-1,^0", None),
        ("cpu_dedicated_set = 0-1", "cpu_dedicated_set stays 0-1; with one core"),
        ("cpu_dedicated_set = nonsense", "'nonsense', with which nova-compute does not start"),
        ("cpu_shared_set = 1\ncpu_dedicated_set = 0", "cpu_shared_set stays 1; with one core"),
    ],
)
def test_cpu_sets_are_kept(at_home, before, said):
    """Of the operator's own file, so ours does not say them again."""
    at_home.nova(f"[compute]\n{before}\n")
    status, _, err = at_home()
    assert status == 0
    assert ("stays" in err or "does not start" in err) is (said is not None)
    assert said is None or said in err
    assert at_home.told("cpu_dedicated_set") == at_home.told("cpu_shared_set") == []
    assert at_home()[1] == "Nothing to do.\n"
    # The declaration says otherwise.
    at_home.declare(cpus={"housekeeping_cores": 1})
    status, out, _ = at_home()
    assert status == 0
    assert at_home.told("cpu_dedicated_set") == ["1"]
    assert (f"[compute]cpu_dedicated_set: {before.rpartition(' = ')[2]} -> 1" in out) is (
        before != "cpu_dedicated_set = 1"
    )
    assert at_home()[1] == "Nothing to do.\n"


def test_one_set_is_made_anew_by_its_name(at_home):
    at_home.nova("[compute]\ncpu_shared_set = 1\ncpu_dedicated_set = 0-1\n")
    assert at_home("--replace", "cpu_dedicated_set")[0] == 0
    assert at_home.told("cpu_dedicated_set") == ["1"]
    assert at_home.told("cpu_shared_set") == []
    at_home.declare(cpus={"housekeeping_cores": 0})
    assert at_home("--keep", "cpu_dedicated_set")[0] == 0
    assert at_home.told("cpu_dedicated_set") == ["1"]


def test_a_device_that_was_left_out_stays_so(at_home):
    at_home.declare(left_out=["0000:18:00.0"])
    assert at_home()[0] == 0
    assert at_home()[1] == "Nothing to do.\n"
    assert not any('"0000:18:00.0"' in each for each in at_home.told("device_spec"))
    at_home.declare(left_out=None)
    assert at_home()[0] == 0
    assert any('"0000:18:00.0"' in each for each in at_home.told("device_spec"))
    assert at_home()[1] == "Nothing to do.\n"


def test_a_left_out_device_that_was_away_is_still_left_out(at_home, machine):
    link = machine / "sys/bus/pci/devices/0000:18:00.0"
    target = link.readlink()
    at_home.declare(left_out=["0000:18:00.0"])
    assert at_home()[0] == 0
    link.unlink()
    assert at_home()[1] == "Nothing to do.\n"
    link.symlink_to(target)
    assert at_home()[1] == "Nothing to do.\n"


def test_virtual_functions_of_an_adapter_that_is_given_whole(at_home):
    at_home.declare(whole_pf=["all"])
    assert at_home()[0] == 0
    assert '"hpc_role": "pf"' in at_home.told("device_spec")[1]
    assert at_home()[1] == "Nothing to do.\n"
    at_home.declare(whole_pf=None)
    assert at_home()[0] == 0
    assert '"hpc_role": "vf"' in at_home.told("device_spec")[1]


def test_a_declaration_that_is_lost(at_home):
    """Nobody says any more why a device is not there."""
    at_home.declare(left_out=["0000:18:00.0"])
    assert at_home()[0] == 0
    (at_home.folder / "node.yaml").unlink()
    refused(
        at_home(),
        "0000:18:00.0 (gpu) is not offered and would be: --replace 0000:18:00.0 where it is meant, "
        "or left_out: ['0000:18:00.0'] in the declaration keeps it so",
    )


def test_new_hardware_is_offered(at_home, machine):
    link = machine / "sys/bus/pci/devices/0000:18:00.0"
    target = link.readlink()
    link.unlink()
    assert at_home()[0] == 0
    assert not any("0000:18:00.0" in each for each in at_home.told("device_spec"))
    link.symlink_to(target)
    assert at_home()[0] == 0
    assert any("0000:18:00.0" in each for each in at_home.told("device_spec"))


@pytest.mark.parametrize(
    ("entry", "lost"),
    [
        ('{"vendor_id": "10de", "product_id": "2330"}', ["0000:19:00.0 (vf)"]),
        ('{"address": "*:18:*.*"}', ["0000:19:00.0 (vf)"]),
        ('{"address": {"bus": "1[89]", "function": "1"}}', ["0000:18:00.0 (gpu)"]),
        ('{"address": "0000:19:00.1"}', ["0000:18:00.0 (gpu)"]),
        ('[{"vendor_id": "10de"}, {"address": "0000:19:00.1"}]', []),
        ('{"address": "0:19.0"}', ["0000:18:00.0 (gpu)", "0000:19:00.0 (vf)"]),
        ('{"address": {"bus": "["}}', ["0000:18:00.0 (gpu)", "0000:19:00.0 (vf)"]),
        ("nonsense", ["0000:18:00.0 (gpu)", "0000:19:00.0 (vf)"]),
    ],
)
def test_what_an_operator_does_not_pass_through(at_home, entry, lost):
    at_home.nova(f"[pci]\ndevice_spec = {entry}\n")
    text = "is not offered and would be"
    named = [line for line in at_home()[2].splitlines() if text in line]
    assert len(named) == len(lost)
    assert all(device in line for device, line in zip(lost, named, strict=True))
    assert text not in at_home("--replace", "device_spec")[2]


@pytest.mark.parametrize(
    ("wish", "there"),
    [
        ({"traits": ["CUSTOM_HBM3"]}, "CUSTOM_HBM3"),
        ({"one_time_use": True}, '"one_time_use": "true"'),
        ({"resource_class": "CUSTOM_H100"}, '"resource_class": "CUSTOM_H100"'),
    ],
)
def test_the_wishes_for_a_device_are_not_forgotten(at_home, wish, there):
    compute = ("--part", "compute")
    at_home.declare(role_options={"gpu": wish})
    assert at_home(*compute)[0] == 0
    assert there in at_home.told("device_spec")[0]
    assert at_home(*compute)[1] == "Nothing to do.\n"
    # Nobody declares it any more, and still it does not go in silence.
    (at_home.folder / "node.yaml").unlink()
    refused(at_home(*compute), "0000:18:00.0: ")
    assert at_home(*compute, "--replace", "0000:18:00.0")[0] == 0
    assert there not in at_home.told("device_spec")[0]


def test_aliases_are_added_to(at_home, machine):
    assert at_home()[0] == 0
    first = at_home.told("alias")
    assert [json.loads(each)["name"] for each in first] == ["gpu", "vf"]
    at_home.declare(alias_names="product")
    assert at_home()[0] == 0
    assert at_home.told("alias")[:2] == first
    assert [json.loads(each)["name"] for each in at_home.told("alias")[2:]] == [
        "gpu-2330",
        "vf-101e",
    ]
    assert at_home()[1] == "Nothing to do.\n"


def test_an_alias_does_not_come_to_mean_something_else(at_home):
    assert at_home()[0] == 0
    at_home.declare(role_options={"gpu": {"resource_class": "CUSTOM_H100"}})
    words = ("--part", "common")
    answer = at_home(*words)
    refused(answer, 'alias gpu is {"name": "gpu", "vendor_id": "10de"')
    assert "--replace gpu where it is meant" in answer[2]
    assert at_home(*words, "--replace", "gpu")[0] == 0
    assert '"CUSTOM_H100"' in at_home.told("alias")[0]


def test_the_aliases_of_an_operator(at_home):
    theirs = {"name": "gpu", "vendor_id": "10DE", "product_id": "2330", "device_type": "type-PCI"}
    at_home.nova(f"[pci]\nalias = {json.dumps({**theirs, 'numa_policy': 'preferred'})}\n")
    assert at_home()[0] == 0
    # Nova takes one specification of each name, so it is not written again.
    assert [json.loads(each)["name"] for each in at_home.told("alias")] == ["vf"]
    at_home.nova(f"[pci]\nalias = {json.dumps({**theirs, 'product_id': '20b5'})}\n")
    answer = at_home("--replace", "gpu")
    refused(answer, 'alias gpu is {"name": "gpu"')
    line = f"{at_home.home}/nova.conf:2"
    assert f"nova-hpc configure: {line}: alias = {{" in answer[2]
    assert f"remove {line} in your configuration management" in answer[2]


def test_no_heading_where_all_aliases_are_there_already(at_home):
    assert at_home()[0] == 0
    lines = "".join(f"alias = {each}\n" for each in at_home.told("alias"))
    assert at_home("--undo")[0] == 0
    at_home.nova(f"[pci]\n{lines}")
    status, out, _ = at_home("--dry-run", "--part", "common")
    assert status == 0
    assert "For every Nova service. The aliases are configured already.\n" in out
    assert "A flavor asks for devices by these names" not in out


DROPPED = ("--enabled-filters", "ComputeFilter,PciPassthroughFilter,MyFilter")


def test_a_dry_run_shows_what_would_be_lost(at_home):
    at_home.nova(f"[filter_scheduler]\nenabled_filters = {OWN_FILTERS}\n")
    status, out, err = at_home("--dry-run", *DROPPED)
    assert status == 2
    assert "+cpu_dedicated_set = 1\n" in out
    assert "enabled_filters would lose AggregateMultiTenancyIsolation" in err
    assert list(at_home.folder.iterdir()) == []


def test_what_is_printed_is_refused_likewise(at_home):
    at_home.nova(f"[filter_scheduler]\nenabled_filters = {OWN_FILTERS}\n")
    refused(at_home(*DROPPED, write=False), "would lose AggregateMultiTenancyIsolation")
