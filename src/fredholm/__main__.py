"""``python -m fredholm`` is the command line."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [str(Path.cwd())]:
        del sys.path[0]  # `-m` puts the working folder first; its modules must not be imported

    from fredholm.cli import main

    sys.exit(main())
