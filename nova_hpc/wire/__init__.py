# SPDX-License-Identifier: Apache-2.0
"""Every text that crosses a process or an upgrade."""
