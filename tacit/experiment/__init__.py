"""What is asked for: one experiment as one frozen value, its tables, and its TOML text. Nothing here runs anything."""

from tacit.experiment.file import Experiment

__all__ = ["Experiment"]
