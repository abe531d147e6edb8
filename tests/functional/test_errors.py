# SPDX-License-Identifier: Apache-2.0
"""What a user reads of a failure: which kind of thing, the request, and nothing of the host."""

from __future__ import annotations

import errno

import libvirt
import pytest
from nova import exception
from os_brick import exception as brick_exception
from os_vif import exception as vif_exception

from virt_driver_patches import errors
from virt_driver_patches.errors import ClaimRefused, DeviceFault, FaultKind, StartFault

REQUEST = "req-01234567-89ab-cdef-0123-456789abcdef"


def libvirt_error(text: str, domain: int = libvirt.VIR_FROM_QEMU, code: int = 1) -> Exception:
    """What libvirt raises: most errors of QEMU are VIR_ERR_INTERNAL_ERROR."""
    error = libvirt.libvirtError(text)
    error.err = (code, domain, text, 2, None, None, None, -1, -1)
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (vif_exception.PlugException(vif="v", err="e"), FaultKind.NETWORK),
        (exception.VirtualInterfaceCreateException(), FaultKind.NETWORK),
        (exception.PortBindingFailed(port_id="p"), FaultKind.NETWORK),
        (exception.NoMoreFixedIps(net="n"), FaultKind.NETWORK),
        (brick_exception.VolumeDeviceNotFound(device="/dev/x"), FaultKind.VOLUME),
        (brick_exception.FailedISCSITargetPortalLogin(), FaultKind.VOLUME),
        (exception.InvalidBDMVolume(id="x"), FaultKind.VOLUME),
        (exception.CinderConnectionFailed(reason="r"), FaultKind.VOLUME),
        (exception.PciDeviceNotFound(node_id=1, address="0000:40:00.0"), FaultKind.DEVICE),
        (DeviceFault("1 has disappeared"), FaultKind.DEVICE),
        (libvirt_error("anything", libvirt.VIR_FROM_NODEDEV), FaultKind.DEVICE),
        (libvirt_error("anything", libvirt.VIR_FROM_NETWORK), FaultKind.NETWORK),
        (libvirt_error("anything", libvirt.VIR_FROM_STORAGE), FaultKind.VOLUME),
        (libvirt_error("anything", code=libvirt.VIR_ERR_NO_MEMORY), FaultKind.MEMORY),
        (libvirt_error("vfio 0000:40:00.0: group 41 is not viable"), FaultKind.DEVICE),
        (libvirt_error("VFIO_MAP_DMA failed: Cannot allocate memory"), FaultKind.MEMORY),
        (libvirt_error("Unable to open /dev/net/tun: No such file"), FaultKind.NETWORK),
        (libvirt_error("Cannot access storage file"), FaultKind.VOLUME),
        (libvirt_error("Cannot recv data: Connection reset by peer"), FaultKind.OTHER),
        (MemoryError(), FaultKind.MEMORY),
        (OSError(errno.ENOMEM, "no"), FaultKind.MEMORY),
        (exception.MemoryPagesUnsupported(), FaultKind.MEMORY),
        (ValueError("x"), FaultKind.OTHER),
        (None, FaultKind.OTHER),
    ],
)
def test_the_kind_by_class(error, kind):
    assert errors.fault_kind_of(error) is kind


def raised_in(module: str, error: Exception) -> Exception:
    """*error* as if a function of *module* had raised it."""
    space = {"__name__": module, "error": error}
    exec("def fail():\n    raise error", space)
    try:
        space["fail"]()
    except Exception as found:
        return found
    raise AssertionError


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("nova.virt.libvirt.vif", FaultKind.NETWORK),
        ("nova.network.neutron", FaultKind.NETWORK),
        ("vif_plug_ovs.ovs", FaultKind.NETWORK),
        ("nova.virt.libvirt.volume.iscsi", FaultKind.VOLUME),
        ("nova.virt.block_device", FaultKind.VOLUME),
        ("nova.pci.manager", FaultKind.DEVICE),
        ("nova.virt.libvirt.driver", FaultKind.OTHER),
    ],
)
def test_the_kind_by_where_it_was_raised(module, kind):
    error = raised_in(module, FileNotFoundError(2, "No such file", "/dev/net/tun"))
    assert errors.fault_kind_of(error) is kind
    # Also where it arrives as the cause of another.
    outer = exception.InternalError("x")
    outer.__cause__ = error
    assert errors.fault_kind_of(outer) is kind


def test_what_this_project_says_is_said_as_it_is():
    for error in (ClaimRefused("your wish"), StartFault("the kind")):
        assert errors.word_start_failure(error, str(error), REQUEST) == str(error)
        abort = exception.BuildAbortException(instance_uuid="u", reason=str(error))
        abort.__context__ = error
        assert errors.word_build_abort(abort, REQUEST) == str(error)
    told = errors.word_start_failure(
        DeviceFault("x"), "Of the 2 PCI devices 1 has disappeared.", REQUEST
    )
    assert told == f"Of the 2 PCI devices 1 has disappeared{errors._ID}{REQUEST}."


@pytest.mark.parametrize(
    "secret",
    [
        *("0000:40:00.0", "fa:16:3e:00:00:01", "10.9.8.7", "fd00::1:2:3", "/var/lib/nova/x"),
        *("/dev/net/tun", "node7"),
    ],
)
def test_reasons_of_nova_that_name_something_of_the_host(monkeypatch, secret):
    monkeypatch.setattr(errors.CONF, "host", "node7", raising=False)
    text = f"It failed at {secret}, badly"
    error = exception.NovaException(text)
    told = errors.word_start_failure(error, text, REQUEST)
    assert secret not in told
    assert FaultKind.OTHER.value in told
    abort = exception.BuildAbortException(instance_uuid="u", reason=text)
    assert secret not in errors.word_build_abort(abort, REQUEST)


def test_reasons_of_nova_that_name_nothing_of_the_host_are_kept():
    uuid = "f4ad7d9e-5c0e-4c7c-9a4c-0d1a5f3f1a11"
    for text in (f"Image {uuid} is not active", "Insufficient: 10 MB/20 MB at 12:30:00"):
        told = errors.word_start_failure(exception.NovaException(text), text, REQUEST)
        assert told == f"{text}{errors._ID}{REQUEST}."


def test_a_fault_has_room_for_the_request():
    for length in (10, 100, 200, 255, 1000):
        text = "x" * length
        told = errors.word_start_failure(exception.NovaException(text), text, REQUEST)
        assert len(told) <= errors.LONGEST
        assert told.endswith(f"{REQUEST}.")
        abort = exception.BuildAbortException(instance_uuid="u" * 36, reason=text)
        abort.__context__ = exception.PortBindingFailed(port_id="p")
        told = errors.word_build_abort(abort, REQUEST)
        again = exception.BuildAbortException(instance_uuid="u" * 36, reason=told)
        assert len(again.format_message()) <= errors.LONGEST
        assert told.endswith(f": {FaultKind.NETWORK.value}{errors._ID}{REQUEST}.")


def test_what_nova_knows_is_left_to_it():
    assert errors.fault_of(exception.VirtualInterfaceCreateException(), REQUEST) is None
    assert errors.fault_of(ClaimRefused("x"), REQUEST) is None
    fault = errors.fault_of(exception.InternalError("of os-vif"), REQUEST)
    assert isinstance(fault, StartFault)
    assert "of os-vif" in str(fault)
    assert REQUEST in str(fault)
    fault = errors.fault_of(OSError(errno.ENOMEM, "no"), REQUEST)
    assert FaultKind.MEMORY.value in str(fault)
