# SPDX-License-Identifier: Apache-2.0
"""Health findings on small nodes made by hand, one rule at a time."""

import attrs
import pytest

from nova_hpc.tenancy import health
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology.model import BridgeKind, IommuGroup, Node, PcieLink, PciFunction
from nova_hpc.topology.vfio import Vfio
from nova_hpc.wire.ledger import DeviceState, Ledger, LedgerDevice, Trial

PORT, PF, VF0, VF1 = "0000:22:00.0", "0000:23:00.0", "0000:23:10.0", "0000:23:10.2"
GPU, AUDIO = "0000:41:00.0", "0000:41:00.1"


def node(*functions: PciFunction) -> Node:
    groups: dict[int, list[str]] = {}
    for function in functions:
        if function.iommu_group is not None:
            groups.setdefault(function.iommu_group, []).append(function.address)
    return Node(
        source="test",
        functions=functions,
        iommu_groups=tuple(IommuGroup(number, tuple(each)) for number, each in groups.items()),
    )


def function(address: str, group: int | None = 17, **keywords) -> PciFunction:
    keywords.setdefault("driver", "vfio-pci")
    keywords.setdefault("reset_methods", ("flr",))
    return PciFunction(address=address, iommu_group=group, **keywords)


def bridge(address: str = PORT, group: int = 17, **keywords) -> PciFunction:
    return function(
        address,
        group,
        driver="pcieport",
        bridge=BridgeKind.DOWNSTREAM,
        reset_methods=(),
        **keywords,
    )


def reasons(place: Node, *offers: OfferedFunction, **keywords) -> dict[str, tuple[HealthSign, str]]:
    found = health.judge_offered_functions(place, offers, **keywords)
    return {address: (finding.sign, finding.reason) for address, finding in found.items()}


UNMANAGED_VF = OfferedFunction(VF0, managed=False)


def test_a_healthy_device_alone_in_its_group():
    assert reasons(node(function(GPU)), OfferedFunction(GPU, managed=False)) == {}


@pytest.mark.parametrize("methods", [None, (), ("flr",)])
@pytest.mark.parametrize("own", [None, "", "acme/reset: there is no such file"])
def test_a_device_needs_a_reset_that_its_cleaner_makes(methods, own):
    """The kernel's methods are not asked for if the cleaner has a reset of its own."""
    place = node(function(GPU, reset_methods=methods))
    resets = {} if own is None else {GPU: own}
    found = reasons(place, OfferedFunction(GPU), own_resets=resets)
    text = "no way to reset it between two guests"
    if own is None:
        expected = {} if methods != () else {GPU: (HealthSign.RESET, text)}
    else:
        expected = {GPU: (HealthSign.RESET, f"{text}: {own}")} if own else {}
    assert found == expected


@pytest.mark.parametrize("tagged", [True, False])
def test_a_vgpu_without_a_type(tagged):
    """No guest starts with it, whoever's entry offers it."""
    for kind, withheld in ((0, True), (1430, False), (None, False)):
        place = node(function(VF0, driver="nvidia", vfio=Vfio.VENDOR, vgpu_type=kind))
        found = reasons(place, OfferedFunction(VF0, managed=False, tagged=tagged))
        assert (VF0 in found) is withheld
        if withheld:
            assert found[VF0][0] is HealthSign.UNFIT
            assert "no vGPU type is set" in found[VF0][1]


def test_bridges_of_the_group_do_not_matter():
    assert reasons(node(bridge(), function(GPU)), OfferedFunction(GPU)) == {}


def test_unbound_and_vfio_members_do_not_matter():
    for driver in (None, "vfio-pci", "mlx5_vfio_pci"):
        assert (
            reasons(node(function(GPU), function(AUDIO, driver=driver)), OfferedFunction(GPU)) == {}
        )
    for vfio in (Vfio.GUEST, Vfio.VENDOR):
        mate = function(AUDIO, driver="nvidia", vfio=vfio)
        assert reasons(node(function(GPU), mate), OfferedFunction(GPU)) == {}


def test_the_kernel_says_what_speaks_vfio_and_no_name_does():
    """A vGPU on nvidia may be given; a driver that is only called like a variant may not."""
    for vfio in (Vfio.GUEST, Vfio.VENDOR):
        place = node(function(VF0, driver="nvidia", vfio=vfio))
        assert reasons(place, OfferedFunction(VF0, managed=False)) == {}
    for named in ("nvidia", "my_vfio_pci", "mlx5_vfio_pci"):
        place = node(function(VF0, driver=named, vfio=Vfio.NO, vfio_variant="mlx5_vfio_pci"))
        assert reasons(place, OfferedFunction(VF0, managed=False)) == {
            VF0: (
                HealthSign.DRIVER,
                f"bound to driver {named} and not to mlx5_vfio_pci, "
                "and device_spec says managed=no",
            )
        }
    assert VF0 in reasons(
        node(function(VF0, driver="my_vfio_pci")), OfferedFunction(VF0, managed=False)
    )


