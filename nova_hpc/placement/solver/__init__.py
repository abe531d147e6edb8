# SPDX-License-Identifier: Apache-2.0
"""The exact search behind choose_device_sets() and judge_claimed_devices().

Internal to :mod:`nova_hpc.placement`; schedulers use only :class:`costs.PassWork`.
"""
