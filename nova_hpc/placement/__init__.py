# SPDX-License-Identifier: Apache-2.0
"""Pure placement: request and free devices in, best device sets and reasons out."""
