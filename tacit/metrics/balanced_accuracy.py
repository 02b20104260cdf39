"""The mean over classes of the share of right answers."""

from sklearn.metrics import recall_score

from tacit.metrics import Answers


class balanced_accuracy:
    """The mean recall of the classes that test rows have: .5 for a coin, however rare a class is."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers: Answers) -> float:
        present = sorted(set(answers.targets.tolist()))
        return float(recall_score(answers.targets, answers.labels, labels=present, average="macro", zero_division=0))  # pyright: ignore[reportArgumentType]
