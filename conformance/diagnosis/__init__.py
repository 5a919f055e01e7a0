"""What explains a mismatch.

In come observed weights or a logged number with the context of their step; out comes the mistake
that predicts them within the bound. `catalogue` lists the known mistakes with the weights that
each would give, `explain` picks one, or says that none is known.
"""
