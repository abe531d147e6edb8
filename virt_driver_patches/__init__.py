"""What nova-compute loads: the libvirt driver subclass."""
