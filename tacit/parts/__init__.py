"""The parts that an experiment names: models, losses, tasks and metrics, one file each."""
