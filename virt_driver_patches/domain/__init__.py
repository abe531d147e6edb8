"""The guest domain: Nova's own, changed in one pass."""
