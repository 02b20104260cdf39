"""Tests of tacit.data."""
