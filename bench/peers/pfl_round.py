"""pfl-research's simulated backend with FederatedAveraging, in an environment of its own (it pins dp-accounting < 0.6).

Its datasets cut the batches once and do not shuffle; its users are weighted equally, as ours are of equal size.
"""

import local
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy
from turns import Turns

NEVER = 10**9  # rounds between evaluations; the first round evaluates all the same, and is not counted


class Scored(nn.Module):
    """A model with the two methods pfl asks for."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class InTurns(TrainingProcessCallback):
    """Waits for its turn before each round."""

    def __init__(self, turns: Turns):
        self._turns = turns

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._turns.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._turns.done()
        self._turns.wait()
        return False, Metrics()


def main() -> None:
    args = local.arguments()
    turns, clients = Turns(args.rounds), local.clients(args.data)
    users = FederatedDataset(
        lambda user: PyTorchTensorDataset(clients[user]), get_user_sampler("minimize_reuse", np.arange(len(clients)))
    )
    model = Scored(local.build(args.model))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=len(clients),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByUser()]),
        model=PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=local.LEARNING_RATE, local_batch_size=local.BATCH
        ),
        callbacks=[InTurns(turns)],
    )


if __name__ == "__main__":
    main()
