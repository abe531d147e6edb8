# SPDX-License-Identifier: Apache-2.0
"""The exact search behind choose_device_sets() and judge_claimed_devices().

Nobody else imports from here.
"""
