"""The server: OpenAI's API, metrics and a status page, over any engine that fits `protocols`.

`semblend.serve.app.create_app(engine, options)` is the application,
`semblend.serve.runner.make_server` runs it. This file imports nothing, so that
`options` can be read without the server's dependencies.
"""
