"""A site of a deployment: its rows, its limits and its ledger, on its own disk. Nothing here imports Flower.

The server asks; the site decides. Each step takes what the step before it made:

    requests    parse -> Request           a question, of bounded size and exact types
    limits      allow -> Allowed           an experiment that budget.toml allows as it is now (consent: its [accept])
    accept      accept -> Accepted         the run as the site itself computes it (rows, keys, canaries)
    replies     bind -> Bound, keep -> Kept  one round, one question, one answer, on disk
    pay         pay -> Paid                the ledger is charged; only Paid trains, or counts (queries)

`site` has the order, `agreement` what was agreed, `layout` the folder, `deployable` what can be deployed, `models` the site's own
models, which no server hears of."""
