"""HTML reports in one file: of a run, of several runs, or of a comparison of kernels."""

from .page import PAGE, build_page, missing_extra, write_page

__all__ = ["PAGE", "build_page", "missing_extra", "write_page"]
