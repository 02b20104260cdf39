"""A site of a deployment: its rows, its limits and its ledger, on its own disk. Nothing here imports Flower.

The server asks; the site decides. What it is asked for is checked against its budget file and against what was agreed
when the run began, its own ledger is charged, and only then does it train.

    site       the order in which it all happens       asked      what a question is
    limits     budget.toml                             consent    a question is held against it
    join       the run as the site itself computes it  agreement  what was agreed
    pay        the ledger is charged                   outbox     one round, one question, one answer
    layout     where all of that lies in the folder    log        what was asked and answered, in words
    counted    a query: noised counts, once a run"""
