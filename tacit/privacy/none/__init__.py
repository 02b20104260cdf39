"""No privacy: nothing is promised, charged or noised."""
