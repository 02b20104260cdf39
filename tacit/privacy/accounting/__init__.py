"""From what was released to an epsilon, never below the smallest that holds, and from a budget to the noise that keeps it."""
