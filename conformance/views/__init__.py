"""Text for readers: terminal, Markdown, JSON, GitHub and the web page.

In come reports, differences, histories and the corpus; out comes text, line by line. Markdown and
HTML are ``templates``, everything else is named after what it shows. Nothing is computed here that
another room needs.
"""
