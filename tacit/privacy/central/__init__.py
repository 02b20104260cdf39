"""Central DP: a trusted server clips every update and noises their sum."""
