"""Distributed DP: every client adds an integer share of the noise, and only sums are opened."""
