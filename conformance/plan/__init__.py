"""Which checks run on which cases, modes and layouts.

In come the corpus and what the adapter supports; out come matrix cells, one for each finding, each
with its id and the job that the ranks have to run.
"""
