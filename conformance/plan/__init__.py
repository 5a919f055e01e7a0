"""The plan of a run: its checks by case, mode and layout.

In come the corpus and what the adapter supports; out come matrix cells, one for each finding, each
with its id and the job that the ranks have to run.
"""
