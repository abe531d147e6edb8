# SPDX-License-Identifier: Apache-2.0
"""Taking devices out of a running guest, which may be slow, or never do it."""

from __future__ import annotations

import pytest
from lxml import etree
from nova import exception

from virt_driver_patches.domain import attach

ALIASES = {"0000:41:00.0": "ua-hpc-0", "0000:42:00.0": "ua-hpc-1"}


def _hostdev(address: str) -> str:
    bus, alias = address[5:7], ALIASES[address]
    return (
        "<hostdev mode='subsystem' type='pci' managed='no'><source>"
        f"<address domain='0x0000' bus='0x{bus}' slot='0x00' function='0x0'/></source>"
        f"<alias name='{alias}'/></hostdev>"
    )


class Config:
    def __init__(self, address: str) -> None:
        self.address = address


class SlowGuest:
    """Lets go of a device when it has been looked at so often; None: never."""

    def __init__(self, looks: dict[str, int | None]) -> None:
        self.looks = dict(looks)
        self.present = set(ALIASES)
        self.asked: list[str] = []
        self.attached: list[str] = []

    def get_xml_desc(self, dump_inactive: bool = False) -> str:
        if not dump_inactive:
            for address in self.asked:
                left = self.looks[address]
                if left is not None:
                    self.looks[address] = left - 1
                    if left <= 0:
                        self.present.discard(address)
        known = ALIASES if dump_inactive else self.present
        return f"<domain><devices>{''.join(map(_hostdev, sorted(known)))}</devices></domain>"

    def detach_device(self, config: Config, live: bool) -> None:
        assert live
        self.asked.append(config.address)

    def attach_device(self, config: attach.PlacedDevice, live: bool) -> None:
        assert live
        device = etree.fromstring(config.to_xml())
        address = f"0000:{device.find('source/address').get('bus')[2:]}:00.0"
        self.attached.append(address)
        self.present.add(address)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "_PAUSE", 0.0)


def test_a_guest_that_is_slow_gets_the_time() -> None:
    guest = SlowGuest({"0000:41:00.0": 2, "0000:42:00.0": 40})
    attach.detach_all_or_none(guest, {each: Config(each) for each in ALIASES}, 60)
    assert guest.present == set()
    assert sorted(guest.asked) == sorted(ALIASES)
    assert guest.attached == []


def test_what_a_guest_let_go_of_is_given_back_when_it_keeps_another() -> None:
    guest = SlowGuest({"0000:41:00.0": 1, "0000:42:00.0": None})
    with pytest.raises(exception.PciDeviceDetachFailed, match=r"1 of 2 devices.*has it booted"):
        attach.detach_all_or_none(guest, {each: Config(each) for each in ALIASES}, 0.05)
    assert guest.present == set(ALIASES)
    assert guest.attached == ["0000:41:00.0"]


def test_only_what_is_there_is_asked_for() -> None:
    guest = SlowGuest({"0000:41:00.0": 0})
    guest.present = {"0000:41:00.0"}
    attach.detach_all_or_none(guest, {each: Config(each) for each in ALIASES}, 60)
    assert guest.asked == ["0000:41:00.0"]
