"""Audits: what was promised, held against what the code does. `tacit audit EXPERIMENT --mechanism` is `mechanism.audit`.

The code that would run is asked, by each trainer, to train on rows and losses whose answer is known (`probes`), and what it
releases is measured: the noise, what one record or client can change, how often a record is drawn, what a sum is divided by
(`local`, `central`, `distributed`). What is measured is judged against the price that a ledger would charge (`claims`), never
against what a mechanism says of itself, by exact limits (`evidence`) at one level for all checks together (`verdict`). `plants`
wraps known bugs around the real objects, so that the auditor can be audited.

The seam. A trainer is made of `Parts` (tacit/engine/trainers/make.py), and each step in it is

    state, drawn = mechanism.sample(state, stream, size)          who is in the step
    bounded      = Bounded(sum over the drawn, workspace.clip)    labelled with the clip that bounded it
    state, noisy = mechanism.noise(state, stream, bounded)        all that may leave

with streams from the `derive` it was given. A new trainer that keeps to this is audited by one entry in `trainers.TRAINERS`.

No audit proves privacy: it rejects claims, it does not establish them, and it sees neither a weak generator nor floating point.
"""
