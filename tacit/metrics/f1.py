"""The harmonic mean of precision and recall."""

from sklearn.metrics import f1_score

from tacit.metrics import Answers


class f1:
    """F1 of the second of two classes; of several classes or labels the mean over them."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        two = answers.kind != "multilabel" and answers.predictions.shape[1] == 2
        how = {"average": "binary"} if two else {"average": "macro", "labels": list(answers.classes)}
        return float(f1_score(answers.targets, answers.labels, zero_division=0.0, **how))  # pyright: ignore[reportArgumentType]
