"""A node as data: model, readers and writers."""
