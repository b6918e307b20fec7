"""A federation on real machines: the apps that Flower starts at the server and at each client, and their files.

`server_app.py` runs the same `Runner` as `protofed run`, with the engine `engines/flower/remote.py`. `client_app.py`
does a client's part of a round. This package may import everything except
`studies` and `cli`.
"""
