"""What a node reports: device_spec, health, statistics."""