def test_what_an_entry_without_tags_offers_is_judged_by_what_harms_the_host():
    """It promises no flavor of ours anything; a group with the host's functions harms it."""
    theirs = OfferedFunction(VF0, managed=False, tagged=False)
    place = node(function(VF0, driver="nvidia", reset_methods=(), link=PcieLink(16.0, 8, 16.0, 16)))
    assert reasons(place, theirs) == {}
    pair = node(function(VF0, driver="nvidia"), function(VF1, driver="nvidia"))
    others = OfferedFunction(VF1, managed=True, tagged=False)
    assert reasons(pair, attrs.evolve(theirs, managed=True), others) == {}
    ours = OfferedFunction(VF0, managed=False)
    assert reasons(place, ours)[VF0][0] is HealthSign.DRIVER
    shared = node(function(VF0), function(PF, driver="nvidia"))
    assert reasons(shared, theirs)[VF0][0] is HealthSign.IOMMU
    gone = node(function(GPU))
    assert reasons(gone, theirs)[VF0][0] is HealthSign.ABSENT


@pytest.mark.parametrize("managed", [True, False])
def test_a_vf_below_a_switch_without_acs_shares_the_group_with_its_pf(managed):
    place = node(bridge(), function(PF, driver="igb"), function(VF0, physical_function=PF))
    assert reasons(place, OfferedFunction(VF0, managed)) == {
        VF0: (HealthSign.IOMMU, f"IOMMU group 17 is not viable: {PF} (igb) is in it")
    }


def test_a_host_function_that_is_no_bridge_but_of_the_bridge_class():
    place = node(function(GPU), function("0000:00:00.0", class_code="060000", driver="skx_uncore"))
    assert reasons(place, OfferedFunction(GPU))[GPU][0] is HealthSign.IOMMU


def test_a_member_that_is_not_a_pci_function():
    place = attrs.evolve(node(function(GPU)), iommu_groups=(IommuGroup(17, (GPU, "PNP0C02:00")),))
    assert reasons(place, OfferedFunction(GPU)) == {
        GPU: (HealthSign.IOMMU, "IOMMU group 17 is not viable: PNP0C02:00 is in it")
    }


def test_without_an_iommu():
    assert (
        reasons(node(function(GPU, group=None)), OfferedFunction(GPU))[GPU][0] is HealthSign.IOMMU
    )


class TestUnits:
    def place(self) -> Node:
        return node(function(VF0, physical_function=PF), function(VF1, physical_function=PF))

    def test_untagged(self):
        found = reasons(self.place(), OfferedFunction(VF0), OfferedFunction(VF1))
        assert set(found) == {VF0, VF1}
        assert found[VF0] == (
            HealthSign.UNIT,
            "IOMMU group 17 has 2 assignable functions, which device_spec does not tag as "
            f"one unit (hpc_group={VF0})",
        )

    def test_tagged_as_one(self):
        assert (
            reasons(self.place(), OfferedFunction(VF0, unit=VF0), OfferedFunction(VF1, unit=VF0))
            == {}
        )

    def test_tagged_as_two(self):
        found = reasons(
            self.place(), OfferedFunction(VF0, unit=VF0), OfferedFunction(VF1, unit=VF1)
        )
        assert set(found) == {VF0, VF1}

    def test_a_pf_and_its_vf_are_never_given_together(self):
        place = node(function(PF), function(VF0, physical_function=PF))
        found = reasons(place, OfferedFunction(PF, unit=PF), OfferedFunction(VF0, unit=PF))
        assert {kind for kind, _ in found.values()} == {HealthSign.UNIT}
        assert set(found) == {PF, VF0}

    def test_one_bad_member_takes_the_unit_with_it(self):
        place = node(function(VF0), function(VF1, reset_methods=()))
        found = reasons(place, OfferedFunction(VF0, unit=VF0), OfferedFunction(VF1, unit=VF0))
        assert found[VF1] == (HealthSign.RESET, "no way to reset it between two guests")
        assert found[VF0] == (
            HealthSign.RESET,
            f"{VF1} of the same IOMMU group must not be given: "
            "no way to reset it between two guests",
        )

    def test_managed_members_may_still_have_their_host_driver(self):
        place = node(function(GPU, driver="nvidia"), function(AUDIO, driver="snd_hda_intel"))
        tagged = (OfferedFunction(GPU, unit=GPU), OfferedFunction(AUDIO, unit=GPU))
        assert reasons(place, *tagged) == {}
        # One that nobody takes from its driver keeps the whole group with the host.
        mixed = (tagged[0], attrs.evolve(tagged[1], managed=False))
        assert reasons(place, *mixed)[GPU] == (
            HealthSign.IOMMU,
            f"IOMMU group 17 is not viable: {AUDIO} (snd_hda_intel) is in it",
        )
        unmanaged = tuple(attrs.evolve(offer, managed=False) for offer in tagged)
        assert set(reasons(place, *unmanaged)) == {GPU, AUDIO}


