"""`parallelbench answer` of this clone: `python scripts/answer.py KEY=VALUE ...`."""

import sys

from parallelbench.__main__ import main

sys.argv.insert(1, "answer")
main()
