"""A training loop of your own: Tacit's mechanism samples, noises and names its price; the ledger is charged before each release."""

import secrets

import torch
from sklearn.datasets import load_digits

from tacit.privacy import Bounded, Budget, Client, Ledger, SampledGaussian, from_os, noise_multiplier

STEPS, RATE, CLIP = 60, 0.2, 1.0
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x, classes = x.float() / 16, torch.eye(10)
weights = torch.zeros(64, 10)

client = Client(0, "clinic", Budget(epsilon=3.0, delta=1e-5), x, y)
z = noise_multiplier(epsilon=3.0, delta=1e-5, sampling_rate=RATE, steps=STEPS)
mechanism = SampledGaussian(z, clip=CLIP, sampling_rate=RATE)
run = secrets.token_hex(
    8
)  # a name that no other start has: under one name a step would be paid once, and released twice
ledger = Ledger("clinic.db", population="digits", run=run, rounds=STEPS, spare=False)
stream = from_os()("noise")
for step in range(STEPS):
    ledger.open_round(step, f"step {step}")
    if not ledger.admit([client], lambda _: mechanism.event()):  # on disk when it returns; empty: it cannot pay
        break
    state, drawn = mechanism.sample(mechanism.init(), stream, client.size)
    errors = torch.softmax(x[drawn] @ weights, 1) - classes[y[drawn]]
    norms = errors.norm(dim=1) * x[drawn].norm(dim=1)  # of each example's own gradient
    total = x[drawn].T @ (errors * (CLIP / norms.clamp(min=CLIP)).unsqueeze(1))
    _, noised = mechanism.noise(state, stream, Bounded(total, CLIP))
    weights -= 4.0 * noised.vector / (RATE * client.size)

print(f"accuracy {((x @ weights).argmax(1) == y).float().mean():.3f}, epsilon spent {ledger.spent(client):.3f} of 3")
