"""Programs that people use with OpenAI's API, in environments of their own (`make clients`)."""
