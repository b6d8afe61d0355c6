"""Pages that a person looks at: one HTML file of a run, of several, or of a comparison."""

from .page import missing_extra, page_of, write_page

__all__ = ["missing_extra", "page_of", "write_page"]
