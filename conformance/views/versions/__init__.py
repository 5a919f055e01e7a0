"""Text on the changes between versions of a framework.

`diff_formats` shows two reports, `history_table` a list of reports, and `review` a change in words.
"""
