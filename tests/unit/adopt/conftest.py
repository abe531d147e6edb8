# SPDX-License-Identifier: Apache-2.0
from tests.unit.adopt.prepared_host import debian, prepare  # noqa: F401
from tests.unit.node_files import at_home, libvirt, machine  # noqa: F401
