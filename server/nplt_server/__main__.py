"""`nplt-server`, and `python -m nplt_server`."""

import gc


def main() -> None:
    # What is loaded is there to stay: the garbage collector would look through it in vain, for
    # a seventh of the time to start. `start.run` enables it again, and so do the commands.
    gc.disable()
    from nplt_server.cli import main as command

    command()


if __name__ == "__main__":
    main()
