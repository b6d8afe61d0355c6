"""Reading of data files, shared by all tasks: paths, formats, limits and errors."""
