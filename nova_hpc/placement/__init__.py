"""Pure placement: request and free devices in, best device sets and reasons out."""
