"""An OpenAI-compatible gateway that sends each request to the worker that can start it first."""
