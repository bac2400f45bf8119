"""`python -m bertcore` is the command `bertcore`."""

import sys

from bertcore.cli import main

sys.exit(main())
