"""A conversation as one web page that needs nothing else: `nplt export --format html`."""
