"""`python -m crosspipe.cli`: the command line where no script is installed."""

import sys

from crosspipe.cli import main

sys.exit(main())
