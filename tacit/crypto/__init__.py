"""Sums that a server can form and cannot read: Paillier, its keys, proofs, signed reports, and who may open what.

In reading order: `quantise` makes integers of a real vector, `lanes` puts many of them into one number, `paillier` with
`randomisers` seals the number; `proofs` and `proved` show that its sender knows it, `envelope` and `inbox` bind it to one round
and count who has reported; `holder`, `threshold` and `opening` open one sum a round. `seal` joins all of them for a group.

`keys`, `signing` and `owner_files` are keys on disk, `primes` and `weak` what keys are made of and refused for, `powers`, `cores`
and `octets` the arithmetic, `textbook` the slow twin of `paillier`."""
