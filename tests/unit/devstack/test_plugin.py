# SPDX-License-Identifier: Apache-2.0
"""The devstack plug-in, run against devstack's own functions.

Only what would install packages is replaced; the settings come from the real
``nova-hpc configure`` over a real capture.
"""

from __future__ import annotations

import configparser
import json
import os
import pathlib
import subprocess
import sys

import attrs
import pytest
from oslo_config import cfg, types

from tools.wheels import list_required_wheels, read_wheels

TOP = pathlib.Path(__file__).resolve().parents[3]

SCRIPT = """
set -e
TOP_DIR=$DEVSTACK
DEST=$SCRATCH
STACK_USER=$(id -un)
source $DEVSTACK/functions
source $DEVSTACK/inc/async
# There is no devstack host here: no packages are installed, no services run.
function sudo { "$@"; }
function is_service_enabled { return 0; }
function echo_summary { echo "SUMMARY $*"; }
function setup_develop { echo "SETUP $1"; }
function pip_install { echo "PIP $*"; }
# Where devstack's Python programs are; a path to them is not set in clean.sh.
function get_python_exec_prefix { echo $SCRATCH/bin; }
NOVA_CONF=$SCRATCH/nova.conf
PLACEMENT_CONF=$SCRATCH/placement.conf
NOVA_HPC_CONF_DIR=$SCRATCH/hpc
# Nova's own line, from devstack's lib/nova.
eval "$(grep '^NOVA_FILTERS=' $DEVSTACK/lib/nova)"
source $PLUGIN_TOP/devstack/settings
source $PLUGIN_TOP/devstack/plugin.sh stack post-config
"""

NOVA_CONF = """[DEFAULT]
compute_driver = libvirt.LibvirtDriver
my_ip = 127.0.0.1

[filter_scheduler]
enabled_filters = ComputeFilter
track_instance_changes = False
"""


def _run(
    script: str,
    captures: pathlib.Path,
    scratch: pathlib.Path,
    arguments: str,
    declaration: str = "",
) -> str:
    (scratch / "bin").mkdir(exist_ok=True)
    command = scratch / "bin" / "nova-hpc"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m nova_hpc_tools.main "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(TOP),
            "HOME": str(scratch),
            "DEVSTACK": str(captures / "devstack"),
            "PLUGIN_TOP": str(TOP),
            "SCRATCH": str(scratch),
            "NOVA_HPC_CONFIGURE_ARGS": arguments,
            # The board of a DGX-2 has NVSwitches.
            "NOVA_HPC_DECLARATION": f"{declaration}\noffer_switches: false",
        },
        capture_output=True,
        text=True,
        check=False,
        # A job in the background that none waits for keeps the output open.
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _parse(path: pathlib.Path) -> dict[str, dict[str, list[str]]]:
    """What oslo.config itself reads from a file."""
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(path), sections).parse()
    return sections


