"""The one-command cloud with virtual HPC nodes."""
