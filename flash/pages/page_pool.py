"""Counts the sequences that use each page of a KV cache, and lists the free pages."""

from __future__ import annotations

from flash.pages.journal import Journal
from ptxgen.errors import CacheFullError, LaunchError


class PagePool:
    """`pages` pages with indices from 0 on; each is free or has one or more users. Changes are
    noted in the journal of a call.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._users = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # taken from its end: the lowest first

    @property
    def free(self) -> int:
        """The number of pages without a user."""
        return len(self._free)

    def users(self, page: int) -> int:
        """The number of users of a page."""
        return self._users[page]

    def take(self, journal: Journal) -> int:
        """Take a free page for one user. Raises `CacheFullError` if no page is free."""
        if not self._free:
            raise CacheFullError(
                f"PagePool: all {self.pages} pages are in use; release one before taking another"
            )
        page = self._free[-1]
        journal.write(self._free, slice(len(self._free) - 1, None), [])
        journal.write(self._users, page, 1)
        return page

    def share(self, page: int, journal: Journal) -> None:
        """Add a user of a page. Raises `LaunchError` if the page is free."""
        self._require_used(page, "shared")
        journal.write(self._users, page, self._users[page] + 1)

    def release(self, page: int, journal: Journal) -> None:
        """Remove a user; a page without users is free. Raises `LaunchError` for a free page."""
        self._require_used(page, "released")
        journal.write(self._users, page, self._users[page] - 1)
        if not self._users[page]:
            journal.write(self._free, slice(len(self._free), None), [page])

    def state(self) -> tuple[list[int], list[int]]:
        """The users of each page, and the free pages, the next last; copies."""
        return list(self._users), list(self._free)

    def restore(self, state: tuple[list[int], list[int]]) -> None:
        """Take over the `state` of a pool of as many pages."""
        self._users[:], self._free[:] = state

    def _require_used(self, page: int, what: str) -> None:
        if not 0 <= page < self.pages or not self._users[page]:
            raise LaunchError(
                f"PagePool: a page that is {what} must be in use, but page {page} of {self.pages} "
                "is not; release each page once for each time it was taken or shared"
            )
