# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc configure`` writes, read by Nova's and Placement's own code."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import nova.conf
import os_resource_classes
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from nova import exception, objects
from nova.compute import pci_placement_translator
from nova.conf import compute, pci, scheduler, workarounds
from nova.pci import request as pci_request
from nova.pci import stats as pci_stats
from nova.pci import utils as pci_utils
from nova.pci import whitelist
from nova.virt import hardware
from oslo_config import cfg
from oslo_config import fixture as config_fixture
from placement.conf import placement as placement_options
from placement.conf import workarounds as placement_workarounds

from nova_hpc import conf as hpc_conf
from nova_hpc.topology import roles, sysfs
from nova_hpc.wire import tags
from nova_hpc_tools.site import configured, declaration, device_spec, lstopo, settings, spec_entries
from tests.nodes.catalogue import NODES
from tests.unit.adopt.machines import ROLES, adapter, gpu, machines, node

CONF = nova.conf.CONF

#: As the in-process tests of Nova do, without Nova's test class.
several = hypothesis_settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def nova_objects():
    objects.register_all()


def nova_view(function):
    """A device as Nova's libvirt driver describes it."""
    return {
        "address": function.address,
        "vendor_id": function.vendor_id,
        "product_id": function.product_id,
        "parent_addr": function.physical_function,
        "dev_type": function.dev_type,
        "numa_node": function.numa_node,
        "label": "",
        "status": "available",
        "compute_node_id": 1,
    }


def nova_whitelist(machine, lines):
    """Nova's own matcher, on a machine that has *machine*'s functions."""

    def is_physical_function(domain, bus, slot, function):
        found = machine.function(f"{domain}:{bus}:{slot}.{function}")
        return found is not None and found.dev_type == "type-PF"

    with mock.patch.object(pci_utils, "is_physical_function", is_physical_function):
        return whitelist.Whitelist(list(lines))


def readable(machine):
    """The functions that libvirt can describe; Nova skips 32-bit domains."""
    return [f for f in machine.functions if f.vendor_id and f.product_id]


def assert_nova_sees_what_was_meant(machine, spec):
    matcher = nova_whitelist(machine, spec.lines())
    offered = {address: offer for offer in spec.offers for address in offer.functions}
    stats = pci_stats.PciDeviceStats(objects.NUMATopology(cells=[]), dev_filter=matcher)
    view = pci_placement_translator.PlacementView("node", [])
    for function in readable(machine):
        try:
            entry = matcher.device_assignable(nova_view(function))
        except exception.PciConfigInvalidSpec:
            entry = None
        offer = offered.get(function.address)
        assert (entry is None) == (offer is None), function.address
        if entry is not None:
            assert tags.parse_tags(entry.get_tags()) == offer.tags
            assert entry.get_tags()["managed"] == "false"
            device = objects.PciDevice.create(None, nova_view(function))
            stats.add_device(device)
            view.process_dev(device, entry)
    assert {pool["address"]: pool["count"] for pool in stats.pools} == {
        offer.provider: len(offer.functions) for offer in spec.offers
    }
    for pool in stats.pools:
        mine = next(offer for offer in spec.offers if offer.provider == pool["address"])
        assert tags.parse_tags(pool) == mine.tags
    assert {rp.name: (rp.total, rp.resource_class) for rp in view.rps.values()} == {
        f"node_{offer.provider.upper()}": (
            len(offer.functions),
            offer.tags.resource_class or f"CUSTOM_PCI_{offer.vendor_id}_{offer.product_id}".upper(),
        )
        for offer in spec.offers
    }


@several
@given(machines())
def test_nova_offers_exactly_what_was_meant(machine):
    assert_nova_sees_what_was_meant(machine, device_spec.build_device_spec(machine, ROLES))
    whole = declaration.Declaration(
        whole=frozenset({declaration.EVERY}),
        resource_classes={"vf": "CUSTOM_VF", "gpu": "PGPU"},
        traits={"gpu": frozenset({"CUSTOM_HBM3"})},
    )
    assert_nova_sees_what_was_meant(machine, device_spec.build_device_spec(machine, ROLES, whole))


