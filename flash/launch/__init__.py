"""How a forward call becomes launches: checks, arguments, and the backend that runs them."""
