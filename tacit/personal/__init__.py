"""A model for every client, made on the client after the last round and kept there: `[personal]` in the TOML.
Each kind is a function `adapt(home, centre)`. Three models are judged on rows that no training had (`data.own_share`): `alone`,
made of the model before round 1; `common`, the run's; `own`, made of the common one, or `alone` where training rows say so.
Guarantee: nothing here is sent, and nothing that was sent depends on it. An own model has no epsilon; its type is `Personal`."""
