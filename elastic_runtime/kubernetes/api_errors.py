"""What goes wrong between us and an API server: one error, and the questions people ask of it."""

from __future__ import annotations

from elastic_runtime.errors import ElasticError

# Reasons of ours, for errors without an answer of an API server (code 0).
NO_ANSWER = "NoAnswer"
NOT_KUBERNETES = "NotKubernetes"


class ApiError(ElasticError):
    """The API server refused a request, or did not answer it.

    Args:
        code: the HTTP status; 0 if no API server answered at all.
        reason: one word of the server's, such as ``Forbidden``; for code 0 ``NO_ANSWER``, or
            ``NOT_KUBERNETES`` if something else has answered.
        message: what it says about it.
        where: the request, for the message.
    """

    def __init__(self, code: int, reason: str, message: str, where: str) -> None:
        super().__init__(f"{where}: {message}")
        self.code, self.reason, self.message = code, reason, message

    @property
    def not_found(self) -> bool:
        """What it is about does not exist, or no longer."""
        return self.code == 404

    @property
    def conflict(self) -> bool:
        """It is not as we thought: look again."""
        return self.code == 409

    @property
    def already_exists(self) -> bool:
        """There is an object of that name already."""
        return self.conflict and self.reason == "AlreadyExists"

    @property
    def expired(self) -> bool:
        """The version to watch from is too old."""
        return self.code == 410

    @property
    def transient(self) -> bool:
        """The same request may well succeed in a while."""
        return self.code in (0, 401, 408, 429) or self.code >= 500

    @property
    def malformed(self) -> bool:
        """The object itself is wrong, whoever sends it, and whenever."""
        strict = self.code == 400 and (
            "strict decoding error" in self.message or "cannot be handled as a" in self.message
        )
        return strict or self.code == 422

    @property
    def quota_exceeded(self) -> bool:
        """A ResourceQuota forbids it."""
        return self.code == 403 and "exceeded quota" in self.message
