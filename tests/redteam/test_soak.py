import pytest
from redteam.soak import soaked

pytestmark = pytest.mark.faults


def test_a_run_finishes_with_the_honest_sites_and_names_the_liar_while_it_and_a_stranger_attack(tmp_path):
    print(soaked(tmp_path, 20 / 60))
