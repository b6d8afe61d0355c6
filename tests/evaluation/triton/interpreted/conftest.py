"""These tests run in a process of their own, started by `test_interpreted.py` with the interpreter on."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
