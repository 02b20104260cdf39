"""A federation across machines: its folder, its keys, its processes. Nothing here imports Flower; its programs are run."""
