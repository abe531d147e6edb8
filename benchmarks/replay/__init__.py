# SPDX-License-Identifier: Apache-2.0
"""A day of a cloud, replayed against several real schedulers, a real Placement and MariaDB.

``python -m benchmarks.replay`` runs it, stock Nova and this project in turn, from one
list of requests. The hosts are Nova's own resource trackers (:mod:`..concurrency.computes`).
"""
