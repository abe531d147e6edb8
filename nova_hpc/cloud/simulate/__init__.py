"""What placement policies do to a cloud over time; arrays, no I/O, no Nova."""
