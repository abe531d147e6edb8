# SPDX-License-Identifier: Apache-2.0
"""The commands that set up a site: configure, prepare and install-shim."""
