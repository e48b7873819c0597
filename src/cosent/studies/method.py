"""Methods that a study compares."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A method of a study: a recipe of a tower, and a variant of it.

    Args:
        tower: bi_encoder or cross_encoder.
        recipe: the name of its file, without suffix.
        variant: "" for an unchanged recipe.
        names_tower: whether the tower is part of the name, because another recipe has the same file name.
    """

    tower: str
    recipe: str
    variant: str = ""
    names_tower: bool = False

    @property
    def parts(self) -> list[str]:
        """Parts of the name that distinguish this method from others of its study."""
        return [self.tower] * self.names_tower + [self.recipe] + [self.variant] * bool(self.variant)

    @property
    def name(self) -> str:
        return " ".join(self.parts)

    @classmethod
    def from_name(cls, name: str, tower: str) -> "Method":
        """The method of a result from before 2026-11-22, which has only a name.

        Args:
            tower: tower of its recipe.
        """
        first, *others = name.split()
        names_tower = first == tower and bool(others)
        recipe, *variant = others if names_tower else (first, *others)
        return cls(tower, recipe, " ".join(variant), names_tower)
