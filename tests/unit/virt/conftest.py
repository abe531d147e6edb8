# SPDX-License-Identifier: Apache-2.0
"""What the tests of domains share."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

#: Of Debian's libvirt0, which tools/setup.sh installs with libvirt-dev.
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")


@pytest.fixture(scope="session")
def valid():
    """Assert that libvirt's own schema takes a domain."""
    if not SCHEMA.exists():
        pytest.skip(f"{SCHEMA} is not there: libvirt0 is not installed")
    schema = etree.RelaxNG(etree.parse(SCHEMA))

    def check(xml: str) -> None:
        assert schema.validate(etree.fromstring(xml)), schema.error_log

    return check