@pytest.fixture
def merged(captures: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    _run(SCRIPT, captures, tmp_path, f"--xml {xml}", "limits: {hosts: 1234}")
    return tmp_path


def test_post_config_merges_the_settings_of_the_node(merged: pathlib.Path) -> None:
    nova = _parse(merged / "nova.conf")
    assert nova["DEFAULT"]["compute_driver"] == ["hpc.HpcLibvirtDriver"]
    assert nova["DEFAULT"]["my_ip"] == ["127.0.0.1"]
    assert nova["filter_scheduler"]["track_instance_changes"] == ["False"]
    specs = [json.loads(value) for value in nova["pci"]["device_spec"]]
    gpus = [spec for spec in specs if spec["hpc_role"] == "gpu"]
    assert len(gpus) == 16
    # The order of the inventory is kept, though devstack adds lines backwards.
    assert [spec["address"] for spec in gpus] == sorted(spec["address"] for spec in gpus)
    (filters,) = nova["filter_scheduler"]["enabled_filters"]
    names = filters.split(",")
    # Devstack's own extra filters stay, ours comes before the two that check.
    assert "SameHostFilter" in names
    assert names.index("HpcTopologyFilter") < names.index("NUMATopologyFilter")
    assert names.index("HpcTopologyFilter") < names.index("PciPassthroughFilter")
    placement = _parse(merged / "placement.conf")
    assert placement["placement"]["allocation_candidates_generation_strategy"] == ["breadth-first"]
    assert int(placement["placement"]["max_allocation_candidates"][0]) >= 1234
    assert placement["api"]["auth_strategy"] == ["keystone"]


def test_a_second_run_changes_nothing(merged: pathlib.Path, captures: pathlib.Path) -> None:
    before = {name: (merged / name).read_text() for name in ("nova.conf", "placement.conf")}
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    _run(SCRIPT, captures, merged, f"--xml {xml}", "limits: {hosts: 1234}")
    after = {name: _parse(merged / name) for name in before}
    for name, text in before.items():
        (merged / "before.conf").write_text(text)
        assert after[name] == _parse(merged / "before.conf")


OTHERS_ALIAS = (
    '{"name": "fpga", "vendor_id": "10ee", "product_id": "5000", "numa_policy": "socket"}'
)
OTHERS_SPEC = '{"vendor_id": "10ee", "product_id": "5000", "address": "0000:*:00.0"}'


def test_what_other_plug_ins_have_set_is_added_to(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Set by devstack's own functions, as plug-ins that come before this one do."""
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    others = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/settings",
        'iniset $NOVA_CONF filter_scheduler enabled_filters "$NOVA_FILTERS,BlazarFilter"\n'
        "iniset $NOVA_CONF filter_scheduler available_filters"
        " nova.scheduler.filters.all_filters\n"
        "iniadd_literal $NOVA_CONF filter_scheduler available_filters"
        " blazarnova.scheduler.filters.blazar_filter.BlazarFilter\n"
        "iniset $NOVA_CONF filter_scheduler weight_classes"
        " nova.scheduler.weights.ram.RAMWeigher,other.Weigher\n"
        "iniset $NOVA_CONF scheduler max_placement_results 50000\n"
        "iniset $NOVA_CONF compute cpu_dedicated_set 4-7\n"
        f"iniset $NOVA_CONF pci alias '{OTHERS_ALIAS}'\n"
        f"iniset $NOVA_CONF pci device_spec '{OTHERS_SPEC}'\n"
        "iniset $PLACEMENT_CONF placement max_allocation_candidates -1\n"
        "source $PLUGIN_TOP/devstack/settings",
    )
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    for _ in range(2):
        _run(others, captures, tmp_path, f"--xml {xml}")
        others = SCRIPT
        nova = _parse(tmp_path / "nova.conf")
        assert nova["pci"]["alias"][0] == OTHERS_ALIAS
        assert [json.loads(value)["name"] for value in nova["pci"]["alias"][1:]] == ["gpu"]
        assert nova["pci"]["device_spec"][0] == OTHERS_SPEC
        assert len(nova["pci"]["device_spec"]) == 17
        scheduler = nova["filter_scheduler"]
        (filters,) = scheduler["enabled_filters"]
        assert {"BlazarFilter", "SameHostFilter", "HpcTopologyFilter"} <= set(filters.split(","))
        assert len(filters.split(",")) == len(set(filters.split(",")))
        assert scheduler["available_filters"] == [
            "blazarnova.scheduler.filters.blazar_filter.BlazarFilter",
            "nova.scheduler.filters.all_filters",
            "scheduler_filters.hpc_topology_filter.HpcTopologyFilter",
            "scheduler_filters.hpc_fabric_filter.HpcFabricFilter",
        ]
        assert scheduler["weight_classes"] == [
            "nova.scheduler.weights.ram.RAMWeigher,other.Weigher,"
            "scheduler_filters.hpc_packing_weigher.HpcPackingWeigher,"
            "scheduler_filters.hpc_fabric_weigher.HpcFabricWeigher"
        ]
        assert nova["scheduler"]["max_placement_results"] == ["50000"]
        assert nova["compute"]["cpu_dedicated_set"] == ["4-7"]
        placement = _parse(tmp_path / "placement.conf")["placement"]
        assert placement["max_allocation_candidates"] == ["-1"]
        assert placement["allocation_candidates_generation_strategy"] == ["breadth-first"]


def test_a_machine_without_devices_is_stacked(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    declaration = "roles: [{role: gpu, vendor_id: ffff}]"
    _run(SCRIPT, captures, tmp_path, f"--xml {xml}", declaration)
    nova = _parse(tmp_path / "nova.conf")
    assert "HpcTopologyFilter" in nova["filter_scheduler"]["enabled_filters"][0]
    # It may be the controller of nodes that have some.
    assert nova["filter_scheduler"]["pci_in_placement"] == ["true"]
    # It is no node of this project's: driver and CPUs are Nova's own.
    assert nova["DEFAULT"]["compute_driver"] == ["libvirt.LibvirtDriver"]
    assert "pci" not in nova
    assert "compute" not in nova


def test_quoted_words_and_declared_lines(captures: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    role = '{"role": "disk", "class": "0108"}'
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    declaration = "roles:\n- {role: accelerator, vendor_id: 10de, class: '0302'}\nvfs: {}"
    _run(SCRIPT, captures, tmp_path, f"--xml {xml} --add-device-role '{role}'", declaration)
    nova = _parse(tmp_path / "nova.conf")
    specs = [json.loads(value) for value in nova["pci"]["device_spec"]]
    assert "accelerator" in {spec["hpc_role"] for spec in specs}
    assert "gpu" not in {spec["hpc_role"] for spec in specs}
    assert nova["hpc"]["device_role"][-1] == role


def test_install_places_the_shim_and_clean_removes_it(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    calls = tmp_path / "calls"
    recorded = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/plugin.sh stack post-config",
        f'printf "#!/bin/sh\\necho \\$* >> {calls}\\n" > $SCRATCH/bin/nova-hpc\n'
        "source $PLUGIN_TOP/devstack/plugin.sh stack install\n"
        "source $PLUGIN_TOP/devstack/plugin.sh stack extra\n"
        "source $PLUGIN_TOP/devstack/plugin.sh unstack\n"
        "source $PLUGIN_TOP/devstack/plugin.sh clean",
    )
    out = _run(recorded, captures, tmp_path, "")
    assert out.count("SETUP ") == 1
    assert calls.read_text().splitlines() == ["install-shim", "install-shim --remove"]


# -- flavors for tests, other nodes, and jobs -------------------------------------------

TEST_CONFIG = SCRIPT.replace("post-config", "test-config").replace(
    "source $PLUGIN_TOP/devstack/settings",
    "TEMPEST_CONFIG=$SCRATCH/tempest.conf\n$MORE\nsource $PLUGIN_TOP/devstack/settings",
)
OPENSTACK = """
echo "$OS_CLOUD openstack $*" >>$SCRATCH/calls
case "$1 $2" in
    "flavor list") printf 'm1.nano\\nhpc.gpu1\\n%s' "$LARGER" ;;
    "flavor show") echo "id-of-$3" ;;
esac
"""


@attrs.frozen
class Configured:
    """What was called, tempest's configuration after it, the exit status and the output."""

    calls: list[str]
    tempest: dict[str, dict[str, str]]
    status: int
    output: str


def _test_config(
    scratch: pathlib.Path, status: int, more: str = "", larger: str = "hpc.gpu2\nhpc.gpu4\n"
) -> Configured:
    folder = scratch / "bin"
    folder.mkdir()
    for name, text in {
        "nova-hpc": f'echo "$OS_CLOUD nova-hpc $*" >>$SCRATCH/calls; exit {status}',
        "openstack": OPENSTACK,
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    tempest = scratch / "tempest.conf"
    tempest.write_text("[compute]\nflavor_ref = 42\nflavor_ref_alt = 84\n")
    captures = pathlib.Path(os.environ["NOVA_HPC_TEST_DATA"])
    done = subprocess.run(
        ["bash", "-c", TEST_CONFIG.replace("$MORE", more)],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "DEVSTACK": str(captures / "devstack"),
            "PLUGIN_TOP": str(TOP),
            "SCRATCH": str(scratch),
            "HOME": str(scratch),
            "LARGER": larger,
        },
        check=False,
        capture_output=True,
        text=True,
    )
    calls = scratch / "calls"
    parser = configparser.ConfigParser()
    parser.read(tempest)
    return Configured(
        calls.read_text().splitlines() if calls.exists() else [],
        {name: dict(parser[name]) for name in parser.sections()},
        done.returncode,
        done.stdout + done.stderr,
    )


NO_DEVICES = 3


@pytest.mark.usefixtures("captures")
def test_tempest_gets_two_flavors_and_no_move_of_a_running_guest(tmp_path: pathlib.Path) -> None:
    done = _test_config(tmp_path, 0)
    assert done.status == 0, done.output
    assert done.calls[0] == ("devstack-admin nova-hpc flavor create --family hpc --disk 5 --yes")
    assert done.tempest["compute"] == {
        "flavor_ref": "id-of-hpc.gpu1",
        "flavor_ref_alt": "id-of-hpc.gpu2",
    }
    assert done.tempest["compute-feature-enabled"] == {
        "live_migration": "False",
        "suspend": "False",
    }
    assert done.tempest["nova_hpc"] == {"flavor": "hpc.gpu1", "largest_flavor": "hpc.gpu4"}


@pytest.mark.usefixtures("captures")
def test_a_second_node_makes_no_flavors(tmp_path: pathlib.Path) -> None:
    """It has no database of Nova's API: stack.sh of the subnode sample ended there."""
    api = "function is_service_enabled { [[ $1 != n-api ]]; }"
    done = _test_config(tmp_path, 2, more=api)
    assert (done.status, done.calls, done.tempest["compute"]) == (
        *(0, []),
        {"flavor_ref": "42", "flavor_ref_alt": "84"},
    ), done.output


@pytest.mark.usefixtures("captures")
def test_tempest_does_not_log_in_to_a_guest_that_does_not_run(tmp_path: pathlib.Path) -> None:
    done = _test_config(tmp_path, 0, more="NOVA_HPC_DESCRIBED_HOST=gpu1")
    assert done.tempest["validation"] == {"run_validation": "False"}


@pytest.mark.usefixtures("captures")
def test_nothing_is_resized_where_there_is_one_size(tmp_path: pathlib.Path) -> None:
    done = _test_config(tmp_path, 0, larger="")
    assert done.tempest["compute"]["flavor_ref_alt"] == "id-of-hpc.gpu1"
    assert done.tempest["compute-feature-enabled"]["resize"] == "False"


@pytest.mark.usefixtures("captures")
def test_without_devices_tempest_keeps_its_flavor(tmp_path: pathlib.Path) -> None:
    done = _test_config(tmp_path, NO_DEVICES)
    assert (done.status, len(done.calls)) == (0, 1), done.output
    assert done.tempest == {"compute": {"flavor_ref": "42", "flavor_ref_alt": "84"}}


@pytest.mark.usefixtures("captures")
@pytest.mark.parametrize("status", [1, 2, 127])
def test_another_failure_ends_the_stack(tmp_path: pathlib.Path, status: int) -> None:
    done = _test_config(tmp_path, status)
    assert done.status != 0
    assert f"nova-hpc flavor create has failed ({status})" in done.output
    assert done.tempest["compute"]["flavor_ref"] == "42"


@pytest.mark.usefixtures("captures")
def test_a_family_that_local_conf_names_has_to_have_devices(tmp_path: pathlib.Path) -> None:
    done = _test_config(tmp_path, NO_DEVICES, more="NOVA_HPC_TEST_FAMILY=hpc")
    assert done.status != 0
    assert "no flavor of the family hpc for tempest" in done.output


@pytest.mark.usefixtures("captures")
def test_no_flavors_where_none_are_wanted(tmp_path: pathlib.Path) -> None:
    assert _test_config(tmp_path, 0, more='NOVA_HPC_TEST_FAMILY=""').calls == []


def test_whitebox_is_told_the_hardware(captures: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Its own plug-in writes the variables as they are, before or after this one."""
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    script = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/settings",
        "DEVSTACK_PLUGINS=nova-hpc,whitebox-tempest-plugin\nsource $PLUGIN_TOP/devstack/settings",
    ).replace("post-config", "extra")
    group = "whitebox-hardware"
    script += f"""
    iniset $SCRATCH/tempest.conf {group} cpu_topology "$WHITEBOX_CPU_TOPOLOGY"
    iniset $SCRATCH/tempest.conf {group} configured_hugepage_sizes "$WHITEBOX_CONFIGURED_HUGEPAGES"
    """
    _run(script, captures, tmp_path, "")
    # As the plug-in declares them.
    conf = cfg.ConfigOpts()
    conf.register_opts(
        [
            cfg.Opt("cpu_topology", type=types.Dict(types.List(types.Integer(), bounds=True))),
            cfg.Opt("configured_hugepage_sizes", type=types.List(types.Integer()), default=[]),
        ],
        group=group,
    )
    conf(["--config-file", str(tmp_path / "tempest.conf")])
    nodes = pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")
    assert {f"node{number}" for number in conf[group].cpu_topology} == {each.name for each in nodes}
    assert all(conf[group].cpu_topology.values())
    pages = pathlib.Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB/nr_hugepages")
    assert set(conf[group].configured_hugepage_sizes) == {
        int(each.parent.name.removeprefix("hugepages-").removesuffix("kB"))
        for each in pages
        if int(each.read_text())
    }


# -- beside devstack's own work ----------------------------------------------------------

#: devstack writes fourteen lines of Neutron's into nova.conf, each by a program of its own.
IN_BACKGROUND = """
DEVSTACK_PARALLEL=$PARALLEL
async_init
function configure_neutron_nova {
    local number
    for number in $(seq 14); do
        sleep 0.1
        iniset $NOVA_CONF neutron option$number value
    done
}
mv $SCRATCH/bin/nova-hpc $SCRATCH/bin/nova-hpc.real
cat > $SCRATCH/bin/nova-hpc <<'END'
#!/bin/sh
grep -q '^option14' $SCRATCH/nova.conf || echo "nova.conf is being written" >&2
exec $SCRATCH/bin/nova-hpc.real "$@"
END
chmod +x $SCRATCH/bin/nova-hpc
async_runfunc configure_neutron_nova
source $PLUGIN_TOP/devstack/settings
"""


@pytest.mark.parametrize("parallel", ["True", "False"])
def test_nova_conf_is_not_written_by_two_at_a_time(
    captures: pathlib.Path, tmp_path: pathlib.Path, parallel: str
) -> None:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    script = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/settings", IN_BACKGROUND.replace("$PARALLEL", parallel)
    )
    # As stack.sh does after the phase.
    script += "async_wait configure_neutron_nova\n"
    out = _run(script, captures, tmp_path, f"--xml {captures / 'hwloc' / 'nvidiaDGX2.xml'}")
    assert "nova.conf is being written" not in out
    assert len(_parse(tmp_path / "nova.conf")["neutron"]) == 14


def test_a_log_shows_the_commands_of_a_phase(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    traced = SCRIPT.replace("stack post-config", "stack install").replace(
        "source $PLUGIN_TOP/devstack/plugin",
        "function is_service_enabled { return 1; }\nset -x\nsource $PLUGIN_TOP/devstack/plugin",
    )
    out = _run(traced.replace("set -e", "set -e; exec 2>&1"), captures, tmp_path, "")
    assert "+ nova_hpc_install" in out
    assert f"+ setup_develop {TOP}" in out


def test_no_wheel_is_asked_of_an_index(captures: pathlib.Path, tmp_path: pathlib.Path) -> None:
    script = SCRIPT.replace("stack post-config", "stack install").replace(
        "source $PLUGIN_TOP/devstack/plugin",
        "function is_service_enabled { return 1; }\nsource $PLUGIN_TOP/devstack/plugin",
    )
    words = _run(script, captures, tmp_path, "").replace("SETUP", "PIP -e").split("PIP ")[1:]
    folders = [[place for place in line.split() if place != "-e"] for line in words]
    there: set[str] = set()
    wheels = read_wheels(TOP)
    names = {str(TOP / wheel.folder): wheel.name for wheel in wheels.values()}
    for together in folders:
        there |= {names[os.path.normpath(place)] for place in together}
        for place in together:
            assert list_required_wheels(names[os.path.normpath(place)], wheels) <= there
    ends = ("client", "common", "guest", "tools")
    assert there == {"nova-hpc", *(f"nova-hpc-{end}" for end in ends)}


def test_settings_of_the_plug_in_name_it(captures: pathlib.Path, tmp_path: pathlib.Path) -> None:
    named = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/settings",
        'function define_plugin { echo "DEFINED $*"; }\n'
        "TEMPEST_PLUGINS=/opt/other\nsource $PLUGIN_TOP/devstack/settings\n"
        'source $PLUGIN_TOP/devstack/settings\necho "PLUGINS $TEMPEST_PLUGINS"',
    ).replace("stack post-config", "unstack")
    out = _run(named, captures, tmp_path, "")
    assert "DEFINED nova-hpc\n" in out
    # Read twice, it is there once.
    assert f"PLUGINS /opt/other {TOP}/devstack/tempest\n" in out
    assert (TOP / "devstack/tempest/pyproject.toml").is_file()


def test_networks_become_partitions(captures: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    ml2 = "[ml2]\nmechanism_drivers = ovn\ntype_drivers = local,vlan,geneve\n"
    (tmp_path / "ml2_conf.ini").write_text(ml2)
    (tmp_path / "bin").mkdir()
    migrate = tmp_path / "bin" / "neutron-db-manage"
    migrate.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/migrated\n')
    migrate.chmod(0o755)
    script = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/settings",
        "NOVA_HPC_PARTITIONS=True\nNEUTRON_CONF=$SCRATCH/neutron.conf\n"
        "NOVA_HPC_FABRIC_AGENT_CONF=$SCRATCH/agent.conf\n"
        # As devstack has it: a path below the root.
        "Q_PLUGIN_CONF_FILE=${SCRATCH#/}/ml2_conf.ini\nsource $PLUGIN_TOP/devstack/settings",
    )
    for _ in range(2):
        _run(script, captures, tmp_path, f"--xml {captures / 'hwloc' / 'nvidiaDGX2.xml'}")
        ml2 = _parse(tmp_path / "ml2_conf.ini")
        assert ml2["ml2"]["mechanism_drivers"] == ["ovn,hpc_partitions"]
        assert ml2["ml2"]["type_drivers"] == ["local,vlan,geneve"]
        assert ml2["ml2_type_vlan"]["network_vlan_ranges"] == ["ibrail0:256:2047"]
    neutron = _parse(tmp_path / "neutron.conf")["hpc_partitions"]
    assert neutron["physical_networks"] == ["ibrail0:main"]
    assert _parse(tmp_path / "agent.conf")["hpc_fabric_agent"]["fabric"] == ["main"]
    assert "--subproject nova-hpc upgrade heads" in (tmp_path / "migrated").read_text()


def test_a_simulated_fabric_is_written_and_run(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    script = """
    set -e
    TOP_DIR=$DEVSTACK
    DATA_DIR=$SCRATCH
    SERVICE_TIMEOUT=5
    source $DEVSTACK/functions
    function enable_service { echo enable "$@"; }
    function run_process { echo run "$@"; }
    function install_package { echo install "$@"; }
    function pip_install { :; }
    function get_python_exec_prefix { dirname $(command -v python3); }
    function die { echo die "$@"; exit 1; }
    NOVA_HPC_SIMULATED_FABRIC=gpu1
    source $PLUGIN_TOP/devstack/settings
    source $PLUGIN_TOP/devstack/described/functions
    nova_hpc_install_fabric
    mkdir -p $NOVA_HPC_FABRIC_TREE/log
    echo SUBNET UP > $NOVA_HPC_FABRIC_TREE/log/opensm.own.log
    nova_hpc_start_fabric
    echo $NOVA_HPC_PARTITIONS
    cat $NOVA_HPC_PORT_INVENTORY $NOVA_HPC_FABRIC_AGENT_CONF
    """
    told = _run(script, captures, tmp_path, "")
    for text in (
        "enable hpc-fabric hpc-fabric-agent",
        "install ibsim-utils opensm",
        f"fabric.py {tmp_path}/nova-hpc-fabric run",
        "True",
        "host: gpu1",
        "simulated_host = manager",
    ):
        assert text in told


@pytest.mark.parametrize("own", ["cpu_shared_set", "cpu_dedicated_set", None])
def test_servers_get_dedicated_cpus(
    captures: pathlib.Path, tmp_path: pathlib.Path, own: str | None
) -> None:
    """A set that local.conf has stays, and where there is none, one is written."""
    compute = f"[compute]\n{own} = 4-7\n" if own else ""
    (tmp_path / "nova.conf").write_text(NOVA_CONF + compute)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    _run(SCRIPT, captures, tmp_path, f"--xml {captures / 'hwloc' / 'nvidiaDGX2.xml'}")
    sets = _parse(tmp_path / "nova.conf")["compute"]
    if own:
        assert sets == {own: ["4-7"]}
    else:
        assert set(sets) == {"cpu_shared_set", "cpu_dedicated_set"}


SAMPLES = ["local.conf.sample", "local.conf.subnode.sample"]


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_samples_are_what_devstack_reads(sample: str) -> None:
    text = (TOP / "devstack" / sample).read_text()
    assert "[[local|localrc]]" in text
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    script = "\n".join(["function enable_plugin { :; }", "set -e", *lines])
    assert subprocess.run(["bash", "-c", script], check=False).returncode == 0


def _ask_devstack(captures: pathlib.Path, sample: str, question: str) -> str:
    """What devstack's own functions make of a sample."""
    text = (TOP / "devstack" / sample).read_text()
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    script = "\n".join(["source $DEVSTACK/functions", "DEST=/opt/stack", *lines, question])
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], "DEVSTACK": str(captures / "devstack")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_samples_and_the_pages_name_the_branch(captures: pathlib.Path, sample: str) -> None:
    """devstack's default is master, a branch that the project does not have."""
    assert _ask_devstack(captures, sample, "echo ${GITBRANCH[nova-hpc]}") == "main"
    page = (TOP / "docs/source/install/devstack.rst").read_text()
    named = [line.split() for line in page.splitlines() if "enable_plugin nova-hpc" in line]
    assert named
    assert {words[-1] for words in named} == {"main"}


def test_the_subnode_has_no_service_that_ovn_refuses(captures: pathlib.Path) -> None:
    """The names are those of devstack's ovn_sanity_check, which tests/devstack calls itself."""
    sample = "local.conf.subnode.sample"
    refused = "q-agt neutron-agent q-l3 neutron-l3"
    assert _ask_devstack(captures, sample, f"is_service_enabled {refused} && echo yes") == ""
    needed = ("n-cpu", "placement-client", "ovn-controller", "ovs-vswitchd", "ovsdb-server")
    for service in needed:
        assert _ask_devstack(captures, sample, f"is_service_enabled {service} && echo yes") == "yes"
