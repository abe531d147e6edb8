# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's UFM Enterprise as the subnet manager, a plug-in of the partition agent."""
