"""How far a model goes on devices: a ranking of them, and the contexts of a language model."""
