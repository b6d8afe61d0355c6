"""Pages that a person looks at: one HTML file of a run, of several, or of a comparison."""

from .page import PAGE, missing_extra, page_of, write_page

__all__ = ["PAGE", "missing_extra", "page_of", "write_page"]