def test_the_wrong_driver_matters_where_nobody_changes_it():
    place = node(function(GPU, driver="nvidia"))
    assert reasons(place, OfferedFunction(GPU, managed=True)) == {}
    kind, reason = reasons(place, OfferedFunction(GPU, managed=False))[GPU]
    assert kind is HealthSign.DRIVER
    assert "driver nvidia" in reason
    assert "managed=no" in reason
    unbound = node(function(GPU, driver=None))
    assert "no driver" in reasons(unbound, OfferedFunction(GPU, managed=False))[GPU][1]


class TestLink:
    def place(self, width, can=16, slot: int | None = 16, **keywords):
        port = bridge("0000:40:00.0", 1, link=PcieLink(max_width=slot))
        link = PcieLink(speed=2.5, max_speed=32.0, width=width, max_width=can)
        return node(port, function(GPU, link=link, path=("0000:40:00.0",), **keywords))

    def test_narrower_than_both_ends(self):
        assert reasons(self.place(8), OfferedFunction(GPU)) == {
            GPU: (HealthSign.LINK, "link is x8, can be x16")
        }

    @pytest.mark.parametrize("spared", [True, False])
    def test_only_what_was_spared_is_let_through(self, spared):
        """A trial alone, as of one that was ill before, excuses nothing."""
        ledger = Ledger(devices={GPU: LedgerDevice(trial=Trial(tries=2, spared=spared))})
        found = reasons(self.place(8), OfferedFunction(GPU), ledger=ledger)
        assert found.keys() == (set() if spared else {GPU})

    def test_full_width_at_low_speed_is_idle_and_not_ill(self):
        assert reasons(self.place(16), OfferedFunction(GPU)) == {}

    def test_a_wide_card_in_a_narrow_slot(self):
        assert reasons(self.place(8, slot=8), OfferedFunction(GPU)) == {}

    def test_unknown_or_down(self):
        assert reasons(self.place(None), OfferedFunction(GPU)) == {}
        assert reasons(self.place(0), OfferedFunction(GPU)) == {}
        assert reasons(self.place(8, slot=None), OfferedFunction(GPU)) == {}

    def test_a_vf_has_the_link_of_its_pf(self):
        place = self.place(8)
        place = attrs.evolve(
            place,
            functions=(
                *place.functions,
                function(VF0, 18, physical_function=GPU, link=PcieLink(width=0)),
            ),
            iommu_groups=(*place.iommu_groups, IommuGroup(18, (VF0,))),
        )
        assert reasons(place, OfferedFunction(VF0))[VF0][0] is HealthSign.LINK


def test_reset():
    assert reasons(node(function(GPU, reset_methods=None)), OfferedFunction(GPU)) == {}
    assert (
        reasons(node(function(GPU, reset_methods=())), OfferedFunction(GPU))[GPU][0]
        is HealthSign.RESET
    )


def test_quarantine_reaches_the_virtual_functions():
    place = node(function(VF0, physical_function=PF))
    ill = Ledger({PF: LedgerDevice(state=DeviceState.QUARANTINED, reason="port flaps")})
    assert reasons(place, OfferedFunction(VF0), ledger=ill) == {
        VF0: (HealthSign.QUARANTINE, "in quarantine: port flaps")
    }


def test_a_device_that_vanished_or_cannot_be_read():
    assert reasons(node(), OfferedFunction(GPU)) == {
        GPU: (HealthSign.ABSENT, "the device is not there")
    }
    odd = node(function(GPU, unknown="no class"))
    assert reasons(odd, OfferedFunction(GPU)) == {GPU: (HealthSign.ABSENT, "no class")}
    assert reasons(node(bridge()), OfferedFunction(PORT))[PORT][0] is HealthSign.ABSENT


def test_only_the_signs_that_are_asked_for():
    place = node(function(GPU, reset_methods=()))
    assert reasons(place, OfferedFunction(GPU), signs=health.ALL - {HealthSign.RESET}) == {}
    assert reasons(place, OfferedFunction(GPU), signs=health.DANGER) == {}


def test_the_user_reads_no_address():
    for sign in HealthSign:
        text = Symptom(sign, f"because of {GPU}").user
        assert text
        assert ":" not in text
