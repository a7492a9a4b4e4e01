"""The server: OpenAI's API, metrics and a page to watch, over an engine that fits `protocols`.

`semblend.serve.app.create_app(engine, options)` is the application,
`semblend.serve.runner.make_server` runs it. Nothing is imported here, so that
`options` can be read without the server's dependencies.
"""
