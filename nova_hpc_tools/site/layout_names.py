# SPDX-License-Identifier: Apache-2.0
"""The layouts of a site's files. Imports nothing, for a quick ``--help``."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "plain"
KOLLA: Final = "kolla"
OSA: Final = "osa"
NAMES: Final = (PLAIN, KOLLA, OSA)
