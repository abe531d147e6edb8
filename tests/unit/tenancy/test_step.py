# SPDX-License-Identifier: Apache-2.0
"""The protocol of the steps, as the driver of a node uses it: words, and nothing else."""

import threading

import pytest

from nova_hpc.tenancy.ledger import LedgerError, copy_of
from nova_hpc.tenancy.nvlink.backend import NvlinkBackend, NvlinkSettings
from nova_hpc.tenancy.nvlink.partitions import NvlinkFabricError, NvlinkPartition
from nova_hpc.tenancy.nvlink.step import NvlinkStep
from nova_hpc.tenancy.sign import HealthSign
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError, StepError
from nova_hpc.topology import sysfs
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make

SERVER = "11111111-1111-1111-1111-111111111111"


@pytest.fixture
def node(tmp_path):
    return make(tmp_path)


def view(node, **sets):
    return NodeView(sysfs.read_sysfs_node(node.root), {GPU: "gpu", OTHER: "gpu"}, sets)


def lose(node):
    copy_of(node.state).unlink()
    node.state.write_text("{")


def test_a_server_and_its_devices(node):
    step, tenant = node.step(), DeviceTenant(SERVER, (GPU,), owners=node.owners())
    assert step.withhold(view(node), node.owners()).findings == {}
    assert step.before_start(tenant, view(node)) == ()
    assert step.before_restart(tenant, view(node)) == ()
    assert step.describe(GPU)["Server"] == SERVER
    differences, (unknown,) = step.check(view(node).candidate(GPU))
    assert differences == []
    assert unknown.startswith("not compared: ")
    assert SERVER in unknown
    assert step.after_move(SERVER, pytest.fail, node.owners()) == ()
    assert step.after_end("another", pytest.fail, node.owners()) == ()
    assert step.after_end(SERVER, lambda: view(node), node.owners()) == ()
    assert step.unreported() == {GPU}
    step.report([GPU])
    assert step.unreported() == frozenset()


def test_a_refusal_has_two_texts(node):
    step = node.step()
    node.file.quarantine({GPU: "port flaps"})
    with pytest.raises(RefusedError) as refused:
        step.before_start(DeviceTenant(SERVER, (GPU, OTHER), owners=node.owners()), view(node))
    assert refused.value.reasons == (
        f"PCI device {GPU} must not be given to the server: in quarantine: port flaps",
    )
    assert refused.value.user == (
        "Of the 2 PCI devices that were claimed for the server, 1 did not pass the check before "
        "it starts."
    )
    assert not refused.value.claim
    # What fails after a server is a note, and the device is withheld.
    step.before_start(DeviceTenant(SERVER, (OTHER,), owners=node.owners()), view(node))
    (node.devices / OTHER / "reset").unlink()
    (note,) = step.after_end(SERVER, lambda: view(node), node.owners())
    assert note == f"PCI device {OTHER} is in quarantine: the kernel knows no way to reset it"


def test_a_lost_ledger_refuses_and_withholds_and_never_raises(node):
    step = node.step()
    step.before_start(DeviceTenant(SERVER, (GPU,), owners=node.owners()), view(node))
    lose(node)
    with pytest.raises(RefusedError, match="cannot keep records of its PCI devices"):
        step.before_start(DeviceTenant(SERVER, (OTHER,), owners=node.owners()), view(node))
    (note,) = step.before_restart(DeviceTenant(SERVER, (GPU,), owners=node.owners()), view(node))
    assert note.startswith("It is not recorded who has PCI devices: the ledger ")
    (note,) = step.after_end(SERVER, lambda: view(node), node.owners())
    assert note.startswith("PCI devices are not clean yet: the ledger ")
    found = step.withhold(view(node), node.owners())
    assert {each.sign for each in found.findings.values()} == {HealthSign.UNREADY}
    assert found.findings.keys() == {GPU, OTHER}
    with pytest.raises(LedgerError):
        step.unreported()


class Slow(NvlinkBackend):
    """A manager that answers when it may."""

    def __init__(self):
        super().__init__(NvlinkSettings("", 1.0, ""), lambda argv, limit: (0, ""))
        self.asked, self.may = threading.Event(), threading.Event()

    def partitions(self):
        self.asked.set()
        if not self.may.wait(20):
            raise NvlinkFabricError("nobody has let it")
        return (NvlinkPartition(1, frozenset({GPU})),)

    def activate(self, partition):
        raise NvlinkFabricError("it cannot")

    def deactivate(self, partition):
        pass

    def set_active(self, partitions):
        pass


def test_one_step_that_waits_holds_no_other_up(node):
    """The manager of the fabric takes its time; devices are cleaned and given meanwhile."""
    backend = Slow()
    links, found = NvlinkStep(backend, node.file), []
    waiting = threading.Thread(
        target=lambda: found.append(links.withhold(view(node, **{GPU: "one:1"}), node.owners()))
    )
    waiting.start()
    assert backend.asked.wait(20)
    step = node.step()
    step.before_start(DeviceTenant(SERVER, (OTHER,), owners=node.owners()), view(node))
    assert step.after_end(SERVER, lambda: view(node), node.owners()) == ()
    assert node.resets(OTHER)
    assert not found
    backend.may.set()
    waiting.join()
    assert found[0].findings == {}
    assert node.ledger.gpus == {GPU}
    # And what it has seen has not undone what the other step wrote meanwhile.
    assert node.ledger.device(OTHER).cleaned == 2  # nobody knew who had it before, either


def test_what_the_fabric_refuses(node):
    backend = Slow()
    backend.may.set()
    links = NvlinkStep(backend, node.file, switch_role="gpu")
    seen = view(node, **{GPU: "one:1"})
    (note, *_) = links.begin(seen)
    assert f"all: {GPU}, {OTHER};" in note
    with pytest.raises(StepError, match=r"\[hpc\]nvlink_backend: NVLink partition 1 has a GPU at"):
        links.begin(NodeView(sysfs.read_sysfs_node(node.root / "nowhere")))
    with pytest.raises(RefusedError) as refused:
        links.before_start(DeviceTenant(SERVER, (GPU,), owners=node.owners()), seen)
    assert (refused.value.user, refused.value.claim) == (
        "The NVLinks of the node cannot be set now.",
        False,
    )
    assert refused.value.reasons == ("The claimed GPUs must not be given: it cannot",)
    with pytest.raises(RefusedError) as refused:
        links.before_start(
            DeviceTenant(SERVER, (GPU, OTHER), owners=node.owners()),
            view(node, **{GPU: "a", OTHER: "a"}),
        )
    assert refused.value.claim
    assert GPU not in refused.value.user
    # Not one of its devices is of the fabric: nobody is asked.
    backend.may.clear()
    assert (
        links.before_start(DeviceTenant(SERVER, ("0000:99:00.0",), owners=node.owners()), seen)
        == ()
    )
