"""``python -m fredholm`` is the command line."""

import sys

from fredholm.cli.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
