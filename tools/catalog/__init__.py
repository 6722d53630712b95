"""Every model file and the recipe it is made by."""

from recipe import Recipe

from catalog import sequences, vision

RECIPES: tuple[Recipe, ...] = (*vision.RECIPES, *sequences.RECIPES)
