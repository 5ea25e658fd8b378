"""OpenAI's two APIs: `chat` and `responses` render requests and parse answers."""
