"""`tacit tune`: a search for settings whose price is known before it begins.

`grid` says what may be searched, `price` what it costs and how much noise that takes, `secret` keeps what nobody may see, `payment`
charges the ledger, `starts` lets one copy of a folder go on, `search` runs and chooses, `words` says what is promised.
"""
