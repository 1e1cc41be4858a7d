"""Asks each controller at /readyz: the test of the Helm chart, with nothing but Python's library.

Arguments: the host whose addresses are those of the controllers, their port, and how many there
should be.
"""

import http.client
import socket
import sys
import time

PAUSE = 1.0
TIMEOUT = 5.0


def ask(host: str, port: int, wanted: int) -> str:
    """What is wrong; "" if all are ready."""
    try:
        found = {one[4][0] for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        return f"the Service {host} has no address ({error}): does the controller's pod run?"
    for address in sorted(found):
        try:
            connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT)
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            said = answer.read().decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            return f"the controller at {address} does not answer at port {port} ({error})"
        if answer.status != http.client.OK:
            return f"the controller at {address} is not ready: {said}"
    if len(found) < wanted:
        return f"{len(found)} of {wanted} controllers are there, and ready"
    return ""


# A controller that has just come lists the cluster's objects first.
def main(host: str, port: str, wanted: str, seconds: str = "60") -> int:
    """Asks until all are ready, or time is up."""
    end = time.monotonic() + float(seconds)
    while why := ask(host, int(port), int(wanted)):
        if time.monotonic() >= end:
            print(why)
            return 1
        time.sleep(PAUSE)
    print("all controllers are ready")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
