"""`python -m areca` is the `areca` command."""

import sys

from areca.cli.main import main

sys.exit(main())
