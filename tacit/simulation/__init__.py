"""A federation on this machine: `tacit.run`, one experiment; `compare`, a grid of them."""
