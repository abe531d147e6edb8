"""A whole cloud as data: snapshots, explanations, simulations."""
