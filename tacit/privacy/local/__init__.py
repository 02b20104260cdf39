"""Local DP: each client adds its own noise before anything leaves it."""
