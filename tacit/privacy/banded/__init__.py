"""Central DP with public cohorts: clients take turns, and the noise of a round takes back some of the rounds before it."""
