"""Is the server of this container ready? Exits with 0 if so: the image's health check.

Asks by a plain connection, since a proxy that the container is given for the hub can't know this address. The port and
TLS are those of the variables; a certificate is made for the name by which others come, so it isn't looked at here.
"""

import http.client
import os
import ssl
import sys

port = int(os.environ.get("ANLLM_SERVE_PORT") or 8000)
if os.environ.get("ANLLM_SERVE_SSL_CERTFILE"):
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=4, context=context)
else:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=4)
connection.request("GET", "/health")
sys.exit(connection.getresponse().status != http.client.OK)
