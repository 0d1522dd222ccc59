"""A parser child: `python -I -m amble.adapters.sandbox.child SOCKET_FD MEMORY_FD`, started by the pool only."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> None:
    """Serve on the two inherited descriptors until the socket closes."""
    # msgspec takes typing_extensions where it is installed, and that loads _socket; the typing module serves as well.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    from amble.adapters.sandbox.serve import serve

    serve(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
