"""`mlflow`: one MLflow run per run, in `<run>/mlflow.db` (`mlflow ui --backend-store-uri sqlite:///<run>/mlflow.db`).

Where MLFLOW_TRACKING_URI is set, the run goes there instead. MLflow's own telemetry is turned off: a run of Tacit does
not talk to anybody it was not told to. A resumed run finds its MLflow run by a tag and adds only what is missing.
"""

import logging
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.report.writers import Facts, numbers

LONGEST = 500  # characters of a parameter's value that every MLflow server takes
AT_ONCE = 100  # parameters in one call, by MLflow's limit
TAG = "tacit.run"


class mlflow:
    """One run in MLflow."""

    wants = "mlflow"

    def __init__(self, folder: Path, facts: Facts):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's own deprecations
            from mlflow import MlflowClient  # type: ignore

            logging.getLogger("mlflow").setLevel(logging.WARNING)
            uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
            self._client: Any = MlflowClient(tracking_uri=uri)
            experiment = self._client.get_experiment_by_name(facts.name)
            home = experiment.experiment_id if experiment else self._client.create_experiment(facts.name)
            known = self._client.search_runs([home], filter_string=f"tags.`{TAG}` = '{facts.run}'")
        self._id = known[0].info.run_id if known else self._create(home, facts)

    def past(self, records: Sequence[dict[str, Any]]) -> None:
        logged = {metric.step for metric in self._client.get_metric_history(self._id, "seconds")}
        for record in records:
            if record["round"] + 1 not in logged:
                self.round(record)

    def round(self, record: dict[str, Any]) -> None:
        from mlflow.entities import Metric  # type: ignore

        now = int(time.time() * 1000)
        found = [Metric(key, value, now, record["round"] + 1) for key, value in numbers(record).items()]
        self._client.log_batch(self._id, metrics=found)

    def finish(self, summary: dict[str, Any]) -> None:
        metric = f"test_{summary['metric']}"
        if summary[metric] is not None:
            self._client.log_metric(self._id, metric, summary[metric], step=summary["rounds"])
        self._client.set_tag(self._id, "tacit.guarantee", summary["sentence"])
        self._client.set_terminated(self._id, status="FINISHED")

    def close(self) -> None:
        """Nothing is pending: every round was written when it ended."""

    def _create(self, home: str, facts: Facts) -> str:
        from mlflow.entities import Param  # type: ignore

        run = self._client.create_run(home, run_name=facts.name, tags={TAG: facts.run}).info.run_id
        params = [Param(key, value[:LONGEST]) for key, value in facts.settings.items()]
        for some in _parts(params):
            self._client.log_batch(run, params=some)
        return run


def _parts(params: list[Any]) -> list[list[Any]]:
    return [params[start : start + AT_ONCE] for start in range(0, len(params), AT_ONCE)]
