"""Privacy: what is noised, what it costs, who has paid, and what may be said of it.

A `Plan` (plan.py) is one run's privacy, made by a kind: `none`, `local`, `central` or `distributed`, a folder each. Its mechanism
(mechanism.py) owns the noise and its price; `accounting` turns prices into an epsilon; `ledger` charges them, on disk, before
anything is released; `guarantee.py` says in words and numbers what was promised and spent. `integers` draws the integer noise of
distributed DP, `clip.py` bounds whole updates.

Guarantee, of all kinds but `none`: what a client releases in a round carries the noise that its charge paid for, the charge was
on disk before, and no client's charges pass its budget.
"""
