# SPDX-License-Identifier: Apache-2.0
"""Nova's own code that waits for ports: why the driver holds a request and repeats events."""

import time
from types import SimpleNamespace

import pytest

nova = pytest.importorskip("nova")

from nova import exception, objects  # noqa: E402
from nova.compute import manager  # noqa: E402
from nova.network import model  # noqa: E402
from nova.virt.libvirt import driver  # noqa: E402

#: Seconds; Nova's own vif_plugging_timeout is 300.
TIMEOUT = 1.0
SERVER = "7f9c2ba4-e88f-4271-9d3d-1d5e7f0a6f11"


class PluggingFailedError(Exception):
    """As the driver's own callback raises it."""


def vif(active=False, kind="hostdev_physical", vnic="direct"):
    return model.VIF(id="p1", active=active, type=kind, vnic_type=vnic)


@pytest.fixture
def build():
    """A build that waits, and what delivers events to it."""
    objects.register_all()
    instance = objects.Instance(uuid=SERVER, vm_state="building", task_state="spawning", host="cn0")
    events = manager.InstanceEvents()
    api = manager.ComputeVirtAPI(SimpleNamespace(instance_events=events, reportclient=None))

    def deliver(status="completed"):
        """Whether somebody waited for it."""
        event = objects.InstanceExternalEvent(
            instance_uuid=SERVER, name="network-vif-plugged", tag="p1", status=status
        )
        waiter = events.pop_instance_event(instance, event)
        if waiter is not None:
            waiter.set(event)
        return waiter is not None

    def fail(name, _instance):
        raise PluggingFailedError(name)

    def wait(network_info, meanwhile=lambda: None):
        """Seconds until the guest boots."""
        wanted = driver.LibvirtDriver._get_neutron_events(None, network_info)
        begun = time.monotonic()
        with api.wait_for_instance_event(instance, wanted, timeout=TIMEOUT, error_callback=fail):
            meanwhile()
        return time.monotonic() - begun

    return SimpleNamespace(deliver=deliver, wait=wait)


@pytest.mark.parametrize("kind", ["hostdev_physical", "ib_hostdev"])
@pytest.mark.parametrize("vnic", ["direct", "direct-physical"])
def test_nova_waits_for_ports_that_are_down(kind, vnic):
    wanted = driver.LibvirtDriver._get_neutron_events(None, [vif(False, kind, vnic)])
    assert wanted == [("network-vif-plugged", "p1")]


def test_nova_does_not_wait_for_a_port_that_is_active_when_the_answer_comes(build):
    assert build.wait([vif(active=True)]) < TIMEOUT


def test_an_event_that_comes_in_time(build):
    assert build.wait([vif()], build.deliver) < TIMEOUT


def test_an_event_that_comes_before_nova_waits_is_lost(build):
    assert not build.deliver()
    with pytest.raises(exception.InstanceEventTimeout):
        build.wait([vif()])


def test_an_event_that_is_said_again_is_heard(build):
    assert not build.deliver()
    assert build.wait([vif()], build.deliver) < TIMEOUT
    # Once more does no harm: nobody waits for it.
    assert not build.deliver()


def test_a_port_in_error_ends_the_build_at_once(build):
    begun = time.monotonic()
    with pytest.raises(PluggingFailedError):
        build.wait([vif()], lambda: build.deliver("failed"))
    assert time.monotonic() - begun < TIMEOUT
