"""Data for experiments: sources/, how their rows are shared among clients, and what each client allows. One way: `load.load`
reads a `DataSection` into a `dataset.Dataset`, `partition.share_out` gives every client its rows, `budgets.budgets` gives every
client its epsilon, `picture` shows both. Scales and vocabularies are constants or declared in the experiment file; nothing is
learned from clients' data on the way."""
