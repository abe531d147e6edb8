# SPDX-License-Identifier: Apache-2.0
"""What Nova runs to plug an InfiniBand port is what our ``ebrctl`` takes."""

from __future__ import annotations

import nova.privsep.libvirt
import pytest
from nova.network import model
from oslo_concurrency import processutils

from nova_hpc.tenancy.adapters import ebrctl

MAC, SLOT = "fa:16:3e:0a:0b:0c", "0000:5e:00.2"
SERVER = "5c0e58a1-7f6b-4be9-9d0e-0b7f3f9f2d11"


@pytest.fixture
def calls(monkeypatch):
    """The commands that Nova runs; its privileged functions run here."""
    made = []
    monkeypatch.setattr(processutils, "execute", lambda *words, **_: made.append(words))
    context = nova.privsep.sys_admin_pctxt
    before = context.client_mode
    context.set_client_mode(False)
    yield made
    context.set_client_mode(before)


def test_plug(calls):
    nova.privsep.libvirt.plug_infiniband_vif(
        MAC, SERVER, "ibrail0", model.VIF_TYPE_IB_HOSTDEV, SLOT
    )

    (words,) = calls
    assert words[0] == "ebrctl"
    options = ebrctl._parse_arguments(words[1:])
    assert (options.command, options.mac, options.address) == ("add-port", MAC, SLOT)
    assert (options.server, options.physical_network) == (SERVER, "ibrail0")


def test_unplug(calls):
    nova.privsep.libvirt.unplug_infiniband_vif("ibrail0", MAC)

    (words,) = calls
    assert words[0] == "ebrctl"
    options = ebrctl._parse_arguments(words[1:])
    assert (options.command, options.mac) == ("del-port", MAC)
