"""The plan of a run: its checks by case, mode and layout.

The input is the corpus and the adapter's capabilities; the output is matrix cells, one for each
finding, each with its id and the job that the ranks run.
"""
