"""A gate for CI: budgets, and whether models keep them."""
