"""Writes all pages anew."""

from __future__ import annotations

from conformance.views.overview import accusations, committed, frameworks, pages

if __name__ == "__main__":
    found = committed.versions(committed.REPORTS)
    texts = pages.pages(found, pages.README.read_text(encoding="utf-8")) | pages.issues(found)
    texts |= frameworks.pages(found) | frameworks.option_pages() | pages.web_page(found)
    accusations.ISSUES.mkdir(exist_ok=True)
    for former in accusations.ISSUES.glob("*.md"):
        former.unlink()
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")
