# SPDX-License-Identifier: Apache-2.0
"""A cloud of stock Nova with servers and another team's filter adopts the project, and leaves it.

Scheduler first and compute first. What counts: every server survives a hard reboot each time
and keeps its devices, and nothing of the operator's is lost.
"""

import pytest

from tests.lab.operator_site import FLAVOR, FOREIGN, GPU, INCLUDES, LIMIT, Site

pytestmark = pytest.mark.slow


@pytest.fixture
def site(lab):
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    found = Site(lab)
    text = found.nova_conf.read_text()
    for name, words in (
        ("lab.stock", ("--property", "pci_passthrough:alias=gpu:1")),
        (
            "lab.adopted",
            ("--property", "pci_passthrough:alias=gpu:1", "--property", "hpc:affinity=numa"),
        ),
    ):
        lab.openstack("flavor", "create", name, *FLAVOR, *words)
    yield found
    for one in lab.servers():
        lab.openstack("server", "delete", "--wait", one["ID"], check=False)
    for name in ("lab.stock", "lab.adopted"):
        lab.openstack("flavor", "delete", name, check=False)
    found.nova_conf.write_text(text)
    found.restart()
    lab.inside(f"rm -f {INCLUDES}/stock.conf")
    # The lab's own configuration of the node, for the tests that follow.
    lab.restarted()


@pytest.mark.parametrize("first", ["scheduler", "compute"])
def test_a_site_adopts_and_goes_back(site, lab, first):
    site.stock_controllers()
    site.stock_node()
    stock = site.create("stock", "lab.stock")
    servers = {stock: site.devices(stock)}
    assert len(servers[stock]) == 1
    site.still_there(servers, "stock")
    steps = {"scheduler": site.adopt_controllers, "compute": site.adopt_node}
    second = {"scheduler": "compute", "compute": "scheduler"}[first]
    for step in (first, second):
        steps[step]()
        site.still_there(servers, f"{step} adopted")
    filters, limit = site.controllers()
    assert FOREIGN in filters
    assert "HpcTopologyFilter" in filters
    assert limit >= LIMIT
    sets = lab.inside(f"cat {INCLUDES}/*.conf | grep -h '^cpu_.*_set'")
    assert sorted(set(sets.splitlines())) == ["cpu_dedicated_set = 1,3", "cpu_shared_set = 0,2"]
    adopted = site.create("adopted", "lab.adopted")
    servers[adopted] = site.devices(adopted)
    assert len({*servers[stock], *servers[adopted]}) == 2
    report = lab.report(adopted)
    assert [function.ids for function in report.functions].count(GPU) == 1
    site.still_there(servers, "both adopted")
    site.leave_node()
    site.still_there(servers, "stock driver again")
    print("RESULT: commands", site.commands)
