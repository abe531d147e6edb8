# SPDX-License-Identifier: Apache-2.0
"""The imports of all processes of a replay, which are forked from a server that has made them.

An import of Nova takes two seconds of a processor, and a replay starts many processes.
"""

from __future__ import annotations

import nova.compute.resource_tracker
import nova.config
import nova.scheduler.manager  # noqa: F401
from nova import objects

objects.register_all()
