# SPDX-License-Identifier: Apache-2.0
"""A node and a cloud take the project up: configure, prepare, install-shim, upgrade check."""
