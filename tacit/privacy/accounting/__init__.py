"""From what was released to an epsilon, and from a budget to the noise that keeps it.
`price.epsilon` is the door for the one, `calibrate` for the other. `events` is the list of what can be released; behind it
are three ways to a price: the closed form for Gaussians (`gdp`), privacy loss distributions (`discretised` is one step,
`composed` many), and Rényi curves (`sampled_rdp`; `renyi` for sums of integer shares).
Guarantee: no epsilon here is below the smallest that holds; every rounding is bounded and taken upwards."""
