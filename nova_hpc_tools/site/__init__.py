# SPDX-License-Identifier: Apache-2.0
"""The configuration of a site: its services' options, device_spec, declarations, and findings."""
