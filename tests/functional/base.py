# SPDX-License-Identifier: Apache-2.0
"""The base of this project's functional tests: Nova's own stack in one process.

API, conductor, scheduler, a real Placement and real compute managers with the
real libvirt driver code run in the test process; only libvirt itself and the
other services are Nova's fakes. The classes that Nova ships for its own PCI
tests do the work, so the same file runs on every supported release.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import nova.virt
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests.functional import fixtures as nova_fixtures
from nova.tests.functional.api import client  # noqa: F401  tests use it from here
from nova.tests.functional.libvirt import test_pci_sriov_servers
from oslo_config import cfg
from oslo_messaging.rpc import client as rpc_client
from oslo_serialization import jsonutils

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import kept_hosts, log_throttle, profile
from nova_hpc.from_nova.contention import CONTENTION
from nova_hpc.wire import tags
from nova_hpc_common.level import Level, Location, common_level
from nova_hpc_tools.readers import snapshot
from scheduler_filters import hpc_topology_filter
from tests.functional import fixtures

CONF = cfg.CONF

TOPOLOGY_FILTER = "scheduler_filters.hpc_topology_filter.HpcTopologyFilter"
PACKING_WEIGHER = "scheduler_filters.hpc_packing_weigher.HpcPackingWeigher"
STOCK_DRIVER = "libvirt.LibvirtDriver"
HPC_DRIVER = "hpc.HpcLibvirtDriver"


def put_shim_in_place() -> None:
    """Make ``nova.virt.hpc`` importable, as an installation would."""
    import virt_driver_patches

    shim = os.path.join(os.path.dirname(virt_driver_patches.__file__), "shim")  # noqa: PTH118,PTH120
    if shim not in nova.virt.__path__:
        nova.virt.__path__.append(shim)


class HpcServersTest(test_pci_sriov_servers._PCIServersTestBase):
    """Servers with ``hpc:`` flavors on hosts of a given shape."""

    microversion = "latest"
    ADMIN_API = True

    #: Set by every host before it starts.
    PCI_DEVICE_SPEC: Sequence[str] = ()
    PCI_ALIAS: Sequence[str] = [jsonutils.dumps(each) for each in fixtures.CLASS_ALIASES]

    #: The driver of the compute services.
    DRIVER = STOCK_DRIVER
    #: How many times longer than Nova's own tests these wait.
    PATIENCE = 12
    #: Placement's limit of allocation candidates: as many as there are hosts.
    CANDIDATES = 100
    #: Whether the scheduler has the filter and the weigher.
    WITH_FILTER = True
    #: Filters of ours and Nova's, in their order, after Nova's defaults.
    FILTERS: Sequence[str] = ("HpcTopologyFilter", "NUMATopologyFilter", "PciPassthroughFilter")

    def setUp(self) -> None:
        hpc_conf.register_all_options(CONF)
        self.flags(pci_in_placement=True, group="filter_scheduler")
        self.flags(disable_fallback_pcpu_query=True, group="workarounds")
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        # That Nova's answers follow its schemas is what its own tests check.
        self.flags(response_validation="ignore", group="api")
        # A slow machine is no failure. The option is registered with the first client. Three
        # minutes: a call that is lost is sent again, so its test goes on after so long.
        CONF.register_opts(rpc_client._client_opts)
        self.flags(rpc_response_timeout=180)
        if self.DRIVER == HPC_DRIVER:
            put_shim_in_place()
        self.shapes: dict[str, fixtures.Shape] = {}
        #: Nodes with Nova's own driver, of which the scheduler hears nothing.
        self.silent: set[str] = set()
        if self.DRIVER == STOCK_DRIVER:
            self.useFixture(fixtures.SaidOfStock(self.silent))
        super().setUp()
        # Nova's fixtures have set their own.
        self.flags(rpc_response_timeout=180)
        self.flags(report_in_placement=True, group="pci")
        placement = self.placement_fixture.conf_fixture
        placement.config(group="workarounds", optimize_for_wide_provider_trees=True)
        placement.config(
            group="placement",
            allocation_candidates_generation_strategy="breadth-first",
            # Without a limit Placement makes all candidates there are before
            # it returns some: four of 16 devices take it minutes.
            max_allocation_candidates=self.CANDIDATES,
        )
        self.flags(max_placement_results=self.CANDIDATES, group="scheduler")
        # Tests of the watch look themselves.
        self.flags(watch_interval=0.0, group="hpc")
        # All of these tests work with hosts that are kept: this database keeps microseconds,
        # so no record has to be old.
        self.useFixture(fixtures.fixtures.MockPatchObject(kept_hosts, "_SETTLED", 0.0))
        kept_hosts.KEPT_HOSTS.clear()
        # What an earlier test has lost is nothing to this one.
        self.useFixture(fixtures.fixtures.MockPatchObject(CONTENTION, "_hosts", 1.0))
        self.domains = self.useFixture(fixtures.DomainRecorder())
        self.useFixture(fixtures.HonestDomains())
        # The flavors of an earlier test are no measure of this one's damage.
        # Nor are they of what explain reads, in a process of its own in a cloud.
        for module in (hpc_topology_filter, snapshot):
            self.useFixture(
                fixtures.fixtures.MockPatchObject(module, "CLOUD_PROFILES", profile.CloudProfiles())
            )
        # What an earlier test has said is news in this one.
        log_throttle.LOG_THROTTLE.clear()
        # These tests must not depend on the sysfs of the machine they run on. Functions
        # and no mocks: Nova copies what holds them for every candidate, and a mock
        # grows with each call.
        patch = fixtures.fixtures.MonkeyPatch
        self.useFixture(patch("nova.pci.utils.is_physical_function", lambda *address: True))
        self.useFixture(patch("nova.pci.utils.get_function_by_ifname", lambda name: (None, False)))

    def useFixture(self, fixture):
        """Remember Placement's fixture, which Nova 32 does not keep."""
        if isinstance(fixture, nova_fixtures.PlacementFixture):
            self.placement_fixture = fixture
        return super().useFixture(fixture)

    def _patiently(self, wait, *args, **keywords):
        """Nova's helpers wait five seconds, which is short on a busy machine."""
        for _ in range(self.PATIENCE):
            with contextlib.suppress(self.failureException):
                return wait(*args, **keywords)
        return wait(*args, **keywords)

    def _wait_for_server_parameter(self, *args, **keywords):
        return self._patiently(super()._wait_for_server_parameter, *args, **keywords)

    def _wait_for_instance_action_event(self, *args, **keywords):
        return self._patiently(super()._wait_for_instance_action_event, *args, **keywords)

    def _wait_for_migration_status(self, *args, **keywords):
        return self._patiently(super()._wait_for_migration_status, *args, **keywords)

    # -- services ---------------------------------------------------------

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=self.DRIVER)

    def _setup_scheduler_service(self):
        self._stock_filters = list(CONF.filter_scheduler.enabled_filters)
        return self._start_scheduler(self.WITH_FILTER)

    def _start_scheduler(self, with_filter: bool):
        filters = list(self.FILTERS)
        available = ["nova.scheduler.filters.all_filters"]
        weighers = ["nova.scheduler.weights.all_weighers"]
        if with_filter:
            available.append(TOPOLOGY_FILTER)
            weighers.append(PACKING_WEIGHER)
        else:
            filters = [name for name in filters if name != "HpcTopologyFilter"]
        self.flags(
            available_filters=available,
            enabled_filters=self._stock_filters + filters,
            weight_classes=weighers,
            group="filter_scheduler",
        )
        return self.start_service("scheduler")

    def restart_scheduler(self, with_filter: bool = True) -> None:
        """Start the scheduler anew, with or without the filter and weigher."""
        self.scheduler.stop()
        self.scheduler = self._start_scheduler(with_filter)
        self.addCleanup(self.scheduler.stop)

    def topology_filter(self):
        """The running scheduler's own filter object."""
        return self.scheduler.manager.host_manager.filter_obj_map["HpcTopologyFilter"]

    def start_host(
        self,
        name: str,
        shape: fixtures.Shape,
        device_spec: Iterable[Mapping[str, str]] | None = None,
        **options: object,
    ) -> str:
        """Start a compute service on a host of *shape*.

        :param device_spec: other than the one that the shape yields.
        :param options: options of Nova's group ``[compute]``.
        """
        entries = list(shape.device_spec() if device_spec is None else device_spec)
        if not any(map(tags.has_tags, entries)):
            self.silent.add(name)
        self.flags(device_spec=[jsonutils.dumps(each) for each in entries], group="pci")
        for key, value in options.items():
            self.flags(**{key: value}, group="compute")
        self.shapes[name] = shape
        self.start_compute(name, host_info=shape.host_info(), pci_info=shape.pci_info())
        return name

    # -- flavors and servers ----------------------------------------------

    def make_flavor(self, specs: Mapping[str, str], **keywords: object) -> str:
        """A small flavor with these extra specs; returns its id.

        The microversion of the ordinary client is used, at which Nova does
        not validate extra specs.
        """
        keywords = {"vcpu": 1, "memory_mb": 256, "disk": 1, "ephemeral": 0} | keywords
        admin = self.api_fixture.admin_api
        with self.at_microversion(admin, "2.61"):
            return self._create_flavor(extra_spec=dict(specs), **keywords)

    @staticmethod
    @contextlib.contextmanager
    def at_microversion(api, version: str | None) -> Iterator[None]:
        """Use another microversion of the API for a while."""
        before = api.microversion
        api.microversion = version
        try:
            yield
        finally:
            api.microversion = before

    def boot(self, flavor: str, state: str = "ACTIVE", **keywords: object) -> dict:
        """Create a server without ports and wait for *state*."""
        keywords.setdefault("networks", "none")
        server = self._create_server(flavor_id=flavor, expected_state=state, **keywords)
        return self.api.get_server(server["id"])

    def fault(self, server: Mapping[str, object]) -> str:
        """The message of the server's fault, as its user reads it."""
        return self.api.get_server(server["id"])["fault"]["message"]

    # -- the truth ---------------------------------------------------------

    def host_of(self, server: Mapping[str, object]) -> str:
        return self.admin_api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]

    def devices_of(self, server: Mapping[str, object]) -> list[objects.PciDevice]:
        """Nova's own records of what the server was given."""
        found = objects.PciDeviceList.get_by_instance_uuid(
            nova_context.get_admin_context(), server["id"]
        )
        return sorted(found, key=lambda device: device.address)

    def locations_of(self, server: Mapping[str, object]) -> list[Location]:
        """Where the server's devices sit, by the shape of its host."""
        truth = self.shapes[self.host_of(server)].locations()
        return [truth[device.address] for device in self.devices_of(server)]

    def level_of(self, server: Mapping[str, object]) -> Level:
        """The tightest level that all devices of the server share."""
        return common_level(self.locations_of(server))

    def scattered(self, servers: Iterable[Mapping[str, object]]) -> int:
        """How many of *servers* have devices of more than one switch."""
        return sum(self.level_of(server) is not Level.SWITCH for server in servers)

    def assert_given_once(self) -> None:
        """No device belongs to two servers, and Placement agrees with Nova."""
        seen: dict[tuple[int, str], str] = {}
        for server in self.admin_api.get_servers(detail=False):
            for device in self.devices_of(server):
                key = (device.compute_node_id, device.address)
                self.assertNotIn(key, seen)
                seen[key] = server["id"]
        for host in self.shapes:
            self.assert_no_pci_healing(host)

    def domain_of(self, server: Mapping[str, object]) -> etree._Element:
        """The last domain that libvirt was given for the server."""
        return etree.fromstring(self.domains.given[server["id"]][-1])

    def domain_devices(self, server: Mapping[str, object]) -> list[str]:
        """Addresses of the passed-through functions in the domain."""
        found = []
        for source in self.domain_of(server).findall("devices/hostdev/source/address"):
            parts = [int(source.get(key), 16) for key in ("domain", "bus", "slot", "function")]
            found.append("{:04x}:{:02x}:{:02x}.{:x}".format(*parts))
        return sorted(found)

    def domain_nodes(self, server: Mapping[str, object]) -> dict[int, int]:
        """Guest cell -> host NUMA node, from the domain's ``numatune``."""
        nodes = self.domain_of(server).findall("numatune/memnode")
        return {int(each.get("cellid")): int(each.get("nodeset")) for each in nodes}

    def log_lines(self, pattern: str) -> list[str]:
        """Lines of the log (INFO and above) that match *pattern*."""
        lines = self.stdlog.logger.output.splitlines()
        return [line for line in lines if re.search(pattern, line)]
