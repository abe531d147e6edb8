"""From the inventory of a node to what Nova is told to offer."""
