"""From the `[data]` table to a data set in memory: one function per source, chosen by name."""

from rich.progress import Progress

from tacit.data import cifar, csv_files, digits, mnist, npz
from tacit.data.dataset import Dataset
from tacit.experiment.data import DataSection


def load(section: DataSection, *, seed: int, progress: Progress | None = None) -> Dataset:
    """Reads the data set that the section names, downloading a public one that is nowhere on this machine.

    The seed chooses only which rows of a csv or npz without a test file are held out; the other sources come with
    theirs. A download shows its bar in `progress` (see `fetch.bar`). Raises: BadData.

    >>> load(DataSection(name="digits"), seed=0).x.shape
    torch.Size([1438, 1, 8, 8])
    """
    if section.name == "digits":
        return digits.load()
    if section.name == "csv":
        return csv_files.load(section, seed=seed)
    if section.name == "npz":
        return npz.load(section, seed=seed)
    if section.name == "cifar10":
        return cifar.load(path=section.path, progress=progress)
    return mnist.load(section.name, path=section.path, progress=progress)
