"""The ``nova-hpc`` command."""
