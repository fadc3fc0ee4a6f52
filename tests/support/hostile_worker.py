"""A worker that has the token, and answers what it should not."""

from fusionloader.sharing.remote.protocol import (
    DECLINED,
    PREPARE,
    READY,
    ROWS,
    SERVICE,
    SETUP,
    Declined,
    Ready,
    Reason,
    Rows,
    Setup,
    WorkRequest,
)
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token
from fusionloader.system.transport.listener import Listener, Service
from fusionloader.system.transport.messages import MOST_HEAD, Outgoing, refusal


class HostileWorker:
    """Says that it is ready, and answers requests as ``misdeed`` says.

    Attributes:
        address: where it listens.
        asked: requests that it has had.
    """

    def __init__(self, token_file, misdeed, cores=1):
        self._misdeed, self._cores = misdeed, cores
        self.asked = 0
        identity = Identity.of(read_token(token_file))
        services = {SERVICE: Service(self._begin, 1 << 28)}
        self._listener = Listener(Address("127.0.0.5", 0), identity, services)
        self.address = str(self._listener.address)

    def close(self):
        self._listener.close()

    def _begin(self):
        row_bytes = 0

        def answer(message):
            nonlocal row_bytes
            if message.kind == SETUP:
                row_bytes = Setup.decode(message.head).row_bytes
                return Outgoing(READY, Ready("hostile", self._cores).encode())
            assert message.kind == PREPARE
            request = WorkRequest.decode(message.head, len(message.body))
            self.asked += 1
            return MISDEEDS[self._misdeed](request, row_bytes * len(request.samples))

        return answer


def _rows(number, body):
    return Outgoing(ROWS, Rows(number, 1, 1).encode(), [body])


def _declined(number, body=(), reason=Reason.SAMPLES):
    return Outgoing(DECLINED, Declined(number, reason, "I would rather not").encode(), body)


MISDEEDS = {
    "short rows": lambda request, nbytes: _rows(request.number, bytes(nbytes - 1)),
    "long rows": lambda request, nbytes: _rows(request.number, bytes(nbytes + 1)),
    "no rows": lambda request, nbytes: _rows(request.number, b""),
    "another number": lambda request, nbytes: _rows(request.number + 1, bytes(nbytes)),
    "declines all": lambda request, nbytes: _declined(request.number),
    "declines another": lambda request, nbytes: _declined(request.number - 1),
    "declines with a body": lambda request, nbytes: _declined(request.number, [bytes(100)]),
    "lacks the data": lambda request, nbytes: _declined(request.number, reason=Reason.DATA),
    "refuses": lambda request, nbytes: refusal("will not"),
    "a short head": lambda request, nbytes: Outgoing(ROWS, b"abc", [bytes(nbytes)]),
    "a long head": lambda request, nbytes: Outgoing(ROWS, bytes(MOST_HEAD + 1)),
    "another kind": lambda request, nbytes: Outgoing(READY, b"{}"),
    "nothing": lambda request, nbytes: None,
}
