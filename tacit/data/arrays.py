"""Arrays as rows, labels and clients, checked: from an .npz file, or as a program hands them over.

Every refusal names the array (`where`), and the client and row where there is one.
"""

import numpy as np
import torch

from tacit.data import names
from tacit.data.dataset import refuse_not_finite
from tacit.errors import BadData


def features(
    x: np.ndarray, *, where: str, divide_by: float = 1.0, clients: names.Coded | None = None, tokens: bool = False
) -> torch.Tensor:
    """Features as finite float32; `tokens` that are whole numbers stay such. Raises BadData."""
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise BadData(f"Expected {where} to be numbers of shape [rows, ...], got {x.dtype} of shape {list(x.shape)}.")
    if tokens and x.dtype.kind in "iu":
        return torch.from_numpy(x.astype(np.int64))
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite and is refused below, by its row
        out = torch.from_numpy(x.astype(np.float32, copy=False))
        out = out if divide_by == 1 else out / divide_by
    refuse_not_finite(out, where=where, client=clients[1] if clients else None, names=clients[0] if clients else None)
    return out


def numbers(y: np.ndarray, *, where: str, rows: int) -> np.ndarray:
    """Targets as float32, one or a row of them for each example; Dataset refuses what is not finite. Raises BadData."""
    if y.dtype.kind not in "fiub" or y.ndim not in (1, 2) or len(y) != rows:
        raise BadData(
            f"Expected {where} to be {rows} numbers or rows of numbers, got {y.dtype} of shape {list(y.shape)}."
        )
    with np.errstate(over="ignore"):
        return y.astype(np.float32)


def one_label_each(y: np.ndarray, *, where: str, rows: int) -> np.ndarray:
    """Labels as a vector of integers or texts, one for each row. Raises BadData."""
    if y.dtype.kind not in "iubU" or y.shape != (rows,):
        raise BadData(f"Expected {where} to be {rows} integers or texts, got {y.dtype} of shape {list(y.shape)}.")
    return y.astype(np.int64) if y.dtype.kind == "b" else y


def client_codes(client: np.ndarray, *, where: str, rows: int) -> names.Coded:
    """The client of each row by name. Raises BadData."""
    if client.dtype.kind not in "iuU" or client.shape != (rows,):
        raise BadData(
            f"Expected {where} to be {rows} integers or texts, got {client.dtype} of shape {list(client.shape)}."
        )
    return names.merged([names.coded(client)])


def class_indices(labels: np.ndarray, class_names: tuple[str, ...], *, where: str, key: str) -> np.ndarray:
    """Labels as indices into the class names; `key` is where those were declared. Raises BadData for one that was not."""
    known, codes = names.coded(labels)
    positions = labels.dtype.kind != "U" and not all(name.lstrip("-").isdecimal() for name in class_names)
    code_of = {str(code) if positions else name: code for code, name in enumerate(class_names)}
    for code, name in enumerate(known):
        if name not in code_of:
            row = int(np.argmax(codes == code))
            raise BadData(
                f"{where} has the label {name!r} in row {row}, which {key} does not declare: correct it or declare it.",
                cell=name,
            )
    return np.array([code_of[name] for name in known], np.int64)[codes]
