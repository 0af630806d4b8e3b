"""`parallelbench collect_traces` of this clone: `python scripts/collect_traces.py KEY=VALUE ...`."""

import sys

from parallelbench.__main__ import main

sys.argv.insert(1, "collect_traces")
main()
