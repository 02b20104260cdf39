"""The coefficient of determination."""

from sklearn.metrics import r2_score

from tacit.metrics import Answers


class r2:
    """1 for exact predictions, 0 for always answering the mean, below 0 for worse; the mean over several targets."""

    better, best, worst = "higher", 1.0, None

    def __call__(self, answers: Answers) -> float:
        """Raises ValueError of fewer than two rows."""
        if len(answers) < 2:
            raise ValueError("two test rows are needed")
        return float(r2_score(answers.targets.reshape(answers.predictions.shape), answers.predictions))
