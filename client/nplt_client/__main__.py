"""Runs `nplt`, also as `python -m nplt_client` where the command is not on the path."""

import gc
import sys


def main() -> int:
    # Loaded modules are never freed. Collecting garbage among them would take a fifteenth of
    # the time of `nplt ask`.
    gc.set_threshold(50_000)
    from nplt_client.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
