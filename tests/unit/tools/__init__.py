"""Tests of what developers run: sets of tests, the picture of the house."""
