"""`python -m nplt_server` is `nplt-server`."""

from nplt_server.cli import main

if __name__ == "__main__":
    main()
