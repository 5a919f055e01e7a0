"""Text for readers: terminal, Markdown, JSON, GitHub and the web page.

In come reports, differences, histories and the corpus; out comes text, line by line. Other modules
are named after what they show; `tables` makes their tables and counts of verdicts. Nothing is
computed here that another room needs.
"""
