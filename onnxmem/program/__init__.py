"""What is allocated and released when, without sizes; sizes; and what follows from both."""
