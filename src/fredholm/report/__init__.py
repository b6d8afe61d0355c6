"""Pages that a person looks at: one HTML file of a run, of several, or of a comparison."""

from .page import PAGE, build_page, missing_extra, write_page

__all__ = ["PAGE", "build_page", "missing_extra", "write_page"]
