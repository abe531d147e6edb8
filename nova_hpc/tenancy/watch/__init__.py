# SPDX-License-Identifier: Apache-2.0
"""The watch over devices in use: a server's owner learns of a device's fault within a minute."""
