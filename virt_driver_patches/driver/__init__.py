"""The libvirt driver of HPC nodes, and what it does around a server."""
