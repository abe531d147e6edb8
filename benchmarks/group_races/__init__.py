# SPDX-License-Identifier: Apache-2.0
"""Many groups for the same leaves: real Placement processes over a real MariaDB.

python -m benchmarks.group_races
"""
