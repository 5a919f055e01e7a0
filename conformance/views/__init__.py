"""Text for readers: terminal, Markdown, JSON, GitHub and the web page.

The input is reports, differences, histories and the corpus; the output is text, line by line.
``templates`` has the Markdown and HTML; modules are named after what they show. Nothing is computed
here that another package needs.
"""
