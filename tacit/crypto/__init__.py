"""Sums that a server can form and cannot read. `grid` makes integers of a real vector and packs them, `paillier` seals
numbers, `proofs` shows that their sender knows them, `reports` binds them to one round and opens one sum of it, with a secret
key or `threshold`; `masks` adds without a key; `seal` joins all of them for a group; `keys` are the keys on disk."""
