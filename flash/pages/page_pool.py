"""Which pages of a KV cache are free, and how many sequences use each: numbers, no memory."""

from __future__ import annotations

from flash.pages.journal import Journal
from ptxgen.errors import CacheFullError, LaunchError


class PagePool:
    """`pages` pages, numbered from 0 on; each is free or has one or more users. What changes is
    noted in the journal of a call.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._users = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # taken from its end: the lowest first

    @property
    def free(self) -> int:
        """How many pages nobody uses."""
        return len(self._free)

    def users(self, page: int) -> int:
        """How many use a page."""
        return self._users[page]

    def take(self, journal: Journal) -> int:
        """A page that was free, with one user. Raises `CacheFullError` if there is none."""
        if not self._free:
            raise CacheFullError(
                f"PagePool: all {self.pages} pages are in use; release one before taking another"
            )
        page = self._free[-1]
        journal.write(self._free, slice(len(self._free) - 1, None), [])
        journal.write(self._users, page, 1)
        return page

    def share(self, page: int, journal: Journal) -> None:
        """Count one more user of a page. Raises `LaunchError` if nobody uses it."""
        self._require_used(page, "shared")
        journal.write(self._users, page, self._users[page] + 1)

    def release(self, page: int, journal: Journal) -> None:
        """Count one user less; without any, the page is free. Raises `LaunchError` if it is."""
        self._require_used(page, "released")
        journal.write(self._users, page, self._users[page] - 1)
        if not self._users[page]:
            journal.write(self._free, slice(len(self._free), None), [page])

    def _require_used(self, page: int, what: str) -> None:
        if not 0 <= page < self.pages or not self._users[page]:
            raise LaunchError(
                f"PagePool: a page that is {what} must be in use, but page {page} of {self.pages} "
                "is not; release each page once for each time it was taken or shared"
            )
