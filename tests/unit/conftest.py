# SPDX-License-Identifier: Apache-2.0
"""How Hypothesis runs: how long an example takes is never a failure."""

import os

from hypothesis import settings

settings.register_profile(
    "nova-hpc", deadline=None, max_examples=int(os.environ.get("NOVA_HPC_EXAMPLES", "100"))
)
settings.load_profile("nova-hpc")
