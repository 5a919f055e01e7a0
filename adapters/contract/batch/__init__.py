"""The batch of a job: its sequences, the values of their tokens, and the loss that they make."""
