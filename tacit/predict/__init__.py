"""A run's model in use: loaded with the way its rows were read, it takes raw columns and answers labels and probabilities."""
