"""Devices between two servers: marked before, cleaned and checked after."""
