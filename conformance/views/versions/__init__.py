"""Changes from one version of a framework to another, for readers.

`diff_formats` shows two reports, `history_table` a list of them, and `review` a change in words.
"""
