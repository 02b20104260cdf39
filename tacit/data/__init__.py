"""Data for experiments: `sources.load` reads a `DataSection` into a `dataset.Dataset`, `partition.share_out` gives every client its
rows and `partition.budgets` its epsilon. Scales and vocabularies are constants or declared; nothing is learned from rows."""
