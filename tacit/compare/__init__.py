"""Comparisons: a grid of settings times seeds, run side by side, as one table, CSV files and figures."""
