"""Priced queries: noisy sums over a client's records, released once and paid for beside training."""
