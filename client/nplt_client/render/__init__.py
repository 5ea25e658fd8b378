"""Formats values as safe text, tables and HTML. Sends no requests."""
