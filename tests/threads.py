"""Few threads for small tensors: import the fixture where a file's tests multiply many of them."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small operations wait for each other's threads when the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
