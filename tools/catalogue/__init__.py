"""Every model file and the recipe it is made by."""

from catalogue import vision
from recipe import Recipe

RECIPES: tuple[Recipe, ...] = (*vision.RECIPES,)
