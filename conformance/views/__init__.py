"""Reports for readers: terminal, Markdown, JSON, GitHub and the web page.

In come reports and differences; out comes text. Nothing is computed here that another room needs.
"""
