"""The share of right answers."""

from tacit.metrics import Answers


class accuracy:
    """The share of test rows (of labels, of tokens) whose prediction is right."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        return float((answers.labels == answers.targets.reshape(answers.labels.shape)).mean())
