"""Anthropic's Messages API: `render` writes requests, `parse` reads answers."""
