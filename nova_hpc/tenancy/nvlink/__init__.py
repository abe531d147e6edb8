"""Partitions of a node's NVLink fabric: who has which."""
