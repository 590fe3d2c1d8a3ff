"""`python -m dapo_ref.report`."""

import sys

from dapo_ref.report import main

sys.exit(main(sys.argv[1:]))
