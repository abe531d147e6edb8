# SPDX-License-Identifier: Apache-2.0
"""Networks as partitions: code of Neutron's server and of the host of a subnet manager."""