def test_devices_of_ports_are_not_in_placement():
    machine = node(*adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"]))
    terms = declaration.Declaration(networks={"vf": "physnet1"})
    matcher = nova_whitelist(machine, device_spec.build_device_spec(machine, ROLES, terms).lines())
    stats = pci_stats.PciDeviceStats(objects.NUMATopology(cells=[]), dev_filter=matcher)
    view = pci_placement_translator.PlacementView("node", [])
    for function in machine.functions:
        device = objects.PciDevice.create(None, nova_view(function))
        stats.add_device(device)
        entry = matcher.device_assignable(nova_view(function))
        if entry is not None:
            view.process_dev(device, entry)
    assert view.rps == {}
    (pool,) = stats.pools
    assert (pool["physical_network"], pool["hpc_role"], pool["count"]) == ("physnet1", "vf", 2)


@pytest.mark.parametrize("name", sorted(NODES))
def test_the_synthetic_nodes(name, synthetic):
    machine = sysfs.read_sysfs_node(synthetic(name))
    spec = device_spec.build_device_spec(
        machine, roles.parse_roles(list(hpc_conf.roles.DEFAULT_ROLES))
    )
    assert bool(spec.offers) == (name != "bare")
    assert_nova_sees_what_was_meant(machine, spec)


def test_the_captures(captures):
    table = roles.parse_roles(
        [
            *hpc_conf.roles.DEFAULT_ROLES,
            '{"role": "vf", "class": "02*", "dev_type": "type-VF"}',
            '{"role": "nic", "class": "02*"}',
        ]
    )
    offers = 0
    for path in sorted((captures / "hwloc").glob("*.xml")):
        machine = lstopo.read_lstopo_file(path)
        spec = device_spec.build_device_spec(machine, table)
        offers += len(spec.offers)
        assert_nova_sees_what_was_meant(machine, spec)
    assert offers > 16


@pytest.mark.parametrize("offered", [False, True])
def test_switches_go_to_a_server_only_where_that_is_asked_for(offered):
    table = roles.parse_roles(list(hpc_conf.roles.DEFAULT_ROLES))
    switch = gpu("0000:c0:00.0", class_code="068000", product_id="22a3")
    machine = node(gpu("0000:19:00.0"), switch)
    spec = device_spec.build_device_spec(machine, table, declaration.Declaration(switches=offered))
    assert_nova_sees_what_was_meant(machine, spec)
    entry = nova_whitelist(machine, spec.lines()).device_assignable(nova_view(switch))
    assert (entry is not None) is offered


def test_virtual_functions_switched_on_later_belong_to_their_entry():
    before = node(*adapter("0000:1a:00.0", ["0000:1a:00.1"]))
    after = node(*adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"]))
    matcher = nova_whitelist(before, device_spec.build_device_spec(before, ROLES).lines())
    matched = [f.address for f in after.functions if matcher.device_assignable(nova_view(f))]
    assert matched == ["0000:1a:00.1", "0000:1a:00.2"]


# --- what Nova does, and why the entries are as they are -----------------------


def test_an_exact_address_of_a_physical_function_takes_its_virtual_functions():
    machine = node(*adapter("0000:1a:00.0", ["0000:1a:00.1"], vf_product="1021"))
    pattern = {"domain": "0000", "bus": "1a", "slot": "00", "function": "0"}
    for address in ("0000:1a:00.0", pattern):
        matcher = nova_whitelist(machine, [json.dumps({"address": address})])
        for function in machine.functions:
            assert matcher.device_assignable(nova_view(function)) is not None
    exact = nova_whitelist(machine, [json.dumps({"address": {**pattern, "function": "[0]"}})])
    assert [bool(exact.device_assignable(nova_view(f))) for f in machine.functions] == [True, False]


def test_nova_has_no_form_for_32_bit_domains():
    with pytest.raises(exception.PciConfigInvalidSpec):
        whitelist.Whitelist(['{"address": "10000:01:00.0"}'])
    far = gpu("10000:01:00.0")
    for entry in ('{"address": {"domain": "10000"}}', '{"vendor_id": "10de"}'):
        matcher = nova_whitelist(node(far), [entry])
        with pytest.raises(exception.PciConfigInvalidSpec):
            matcher.device_assignable(nova_view(far))


@pytest.mark.parametrize("name", [*sorted(declaration.STANDARD_CLASSES), "CUSTOM_H100"])
def test_resource_classes_stay_as_they_are(name):
    assert declaration.check_resource_class(name) == name
    assert pci_placement_translator.get_resource_class(name, "10de", "2330") == name
    assert name.startswith("CUSTOM_") or name in os_resource_classes.STANDARDS


def test_traits_stay_as_they_are():
    assert pci_placement_translator.get_traits(declaration.check_trait("CUSTOM_HBM3")) == {
        "CUSTOM_HBM3"
    }


# --- the files -----------------------------------------------------------------

MACHINE = node(
    gpu("0000:19:00.0", total_vfs=16),
    gpu("0000:1b:00.0", product_id="20b5"),
    *adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"]),
)


@pytest.fixture
def written(tmp_path):
    """The files of one machine, as ``--config-dir`` of a service finds them."""

    def write(machine=MACHINE, terms=None, **options):
        spec = device_spec.build_device_spec(machine, ROLES, terms)
        result = settings.render_settings(machine, spec, settings.SettingsOptions(**options))
        for part, text in result.files.items():
            Path(tmp_path, settings.file_name(part)).write_text(text, encoding="utf-8")
        return tmp_path

    return write


def load(folder, *parts, register=()):
    """Read some of the files the way a service does."""
    options = cfg.ConfigOpts()
    for module in register:
        module.register_opts(options)
    hpc_conf.register_all_options(options)
    files = [str(folder / settings.file_name(part)) for part in parts]
    options([], default_config_files=files, default_config_dirs=[])
    return options


NOVA = (compute, pci, scheduler, workarounds)
PLACEMENT = (placement_options, placement_workarounds)


@pytest.mark.parametrize("part", settings.PARTS)
def test_every_option_exists(written, part):
    register = PLACEMENT if part == settings.PLACEMENT else NOVA
    folder = written(device_role=['{"role": "gpu", "class": "03*"}'])
    options = load(folder, part, register=register)
    parser = cfg.ConfigParser(str(folder / settings.file_name(part)), {})
    parser.parse()
    seen = 0
    for group, pairs in parser.sections.items():
        for name in pairs:
            section = options if group == "DEFAULT" else getattr(options, group)
            value = getattr(section, name)
            assert value not in (None, [], "")
            seen += 1
    assert seen >= 2


def test_the_controller_has_the_filters_in_order(written):
    folder = written(hosts=2500)
    options = load(folder, settings.COMMON, settings.CONTROLLER, register=NOVA)
    enabled = options.filter_scheduler.enabled_filters
    stock = load(folder, register=NOVA).filter_scheduler
    assert list(settings.NOVA_FILTERS) == stock.enabled_filters
    assert enabled == [
        *stock.enabled_filters,
        "HpcTopologyFilter",
        "NUMATopologyFilter",
        "PciPassthroughFilter",
        "HpcFabricFilter",
    ]
    assert options.filter_scheduler.available_filters[:-2] == stock.available_filters
    assert options.filter_scheduler.weight_classes[:-2] == stock.weight_classes
    assert options.filter_scheduler.pci_in_placement is True
    assert options.scheduler.max_placement_results == 2501
    assert options.workarounds.disable_fallback_pcpu_query is True
    default = load(folder, register=NOVA).scheduler.max_placement_results
    assert default == settings.FEWEST_CANDIDATES


def test_the_filter_and_the_weigher_can_be_imported(written):
    folder = written()
    options = load(folder, settings.CONTROLLER, register=NOVA).filter_scheduler
    from nova.scheduler import filters, weights

    loaded = filters.HostFilterHandler().get_matching_classes(options.available_filters)
    assert set(options.enabled_filters) <= {each.__name__ for each in loaded}
    loaded = weights.HostWeightHandler().get_matching_classes(options.weight_classes)
    assert "HpcPackingWeigher" in {each.__name__ for each in loaded}


def test_placement_reaches_every_host(written):
    options = load(written(hosts=2500), settings.PLACEMENT, register=PLACEMENT)
    assert options.placement.allocation_candidates_generation_strategy == "breadth-first"
    assert options.placement.max_allocation_candidates == 2501
    assert options.workarounds.optimize_for_wide_provider_trees is True


@pytest.mark.parametrize(
    "terms",
    [
        None,
        declaration.Declaration(resource_classes={"gpu": "CUSTOM_GPU", "vf": "CUSTOM_VF"}),
    ],
)
@pytest.mark.parametrize("product_names", [False, True])
def test_the_aliases_name_every_offer(written, terms, product_names):
    """By Nova's own reading, each alias matches the pools of its devices."""
    folder = written(terms=terms, product_names=product_names)
    options = load(folder, settings.COMMON, register=NOVA)
    with config_fixture.Config(CONF) as fixture:
        fixture.config(alias=options.pci.alias, group="pci")
        fixture.config(pci_in_placement=True, group="filter_scheduler")
        getattr(pci_request.get_alias_from_config, "cache_clear", lambda: None)()
        aliases = pci_request.get_alias_from_config()
    getattr(pci_request.get_alias_from_config, "cache_clear", lambda: None)()
    spec = device_spec.build_device_spec(MACHINE, ROLES, terms)
    covered = set()
    for name, (_policy, specs) in aliases.items():
        assert len(specs) == 1
        for offer in spec.offers:
            classes = specs[0].get("resource_class", offer.tags.resource_class)
            if (
                specs[0]["dev_type"] == offer.dev_type
                and classes == offer.tags.resource_class
                and specs[0].get("product_id", offer.product_id) == offer.product_id
                and specs[0].get("vendor_id", offer.vendor_id) == offer.vendor_id
            ):
                assert name.startswith(offer.tags.role)
                covered.add(offer.provider)
    assert covered == {offer.provider for offer in spec.offers}


def test_all_files_in_one_directory(written):
    """A machine with every service: nothing is said twice."""
    folder = written()
    options = load(folder, *settings.PARTS[:3], register=NOVA)
    assert len(options.pci.alias) == len({json.loads(a)["name"] for a in options.pci.alias})
    assert options.compute_driver == settings.DRIVER
    assert options.pci.report_in_placement is True
    assert options.pci.device_spec == list(device_spec.build_device_spec(MACHINE, ROLES).lines())


def test_the_cpus_of_this_machine(written):
    machine = sysfs.read_sysfs_node(Path("/"))
    options = load(written(machine, housekeeping_cores=1), settings.COMPUTE, register=NOVA)
    with config_fixture.Config(CONF) as fixture:
        for name in ("cpu_shared_set", "cpu_dedicated_set"):
            fixture.config(**{name: getattr(options.compute, name)}, group="compute")
        shared = hardware.get_cpu_shared_set() or set()
        dedicated = hardware.get_cpu_dedicated_set() or set()
    assert dedicated
    assert not shared & dedicated
    assert shared | dedicated == machine.cpus


# --- what is configured already, as Nova understands it ---------------------------


def nova_aliases(lines):
    with config_fixture.Config(CONF) as fixture:
        fixture.config(alias=lines, group="pci")
        fixture.config(pci_in_placement=True, group="filter_scheduler")
        getattr(pci_request.get_alias_from_config, "cache_clear", lambda: None)()
        try:
            return pci_request.get_alias_from_config()
        finally:
            getattr(pci_request.get_alias_from_config, "cache_clear", lambda: None)()


@pytest.mark.parametrize("policy", [{}, {"numa_policy": "preferred"}])
def test_nova_takes_the_aliases_of_an_operator_and_ours(policy):
    spec = device_spec.build_device_spec(MACHINE, ROLES)
    ours = settings.render_settings(MACHINE, spec, settings.SettingsOptions()).files[
        settings.COMMON
    ]
    lines = [line.removeprefix("alias = ") for line in ours.splitlines() if "alias = " in line]
    theirs = [json.dumps({**json.loads(lines[0]), **policy})]
    with pytest.raises(exception.PciInvalidAlias):
        nova_aliases([*theirs, *lines])
    before = configured.Configured(other_aliases=tuple(theirs))
    result = settings.render_settings(MACHINE, spec, settings.SettingsOptions(), before=before)
    text = result.files[settings.COMMON]
    added = [line.removeprefix("alias = ") for line in text.splitlines() if "alias = " in line]
    assert result.losses[settings.COMMON] == []
    assert set(nova_aliases([*theirs, *added])) == {json.loads(line)["name"] for line in lines}


cpu_ranges = st.tuples(st.integers(0, 70), st.integers(0, 9)).map(
    lambda pair: f"{pair[0]}-{pair[0] + pair[1]}" if pair[1] else str(pair[0])
)


@given(st.lists(st.tuples(st.sampled_from(["", "^", " "]), cpu_ranges), min_size=1, max_size=5))
def test_sets_of_cpus_are_read_as_nova_does(parts):
    # Nova takes single CPUs, no ranges, after ^.
    text = ",".join(
        mark + (ranges.partition("-")[0] if mark == "^" else ranges) for mark, ranges in parts
    )
    assert configured.parse_cpus(text) == hardware.parse_cpu_spec(text)


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "vendor_id": st.sampled_from(["10de", "15b3", "*"]),
        "product_id": st.sampled_from(["2330", "1021", "101E", "*"]),
        "address": st.one_of(
            st.sampled_from(
                ["0000:00:00.0", "0000:40:00.0", "*:40:*.*", "40:00.", "*:*:*.1", "0000:40:01.*"]
            ),
            st.fixed_dictionaries(
                {},
                optional={
                    "domain": st.just("0000"),
                    "bus": st.sampled_from(["40", "4.", "[04]0", "0[0-2]"]),
                    "slot": st.sampled_from(["00", "0[01]", ".*"]),
                    "function": st.sampled_from(["0", "[1-7]", "[0]"]),
                },
            ),
        ),
    },
).filter(bool)


@several
@given(machines(), ENTRIES)
def test_what_an_entry_names_is_what_nova_thinks(machine, entry):
    """Nobody's device is taken for one that is passed through already, or the reverse."""
    functions = readable(machine)
    matcher = nova_whitelist(machine, [json.dumps(entry)])
    for function in functions:
        matched = matcher.device_assignable(nova_view(function)) is not None
        assert spec_entries.entry_matches(entry, function) == matched, (entry, function.address)
