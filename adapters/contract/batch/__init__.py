"""The batch of a job: its sequences, the values of their tokens, and the loss made of them."""
