"""An OpenAI-compatible gateway that sends each request where it starts first."""
