"""OpenAI's API: bodies, chat templates, prompts, answers and routes."""
