"""A site of a deployment: its rows, its limits and its ledger, on its own disk. Nothing here imports Flower.

The server asks; the site decides (`site` has the order). Each step takes what the step before it made: `requests` parse -> Request,
`limits` allow -> Allowed, `agreement` accept -> Accepted, `replies` bind -> Bound, pay -> Paid, keep -> Kept. Under masks `legs`
joins before that and takes the two legs after it. `layout` has the folder, `consent` what can be deployed, `models` the site's own
models, which no server hears of."""
