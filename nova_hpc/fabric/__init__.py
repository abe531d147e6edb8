"""The fabric: what adapters carry between a server and the network."""
