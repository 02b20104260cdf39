"""A site of a deployment: its rows, its limits and its ledger, on its own disk. Nothing here imports Flower.

The server asks; the site decides. What it is asked for is checked against its budget file and against what was agreed
when the run began, its own ledger is charged, and only then does it train.
"""
