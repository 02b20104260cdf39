"""The parts that an experiment names: models, losses, tasks and metrics."""
