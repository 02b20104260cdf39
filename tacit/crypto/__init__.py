"""Sums that a server can form and cannot read: Paillier, its keys, proofs, signed reports, and who may open what.

In reading order: `grid` makes integers of a real vector and puts many of them into one number, `paillier` with `randomisers` seals
the number; `proofs` shows that its sender knows it, `envelope` binds it to one round; `holder` counts who has reported and opens
one sum a round, with `secret_key` or `threshold`. `seal` joins all of them for a group. `keys` and `signing` are keys on disk,
`powers` the arithmetic, `textbook` the slow twin of `paillier`."""
