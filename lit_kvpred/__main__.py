"""`python -m lit_kvpred` is the `lit-kvpred` command."""

import sys

from lit_kvpred.cli import main

if __name__ == "__main__":
    sys.exit(main())
