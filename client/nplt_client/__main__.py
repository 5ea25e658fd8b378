"""`nplt`, and `python -m nplt_client` for where the command itself is not on the path."""

import gc
import sys


def main() -> int:
    # What is loaded is there to stay: the garbage collector would look through it in vain, for
    # a fifteenth of the time `nplt ask` takes.
    gc.set_threshold(50_000)
    from nplt_client.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
