# SPDX-License-Identifier: Apache-2.0
"""The real ``openstack`` command against Nova's own API in this process."""
