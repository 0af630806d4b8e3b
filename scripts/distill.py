"""`parallelbench distill` of this clone: `python scripts/distill.py KEY=VALUE ...`."""

import sys

from parallelbench.__main__ import main

sys.argv.insert(1, "distill")
main()
