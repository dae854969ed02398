"""From a call to its launches: checks, arguments, and the backend that runs them."""
