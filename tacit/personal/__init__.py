"""A model for every client, made at home after the last round and kept there: `[personal]` in the TOML.

One file per kind, each a function `adapt(home, centre)`: it begins with a model that is public or released, and with the client's
own training rows, and gives the client's own model. Of every client three are judged on rows that it never trained on
(`data.own_share`): `alone`, what the same procedure makes of the model as it was before round 1; `common`, the run's; and `own`,
what it makes of the common one, or `alone` where the client's own training rows speak for that.

Guarantee: nothing here is sent, and nothing that was sent depends on it. The common model has the run's epsilon; an own model
has none towards whoever sees it, because it is made of the client's rows without noise. `Personal` is its type, and no message
packs it.
"""
