"""Canaries in a real run: known contributions, of which a coin decides whether they take part; `tacit audit RUN` then guesses the
coins.

A canary is drawn by the units' own sampler and goes the units' own way, and what is then released is set against what would be
known to somebody who knows everything but the coins (`plan`). It is nobody's data: it changes neither the population's identity
nor sizes, divisors or prices, and adding it to a sum is a shift that no record decides about, so every promise stands as it is.
"""
