"""The plan of a run: its checks by case, mode and layout.

The input is the corpus and the adapter's capabilities. The output is matrix cells, one for each
finding, with the finding's id and the job that the ranks run.
"""
