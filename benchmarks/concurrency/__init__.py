# SPDX-License-Identifier: Apache-2.0
"""Several real schedulers of Nova race for the last devices of a real Placement.

``python -m benchmarks.concurrency`` runs it; ``README.rst`` lists the real and the
simulated parts.
"""
