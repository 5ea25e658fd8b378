"""`python -m nplt_client` is `nplt`.

For where the command itself is not on the path. Nothing else happens here.
"""

import sys

from nplt_client.cli import main

if __name__ == "__main__":
    sys.exit(main())
