# SPDX-License-Identifier: Apache-2.0
"""The one domain of a server group: decided once, recorded where all schedulers see it."""
