"""Who was charged what, on disk, before anything is released.

`ledger` charges; `sealing` and `filter` decide how much a run may charge at all; `view` is what a run reads of its ledger, and
`tables` what a file holds. `reader` and `before` open ledgers that they never write to. `witness` notices a ledger that was lost
or set back, `conditions` and `holdings` one that belongs to other draws or other rows.
"""
