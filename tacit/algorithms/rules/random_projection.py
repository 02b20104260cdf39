"""`random-projection`: PFA with a random subspace instead of the public one: the paper's sanity control. Sees: rows."""

from dataclasses import dataclass

import torch

from tacit.algorithms.rules.pfa import Subspace, pfa, subspace


@dataclass(frozen=True)
class random_projection(pfa):
    """Projects the private mean onto `rank` random directions per block: what it loses is what public directions are worth."""

    def spaces(self, memory: dict[str, torch.Tensor], rows: list[torch.Tensor], weights: list[float]) -> list[Subspace]:
        # seeded by the first public update
        generator = torch.Generator().manual_seed(int(rows[0].double().sum().abs().frexp().mantissa * 2**52))
        noise = [torch.randn(len(rows[0]), generator=generator).to(rows[0].device) for _ in range(self.rank)]
        blocks = zip(*(self.parts(memory, row) for row in noise), strict=True)
        return [subspace(block, rank=self.rank, centred=False) for block in blocks]
