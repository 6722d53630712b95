"""Many models: worked out side by side, one row each whatever happens, and summed up."""
