"""Sums that a server can form and cannot read: Paillier, its keys, proofs, signed reports, and who may open what.

In reading order: `grid` makes integers of a real vector and puts many of them into one number, `paillier` seals the number;
`proofs` shows that its sender knows it; `reports` binds it to one round, counts who has reported and opens one sum a round, with
`secret_key` or `threshold`. `masks` adds without a key. `seal` joins all of them for a group. `keys` are the keys on disk,
`powers` the arithmetic."""
