"""Wraps of single functions of Nova, each gated by release and signature."""
