"""From an experiment to its parts, and what every release of them is a function of. Nothing else wires."""
